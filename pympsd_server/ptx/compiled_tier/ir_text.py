"""Write the text of LLVM's intermediate representation: instructions, labels, calls, and the shapes of values.

The same code writes an operation for a scalar and for a vector of lanes, because the two differ only in types and
constants. A `Shape` distinguishes them:

    SCALAR.of("i32") == "i32"              Shape(32).of("i32") == "<32 x i32>"
    SCALAR.constant("i32", 7) == "7"       Shape(32).constant("i32", 7) == "splat (i32 7)"
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field, frozen

_MANGLED = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}
LIKELY = ", !prof !1"
UNLIKELY = ", !prof !0"
METADATA = '!0 = !{!"branch_weights", i32 1, i32 1000}\n!1 = !{!"branch_weights", i32 1000, i32 1}'


class NotCompiled(Exception):
    """An instruction or a kernel that this tier cannot compile, and therefore leaves to the NumPy tier."""


@frozen
class Shape:
    """The number of lanes of a value, or 0 for a scalar, which is the same in all lanes."""

    lanes: int

    def of(self, element: str) -> str:
        """Return the type of a value whose elements have the type `element`."""
        return f"<{self.lanes} x {element}>" if self.lanes else element

    def constant(self, element: str, value: int) -> str:
        """Return the text of an integer constant of this shape."""
        return f"splat ({element} {value})" if self.lanes else str(value)

    def mangled(self, element: str) -> str:
        """Return the type as it is written in names of intrinsics."""
        name = _MANGLED.get(element, element)
        return f"v{self.lanes}{name}" if self.lanes else name


SCALAR = Shape(0)
Typed = tuple[str, str]
"""A type and a value of this type."""


@define(slots=False)
class Text:
    """The lines of a function while they are written, with the declarations and tables that it needs."""

    lines: list[str] = field(factory=list, init=False)
    declared: set[str] = field(factory=set, init=False)
    tables: list[str] = field(factory=list, init=False)
    _count: int = field(default=0, init=False)

    def line(self, text: str) -> None:
        """Write an instruction without a result."""
        self.lines.append("  " + text)

    def value(self, text: str) -> str:
        """Write an instruction; return the name of its result."""
        self._count += 1
        self.lines.append(f"  %v{self._count} = {text}")
        return f"%v{self._count}"

    def label(self, hint: str) -> str:
        """Return a new label that begins with `hint`."""
        self._count += 1
        return f"{hint}{self._count}"

    def place(self, label: str) -> None:
        """Begin the basic block with a label."""
        self.lines.append(f"{label}:")

    def op(self, name: str, kind: str, *values: str) -> str:
        """Write an instruction whose operands have the same type; return the name of its result."""
        return self.value(f"{name} {kind} {', '.join(values)}")

    def cast(self, name: str, value: str, source: str, target: str) -> str:
        """Write a conversion; return the name of its result."""
        return self.value(f"{name} {source} {value} to {target}")

    def choose(self, shape: Shape, condition: str, kind: str, yes: str, no: str) -> str:
        """Write a selection between two values by a condition with a shape; return the name of its result."""
        return self.value(f"select {shape.of('i1')} {condition}, {kind} {yes}, {kind} {no}")

    def call(self, name: str, result: str, *arguments: Typed) -> str:
        """Write a call of a function, and declare the function; return the name of its result, or "" without one."""
        plain = ", ".join(_strip_attributes(kind) for kind, _ in arguments)
        self.declared.add(f"declare {result} @{name}({plain})")
        text = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})"
        if result == "void":
            self.line(text)
            return ""
        return self.value(text)

    def intrinsic(self, name: str, element: str, shape: Shape, *values: str) -> str:
        """Write a call of an intrinsic whose operands and result have the same type."""
        kind = shape.of(element)
        return self.call(f"llvm.{name}.{shape.mangled(element)}", kind, *((kind, v) for v in values))

    def branch(self, condition: str, yes: str, no: str, hint: str = "") -> None:
        """Write a conditional branch."""
        self.line(f"br i1 {condition}, label %{yes}, label %{no}{hint}")

    def jump(self, label: str) -> None:
        """Write an unconditional branch."""
        self.line(f"br label %{label}")

    def continue_at(self, label: str) -> None:
        """End the basic block with a branch to a label, and begin the block with that label."""
        self.jump(label)
        self.place(label)

    def phi(self, kind: str, *ways: Typed) -> str:
        """Write a phi, which selects a value by the label from which control comes; `ways` are (value, label)."""
        return self.value(f"phi {kind} " + ", ".join(f"[{value}, %{label}]" for value, label in ways))

    def field(self, base: str, offset: int) -> str:
        """Return a pointer to the byte of a structure at an offset."""
        return self.value(f"getelementptr i8, ptr {base}, i64 {offset}") if offset else base

    def load(self, kind: str, pointer: str, align: int = 0) -> str:
        """Write a load; return the name of its result."""
        return self.value(f"load {kind}, ptr {pointer}" + (f", align {align}" if align else ""))

    def store(self, kind: str, value: str, pointer: str, align: int = 0) -> None:
        """Write a store."""
        self.line(f"store {kind} {value}, ptr {pointer}" + (f", align {align}" if align else ""))

    def shuffle(self, kind: str, first: str, second: str, picked: Iterable[int]) -> str:
        """Write a vector of the elements of two vectors at the picked indices."""
        indices = [f"i32 {index}" for index in picked]
        shape = f"<{len(indices)} x i32>"
        return self.value(f"shufflevector {kind} {first}, {kind} {second}, {shape} <{', '.join(indices)}>")

    def splat(self, value: str, element: str, shape: Shape) -> str:
        """Write a vector of equal elements, or if the shape is a scalar return the value."""
        if not shape.lanes:
            return value
        kind = shape.of(element)
        single = self.value(f"insertelement {kind} poison, {element} {value}, i64 0")
        lanes = f"<{shape.lanes} x i32> zeroinitializer"
        return self.value(f"shufflevector {kind} {single}, {kind} poison, {lanes}")

    def fence_compiler(self) -> None:
        """Write a fence, across which LLVM does not move accesses to memory."""
        self.line('call void asm sideeffect "", "~{memory}"()')


def _strip_attributes(kind: str) -> str:
    """Return the type of an argument without its alignment."""
    return kind.split(" align ")[0]


def sequence(lanes: int, element: str, step: int = 1, first: int = 0) -> str:
    """Return the constant <first, first + step, ...>."""
    return "<" + ", ".join(f"{element} {first + step * lane}" for lane in range(lanes)) + ">"
