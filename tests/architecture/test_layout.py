"""Size and names of modules and folders, and that what is installed is what is tested."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.architecture.conftest import Module

MAX_LINES = 600
MIN_LINES = 40
"""Shorter modules belong to the topic that uses them. ``__init__`` and ``__main__`` may be short."""
SITE = "pympsd_client.routing.without_site"
"""Python imports a module named ``sitecustomize``, so that it is short and alone in its folder."""
MAX_MODULES = 25
"""The most that a package may hold, except for its ``__init__``."""
MIN_MODULES = 3
"""The fewest modules (those in C have a stub) and packages that a package may hold."""
MAX_PAIRS = 6
"""Pairs of packages that import each other: packages of one topic, one of which has its composition root."""
DOCSTRING_LINES = 200
"""Modules that are longer explain themselves in more than one line."""
SAME_NAMES = {
    "what the daemon decides, the message that says it, and the event that reports it": (
        "AdmitClient ClientJoined StartRefused StartTrace StopTrace TerminateClient"
    ),
    "one thing as its owner has it, as a peer has it, and as a tool shows it": (
        "Client ClientSpace Context Daemon Device Drain Event Executor "
        "HostMemory Kernel Machine Module Server Stream Waiting"
    ),
    "terms of PTX, in the syntax tree and below": "Block Frame Function Group Negative Operation Scope Target",
    "what the daemon's I/O layer carries out, and what a kernel executes": "Instruction",
    "ordinary words for values of one module": "Condition Trace",
}
"""Public classes of several modules that have one name."""
CONTROL_FLOW = frozenset({"Cancelled", "PrivateExecutorWarning", "NotCompiled"})
"""Exceptions that are not errors: the end of a cancelled kernel, a warning, and what leaves a kernel to NumPy."""
VAGUE = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "core", "base", "misc"})


def test_no_module_is_long(modules: tuple[Module, ...]) -> None:
    assert {module.name: module.lines for module in modules if module.lines > MAX_LINES} == {}


def test_no_module_is_short(modules: tuple[Module, ...]) -> None:
    may_be = ("__init__.py", "__main__.py")
    short = {m.name: m.lines for m in modules if m.lines < MIN_LINES and m.path.name not in may_be}
    assert set(short) == {f"{SITE}.sitecustomize"}


def _package(module: Module) -> str:
    return module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]


def test_no_package_has_many_modules_or_few(modules: tuple[Module, ...]) -> None:
    names = {module.name for module in modules}
    packages = {_package(module) for module in modules}
    children = {package: [name for name in names if name.rpartition(".")[0] == package] for package in packages}
    stubs = {_package(module): len([*module.path.parent.glob("*.pyi")]) for module in modules}
    held = {package: len(members) + stubs[package] for package, members in children.items()}
    assert {package for package, count in held.items() if not count >= MIN_MODULES} == {SITE}
    modules_of = Counter(_package(module) for module in modules if module.path.name != "__init__.py")
    assert {package: count for package, count in modules_of.items() if count > MAX_MODULES} == {}


def test_few_packages_import_each_other(modules: tuple[Module, ...]) -> None:
    package_of = {module.name: _package(module) for module in modules}
    arrows = {
        (_package(module), package_of[name])
        for module in modules
        for name in module.imported_modules(package_of)
        if package_of[name] != _package(module) and "." in name
    }
    pairs = sorted({tuple(sorted(arrow)) for arrow in arrows if arrow[::-1] in arrows})
    assert len(pairs) <= MAX_PAIRS, pairs


def test_no_module_name_is_vague(modules: tuple[Module, ...]) -> None:
    vague = {module.name for module in modules for part in module.name.split(".") if part.strip("_") in VAGUE}
    assert vague == set()


def test_every_module_states_what_it_is_for(modules: tuple[Module, ...]) -> None:
    # Stubs that are compiled at every start, and empty package files, need no docstring.
    silent = {module.name for module in modules if module.lines and not ast.get_docstring(module.tree)}
    assert silent <= {"pympsd.__main__", "pympsd_server.__main__"}


def test_packages_are_typed(modules: tuple[Module, ...]) -> None:
    roots = {module.path.parent for module in modules if module.name in ("pympsd", "pympsd_server", "pympsd_client")}
    assert roots
    assert all((root / "py.typed").exists() for root in roots)


def test_long_modules_explain_themselves(modules: tuple[Module, ...]) -> None:
    long = [module for module in modules if module.lines > DOCSTRING_LINES]
    one_liners = [module.name for module in long if "\n" not in (ast.get_docstring(module.tree) or "")]
    assert one_liners == []


def _classes(modules: tuple[Module, ...]) -> Iterator[tuple[str, ast.ClassDef]]:
    yield from (
        (module.name, node) for module in modules for node in module.tree.body if isinstance(node, ast.ClassDef)
    )


def test_two_public_classes_have_one_name_only_if_they_are_listed(modules: tuple[Module, ...]) -> None:
    listed = {name for names in SAME_NAMES.values() for name in names.split()}
    counts = Counter(node.name for _, node in _classes(modules) if not node.name.startswith("_"))
    assert {name for name, count in counts.items() if count > 1} - listed == set()


def _is_error(name: str, bases: dict[str, set[str]]) -> bool:
    """Return whether a class of this name is an exception: built in, or derived from one."""
    built_in = getattr(builtins, name, None)
    if isinstance(built_in, type):
        return issubclass(built_in, BaseException)
    return any(_is_error(base, bases) for base in bases.get(name, ()))


def _is_pympsd_error(name: str, bases: dict[str, set[str]]) -> bool:
    return name == "PympsdError" or any(_is_pympsd_error(base, bases) for base in bases.get(name, ()))


def test_public_errors_have_one_base(modules: tuple[Module, ...]) -> None:
    bases: dict[str, set[str]] = {}
    for _, node in _classes(modules):
        names = (base.attr if isinstance(base, ast.Attribute) else base.id for base in _plain_bases(node))
        bases.setdefault(node.name, set()).update(names)
    errors = {name for name in bases if not name.startswith("_") and _is_error(name, bases)}
    assert len(errors) > 50
    assert {name for name in errors if not _is_pympsd_error(name, bases)} <= CONTROL_FLOW


def _plain_bases(node: ast.ClassDef) -> Iterator[ast.Name | ast.Attribute]:
    yield from (base for base in node.bases if isinstance(base, ast.Name | ast.Attribute))


def test_the_families_of_errors_are_few_and_each_states_who_raises_it(modules: tuple[Module, ...]) -> None:
    (errors,) = [module for module in modules if module.name == "pympsd.errors"]
    classes = [node for node in errors.tree.body if isinstance(node, ast.ClassDef)]
    families = [node for node in classes if [ast.unparse(base) for base in node.bases] == ["PympsdError"]]
    assert 0 < len(families) <= 10
    assert [node.name for node in families if "\n" not in (ast.get_docstring(node) or "")] == []
