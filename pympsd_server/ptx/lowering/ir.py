"""Define the intermediate form of one kernel: a flat list of operations with every name resolved.

An `Operation` is a PTX instruction whose operands are registers (numbers, unique in the kernel), symbols (a state
space, a variable and an offset), memory operands, immediates or labels. `Code` is a kernel's list of operations, with
the types of its registers and its variables. Both tiers start from it. Only the lists of `Code` are changed in place,
while a kernel is lowered.

Liveness and dead code depend on `registers_read` and `registers_written`. Both must therefore handle every
instruction with an unusual shape: several results, an accumulator, the carry flag.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import define, field, frozen

from pympsd_server.ptx.syntax.tree import Immediate, Opcode, Variable


@frozen
class Register:
    """A register of the kernel, by its index in `Code.register_types`."""

    number: int


@frozen
class Sink:
    """`_`: an unused result."""


@frozen
class Special:
    """A special register such as %tid.x."""

    name: str


@frozen
class Symbol:
    """The address of a variable or a kernel parameter, plus an offset. A call's .param is in the space "call"."""

    space: str
    name: str
    offset: int = 0


@frozen
class Memory:
    """`[base+offset]`; the offset is in bytes."""

    base: Register | Symbol | Immediate
    offset: int = 0


@frozen
class Group:
    """`{a, b, ...}`: the elements of a vector, or other operands that belong together."""

    items: tuple[Argument, ...]


@frozen
class Both:
    """`d|p`, two results."""

    first: Argument
    second: Argument


@frozen
class Not:
    """`!p`: a negated predicate."""

    register: Register


@frozen
class Part:
    """`r.b0`: a part of a register, or `r.h10`: the parts that a SIMD instruction takes."""

    register: Register
    selector: str


@frozen
class Negative:
    """`-r`: an operand that the instruction negates."""

    argument: Register | Part


@frozen
class Target:
    """A label, for a branch or in a "label" operation."""

    label: str


Argument: TypeAlias = (
    Register | Sink | Special | Symbol | Memory | Group | Both | Not | Part | Negative | Target | Immediate
)


@frozen
class Predicate:
    """The guard of an operation: it takes effect for threads whose register is true, or false if `negated`."""

    register: Register
    negated: bool


@frozen
class Operation(Opcode):
    """One instruction (see `syntax.tree.Instruction`), or a label, whose name is "label"."""

    operands: tuple[Argument, ...]
    guard: Predicate | None
    line: int

    @property
    def type(self) -> str:
        """The last type suffix, or "" without any."""
        return self.types[-1] if self.types else ""

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The operands after the first, which is the result of most instructions."""
        return self.operands[1:]

    def has(self, modifier: str) -> bool:
        """Return whether the opcode has a modifier."""
        return modifier in self.modifiers

    def one_of(self, *choices: str) -> str:
        """Return the first modifier that is among `choices`, or ""."""
        return next((m for m in self.modifiers if m in choices), "")


SPACES = {s: s for s in ("global", "const", "shared", "local", "param")}
SPACES |= {"shared::cta": "shared", "shared::cluster": "shared", "param::entry": "param", "param::func": "param"}
"""The state space that each modifier selects."""


def space_of(operation: Operation) -> str:
    """Return the state space of a memory access: "generic" without a modifier for it."""
    return next((SPACES[m] for m in operation.modifiers if m in SPACES), "generic")


def is_barrier(operation: Operation | None) -> bool:
    """Return whether an operation, such as a block's terminator, is a barrier of the thread block."""
    return operation is not None and operation.name in ("bar", "barrier")


def plain(name: str, types: tuple[str, ...], operands: tuple[Argument, ...], line: int) -> Operation:
    """Return an operation that has neither modifiers nor a guard."""
    return Operation(name, (), types, operands, None, line)


def label(name: str, line: int) -> Operation:
    """Return the operation that marks a label."""
    return plain("label", (), (Target(name),), line)


@define
class Code:
    """A kernel's operations, its variables, and the types of its registers."""

    name: str
    operations: list[Operation] = field(factory=list)
    register_types: list[str] = field(factory=list)
    shared: dict[str, Variable] = field(factory=dict)
    local: dict[str, Variable] = field(factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(factory=dict)
    carry: Register = Register(0)
    # The stack pointer, an address in local memory, or None if the kernel does not need one.
    stack: Register | None = None
    # The size of the kernel's parameters in bytes.
    parameter_bytes: int = 0
    # Whether .target and .version allow loads and stores of 32 bytes.
    wide_accesses: bool = False
    # The bytes of reserved shared memory before the kernel's own, or 0 if it does not read their addresses.
    reserved_shared_bytes: int = 0

    def new_register(self, type_name: str) -> Register:
        """Add a register of a type, and return it."""
        self.register_types.append(type_name)
        return Register(len(self.register_types) - 1)


# The operations without a result. The first operand of any other operation is its result (but see `has_result`).
WITHOUT_RESULT_NAMES = (
    "st red bra brx exit bar barrier trap membar fence nanosleep prefetch prefetchu discard applypriority "
    "label pmevent brkpt system:assertfail system:free system:set_conditional procreturn griddepcontrol setmaxnreg "
    "cp stmatrix sust tensormap"
)
WITHOUT_RESULT = frozenset(WITHOUT_RESULT_NAMES.split())


_WITH_STATE = frozenset({"arrive", "arrive_drop", "test_wait", "try_wait", "pending_count"})


def has_result(operation: Operation) -> bool:
    """Return whether the first operand of an operation is its result."""
    if is_barrier(operation):
        return operation.has("red")
    if operation.name == "mbarrier":
        return bool(_WITH_STATE.intersection(operation.modifiers)) and len(operation.operands) > 1
    if operation.name == "wgmma":
        return operation.has("mma_async")
    if operation.name == "wmma":
        return not operation.has("store")
    return operation.name not in WITHOUT_RESULT


def items_of(argument: Argument) -> tuple[Argument, ...]:
    """Return the items of a group, or the operand itself as the only item."""
    return argument.items if isinstance(argument, Group) else (argument,)


def registers_in(argument: Argument) -> list[Register]:
    """Return the registers that an operand names."""
    match argument:
        case Register():
            return [argument]
        case Memory(base=Register() as base):
            return [base]
        case Not(register=register) | Part(register=register):
            return [register]
        case Negative(argument=inner):
            return registers_in(inner)
        case Group(items=items):
            return [r for item in items for r in registers_in(item)]
        case Both(first=first, second=second):
            return registers_in(first) + registers_in(second)
    return []


def registers_written(operation: Operation, carry: Register) -> list[Register]:
    """Return the registers that an operation sets; with .cc `carry` is one of them."""
    results = registers_in(operation.operands[0]) if has_result(operation) and operation.operands else []
    return [*results, carry] if operation.has("cc") else results


def registers_read(operation: Operation, carry: Register) -> list[Register]:
    """Return the registers whose values an operation needs.

    With a guard it needs its results, too, because they may keep their values.
    """
    # wgmma adds to the previous value of its result.
    start = 1 if has_result(operation) and operation.name != "wgmma" else 0
    registers = [r for operand in operation.operands[start:] for r in registers_in(operand)]
    if operation.name in ("addc", "subc", "madc"):
        registers.append(carry)
    if operation.guard is not None:
        registers.append(operation.guard.register)
        registers += registers_written(operation, carry)
    return registers
