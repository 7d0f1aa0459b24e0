"""Define the syntax tree of PTX text: functions, statements and operands, whose names are not resolved yet.

The parser produces a `Module`; lowering reads it. Names are still texts here, so that a name can stand for a
register, a variable, a label or a function, depending on where it is used. Every instruction, label and variable has
the line of the image it comes from, for refusals.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import define, field, frozen


@frozen
class Name:
    """A register, a variable, a label, a function or a special register."""

    text: str


@frozen
class Immediate:
    """A literal: an integer, or the bits of a float (form "f32" or "f64")."""

    value: int
    form: str = "int"


@frozen
class Address:
    """`[base+offset]`; an Immediate as the base is an absolute address."""

    base: Name | Immediate
    offset: int = 0


@frozen
class Vector:
    """`{a, b, ...}`"""

    items: tuple[Operand, ...]


@frozen
class Pair:
    """`d|p`: a result, and a predicate as a second result."""

    first: Name
    second: Name


@frozen
class Negated:
    """`!p`"""

    operand: Name


@frozen
class Negative:
    """`-r`: a register whose value the instruction negates."""

    operand: Name


@frozen
class Sum:
    """`symbol+4` outside of brackets."""

    base: Name
    offset: int


@frozen
class Element:
    """`symbol[2]` or `symbol[%r+1]` outside of brackets: an array's element, or the element's address.

    `offset` is in elements, like the index.
    """

    base: Name
    index: Name | None
    offset: int


@frozen
class Arguments:
    """`(a, b)`: the arguments or the results of a call."""

    items: tuple[Operand, ...]


Operand: TypeAlias = Name | Immediate | Address | Vector | Pair | Negated | Negative | Sum | Element | Arguments


@frozen
class Guard:
    """`@p` or `@!p` in front of an instruction."""

    register: str
    negated: bool


@frozen
class Opcode:
    """The opcode of an instruction: `types` are its type suffixes, `modifiers` all others, in order."""

    name: str
    modifiers: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def opcode(self) -> str:
        """The opcode as in the text, except that its types are last."""
        return ".".join((self.name, *self.modifiers, *self.types))


@frozen
class Instruction(Opcode):
    """One PTX instruction."""

    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int


@frozen
class Label:
    """`name:`"""

    name: str
    line: int


@frozen
class Registers:
    """`.reg .b32 %r<5>, %x;`, or with a `length` of more than 1 vectors: `.reg .v4 .b32 %v;`"""

    type: str
    names: tuple[str, ...]
    line: int
    length: int = 1


@frozen
class Targets:
    """`name: .branchtargets a, b;`"""

    name: str
    labels: tuple[str, ...]


@frozen
class Prototype:
    """`name: .callprototype (returns) _ (parameters);`, or `name: .calltargets f, g;` with the functions' names."""

    name: str
    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    targets: tuple[str, ...] = ()


@frozen
class Initialiser:
    """One initial value: a literal, or the address of the variable or function `symbol` plus the literal.

    If the value is only one byte of this, as in `0xff00(symbol+4)`, `shift` is the number of bits below the byte.
    """

    value: Immediate
    symbol: str | None = None
    generic: bool = False
    shift: int | None = None


@frozen
class Variable:
    """A variable in a state space. `count` is None for an unsized array (`extern .shared x[]`)."""

    name: str
    space: str
    type: str
    alignment: int
    element_size: int
    count: int | None
    extern: bool
    initial: tuple[Initialiser, ...]
    line: int
    managed: bool = False
    """Whether the host can access the variable, too (.attribute(.managed))."""
    key: str = ""
    """The key of a function's static variable in `Module.variables`; "" for every other variable."""

    @property
    def size(self) -> int:
        """The variable's size in bytes, 0 for an unsized array."""
        return self.element_size * (self.count or 0)


@frozen
class Scope:
    """`{ ... }` within a body."""

    statements: tuple[Statement, ...]


Statement: TypeAlias = Instruction | Label | Registers | Variable | Targets | Prototype | Scope


@define(eq=False)
class FunctionText:
    """The text of a function's body, with its braces, and the line of the image on which it begins."""

    text: str
    line: int


@define
class Function:
    """A .func or .entry; `body` is None for a declaration."""

    name: str
    is_entry: bool
    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    line: int
    body: FunctionText | None = None
    directives: dict[str, tuple[int, ...]] = field(factory=dict)


@frozen
class Target:
    """A .target. `architecture` is 90 for sm_90; `suffix` is "a" (only this architecture), "f" (its family) or ""."""

    architecture: int = 0
    suffix: str = ""
    line: int = 1

    def serves(self, capability: tuple[int, int]) -> bool:
        """Return whether code of this target runs on a device (PTX ISA, .target)."""
        major, minor = divmod(self.architecture, 10)
        if self.suffix == "a":
            return capability == (major, minor)
        return capability >= (major, minor) and not (self.suffix and capability[0] > major)

    def __str__(self) -> str:
        return f"sm_{self.architecture}{self.suffix}"


@define
class Module:
    """A parsed image."""

    version: tuple[int, int] = (0, 0)
    target: Target = Target()
    variables: dict[str, Variable] = field(factory=dict)
    functions: dict[str, Function] = field(factory=dict)
    aliases: dict[str, str] = field(factory=dict)
    """The function's name for each alias (.alias)."""
