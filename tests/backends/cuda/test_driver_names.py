"""Every driver name in the backend exists and gets the right number of arguments, by the bindings' documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import define, field
from cuda.bindings import driver as real  # type: ignore[import-not-found,import-untyped,unused-ignore]  # no stubs

import pympsd_server

ROOM: Final = Path(pympsd_server.__file__).parent / "backends" / "cuda"
CALL: Final = re.compile(r"cu[A-Z]\w*")
KIND: Final = re.compile(r"CU[a-z]\w*")
NUMBER: Final = re.compile(r"CU_[A-Z]\w*")
STRUCTURE: Final = re.compile(r"CUDA_[A-Z]\w*")
DIMENSIONS: Final = 3
"""A starred argument stands for the extents of a grid or a block."""
ATTRIBUTES: Final = ("CUdevice_attribute.CU_DEVICE_ATTRIBUTE_", "CUfunction_attribute.CU_FUNC_ATTRIBUTE_")


def count_arguments(name: str) -> int:
    """Return the number of arguments of a call, by the signature at the start of its documentation."""
    signature = getattr(real, name).__doc__.partition("\n")[0]
    match = re.fullmatch(rf"{name}\((.*)\)", signature)
    assert match is not None, f"{name} is documented as {signature!r}"
    depth, count = 0, 1 if match[1].strip() else 0
    for character in match[1]:
        depth += (character in "([") - (character in ")]")
        count += character == "," and depth == 0
    return count


@define
class Names(ast.NodeVisitor):
    """The driver names in a file: calls, with the numbers of their arguments, and enum members."""

    calls: list[tuple[str, int, int]] = field(factory=list)
    """(name, arguments, line)."""
    members: list[tuple[str, int]] = field(factory=list)
    """(``kind.member``, or the name of a call, a kind or a number, line)."""
    _stands_for: dict[str, tuple[str, ...]] = field(factory=dict)
    """Local names of kinds, and of tables of calls."""

    @classmethod
    def of(cls, text: str) -> Names:
        """Read a file."""
        names = cls()
        names.visit(ast.parse(text))
        return names

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note ``kinds = cu.CUkind``, also one of several, and ``functions = {1: cu.cuCall}``."""
        for target in node.targets:
            names, values = [target], [node.value]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                names, values = list(target.elts), list(node.value.elts)
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name):
                    self._stands_for[name.id] = self._meant(value)
        self.generic_visit(node)

    def _meant(self, value: ast.expr) -> tuple[str, ...]:
        held = value.values if isinstance(value, ast.Dict) else [value]
        return tuple(entry.attr for entry in held if isinstance(entry, ast.Attribute))

    def visit_Call(self, node: ast.Call) -> None:
        """Note a call of the driver, and one that is passed with its arguments after it."""
        for name in self._called(node.func):
            self._note(name, node.args, node.lineno)
        for index, argument in enumerate(node.args):
            for name in self._called(argument):
                self._note(name, node.args[index + 1 :], node.lineno)
        self.generic_visit(node)

    def _called(self, node: ast.expr) -> Iterator[str]:
        names: tuple[str, ...] = ()
        if isinstance(node, ast.Attribute):
            names = (node.attr,)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            names = self._stands_for.get(node.value.id, ())
        yield from filter(CALL.fullmatch, names)

    def _note(self, name: str, arguments: list[ast.expr], line: int) -> None:
        count = sum(DIMENSIONS if isinstance(argument, ast.Starred) else 1 for argument in arguments)
        self.calls.append((name, count, line))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note ``cu.CUkind.MEMBER``, ``kinds.MEMBER``, ``cu.NUMBER``, and other driver names."""
        if NUMBER.fullmatch(node.attr):
            kind = ""
            if isinstance(node.value, ast.Attribute):
                kind = node.value.attr
            elif isinstance(node.value, ast.Name):
                kind = "".join(self._stands_for.get(node.value.id, ()))
            self.members.append((f"{kind}.{node.attr}".lstrip("."), node.lineno))
        elif any(entry.fullmatch(node.attr) for entry in (CALL, KIND, STRUCTURE)):
            self.members.append((node.attr, node.lineno))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Note functions of the driver's library by name; the bindings have them without the version."""
        if isinstance(node.value, str) and CALL.fullmatch(node.value):
            self.members.append((re.sub(r"_v\d+$", "", node.value), node.lineno))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Note ``attributes["NAME"]``: the probe and the modules take the names from the driver's attributes."""
        of = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        name = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if of == "attributes" and isinstance(name, str):
            self.members.append((f"*{name}", node.lineno))
        self.generic_visit(node)


def is_there(name: str) -> bool:
    """Return whether the driver has it; ``*NAME`` is an attribute of devices or of functions."""
    if name.startswith("*"):
        return any(is_there(f"{attribute}{name[1:]}") for attribute in ATTRIBUTES)
    kind, _, member = name.partition(".")
    holder: Any = getattr(real, kind, None)
    return member in getattr(holder, "__members__", ()) if member else holder is not None


def wrong(names: Names) -> list[str]:
    """Return messages about names that do not exist and calls with the wrong number of arguments."""
    output = [f"line {line}: {name} is not there" for name, line in names.members if not is_there(name)]
    return output + [
        f"line {line}: {name} takes {count_arguments(name)} arguments, not {count}"
        for name, count, line in names.calls
        if is_there(name) and count_arguments(name) != count
    ]


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_all_names_exist_and_calls_have_the_documented_number_of_arguments(path: Path) -> None:
    assert wrong(Names.of(path.read_text())) == []


def test_no_name_is_missed() -> None:
    """Compare the names found with a plain text search: a new way of writing them would be missed."""
    for path in ROOM.rglob("*.py"):
        text, names = path.read_text(), Names.of(path.read_text())
        standing = set(re.findall(r"\b(?:cu|driver|_driver)\.(cu[A-Z]\w*)", text))
        assert standing == {name for name, _, _ in names.calls}, path.name
        standing = set(re.findall(r"\w\.(CU_[A-Z]\w*)", text))
        assert standing == {name.rpartition(".")[2] for name, _ in names.members if "CU_" in name}, path.name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cu.cuMemSetDAsync(1)", "cuMemSetDAsync is not there"),
        ("cu.cuMemUnmap(1)", "cuMemUnmap takes 2 arguments, not 1"),
        ("plain_call(cu.cuInit)", "cuInit takes 1 arguments, not 0"),
        ("self._driver.call(cu.cuStreamDestroy, stream, 0)", "cuStreamDestroy takes 1 arguments, not 2"),
        ("undo.callback(driver.call, cu.cuStreamDestroy)", "cuStreamDestroy takes 1 arguments, not 0"),
        ("call(cu.cuLinkCreate, 1, [a, b])", "cuLinkCreate takes 3 arguments, not 2"),
        ("call(cu.cuLaunchKernel, f, *grid, *block, 0, s, 0)", "cuLaunchKernel takes 11 arguments, not 10"),
        ("all = {1: cu.cuMemsetD8Async}\ncall(all[1], 1, 2, 3)", "cuMemsetD8Async takes 4 arguments, not 3"),
        ("cu.CUstream_flags.CU_STREAM_NONBLOCKING", "CUstream_flags.CU_STREAM_NONBLOCKING is not there"),
        ("a, kinds = 1, cu.CUevent_flags\nkinds.CU_EVENT_NONE", "CUevent_flags.CU_EVENT_NONE is not there"),
        ("cu.CUstreamflags", "CUstreamflags is not there"),
        ("cu.CUDA_MEMCPY4D()", "CUDA_MEMCPY4D is not there"),
        ("cu.CU_MEMHOSTALLOC_MAPPED", "CU_MEMHOSTALLOC_MAPPED is not there"),
        ("facts.attributes['MAX_THREADS']", "*MAX_THREADS is not there"),
        ("library['cuEventReport_v2']", "cuEventReport is not there"),
    ],
)
def test_wrong_names_and_calls_are_found(text: str, message: str) -> None:
    (problem,) = wrong(Names.of(text))
    assert problem.partition(": ")[2] == message
