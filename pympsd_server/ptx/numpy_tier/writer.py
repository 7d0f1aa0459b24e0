"""Write the source of a basic block's Python function: registers, constants and results.

The function takes the batch state `B`, the threads `T` that run and the block's live-in registers, and returns the
live-in registers of each successor. For example

    @%p add.f32 %f3, %f1, %f2;     becomes     v1 = r1 + r2
                                               v2 = select(r4, v1, r3)

- A register is the name of the expression that was last assigned to it, and this expression's dtype. Values are never
  changed in place, so two registers can share an array. A use with another dtype of the same width is a view.
- A value is a NumPy scalar as long as all threads share it, and an array of one element per thread otherwise. The
  generated code is the same for both; loop counters and kernel parameters stay scalars.
- A guard selects between the new and the old value. Loads, stores and atomics take the guard as a mask instead.
- Constants, and the addresses of variables, are names that are bound when the functions are created for a module.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from attrs import define, field

from pympsd_server.ptx.isa.datatypes import BOOL, DTYPES, U32, U64, DType, dtype_name
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.lowering.ir import (
    Argument,
    Both,
    Code,
    Memory,
    Not,
    Operation,
    Register,
    Sink,
    Special,
    Symbol,
    items_of,
)
from pympsd_server.ptx.numpy_tier.literals import immediate_value
from pympsd_server.ptx.syntax.tree import Immediate

CONSTANTS = "$constants"
"""A key in place of a variable's name, for the address at which the module's constants begin."""


@define
class Constants:
    """The scalars and addresses to which a kernel's generated code refers by name."""

    names: dict[tuple[str, str], str] = field(factory=dict)
    values: dict[str, object] = field(factory=dict)
    addresses: dict[tuple[str, int], str] = field(factory=dict)
    """The names of addresses, by (variable, offset); their values are known when a module is linked."""

    def scalar(self, value: np.generic) -> str:
        """Return the name of a scalar; add the scalar if it is new."""
        key = (value.dtype.str, value.tobytes().hex())
        if key not in self.names:
            self.names[key] = f"K{len(self.names)}"
            self.values[self.names[key]] = value
        return self.names[key]

    def address(self, variable: str, offset: int) -> str:
        """Return the name of a variable's address plus an offset; add it if it is new."""
        return self.addresses.setdefault((variable, offset), f"A{len(self.addresses)}")


@define
class Writer:
    """The lines of a block's function while emitters write them."""

    code: Code
    constants: Constants
    offsets: Mapping[tuple[str, str], int]
    """The offsets of shared and local variables in their frames; -1 for dynamic shared memory."""
    live_in: tuple[int, ...]
    lines: list[str] = field(factory=list)
    current: dict[int, tuple[str, DType]] = field(factory=dict)
    views: dict[tuple[str, DType], str] = field(factory=dict)
    operation: Operation | None = None
    guard: str | None = None
    temporaries: int = 0

    def __attrs_post_init__(self) -> None:
        for number in self.live_in:
            self.current[number] = (f"r{number}", self.register_dtype(number))

    def register_dtype(self, number: int) -> DType:
        """Return the dtype with which a register is declared."""
        return DTYPES[self.code.register_types[number]]

    def refuse(self, why: str = "") -> InvalidPtx:
        """Return an InvalidPtx for the operation, with its opcode, its line and a reason."""
        assert self.operation is not None
        text = f"unsupported instruction {self.operation.opcode}"
        return InvalidPtx(f"{text}: {why}" if why else text, self.operation.line)

    def refuse_if(self, condition: object, why: str = "") -> None:
        """Raise InvalidPtx for the operation if a condition is true."""
        if condition:
            raise self.refuse(why)

    def refuse_count_if(self, condition: object) -> None:
        """Raise InvalidPtx for the operation's number of operands if a condition is true."""
        assert self.operation is not None
        self.refuse_if(condition, f"{len(self.operation.operands)} operands")

    def name(self, letter: str = "v") -> str:
        """Return a name that the function has not used yet."""
        self.temporaries += 1
        return f"{letter}{self.temporaries}"

    def keep(self, expression: str) -> str:
        """Write a line that assigns `expression` to a new name; return the name."""
        if expression.isidentifier():
            return expression
        name = self.name()
        self.lines.append(f"{name} = {expression}")
        return name

    def items(self, argument: Argument, count: int, why: str = "vector of the wrong length") -> tuple[Argument, ...]:
        """Return the items of an operand, one without braces. Raises InvalidPtx unless there are `count` items."""
        items = items_of(argument)
        self.refuse_if(len(items) != count, why)
        return items

    def run(self, statement: str) -> None:
        """Write a statement."""
        self.lines.append(statement)

    def load(self, space: str, address: str, dtype: DType, align: int) -> str:
        """Write a checked load of one element for each thread; return the name of the result."""
        return self.keep(f"load(B, T, {space!r}, {address}, {dtype_name(dtype)}_t, {align}, {self.guard})")

    def store(self, space: str, address: str, dtype: DType, align: int, values: Iterable[str]) -> None:
        """Write a checked store of consecutive elements for each thread; "None" leaves an element out."""
        elements = f"({', '.join(values)},)"
        self.run(f"store(B, T, {space!r}, {address}, {dtype_name(dtype)}_t, {align}, {elements}, {self.guard})")

    def atomic(
        self, space: str, function: str, address: str, dtype: DType, align: int, values: Iterable[str], used: bool
    ) -> str:
        """Write an atomic operation for each thread; return the name of the old values if `used`, else ""."""
        place, operands = f"{space!r}, {function!r}, {address}", f"({', '.join(values)},)"
        call = f"atomic(B, T, {place}, {dtype_name(dtype)}_t, {align}, {operands}, {used}, {self.guard})"
        if used:
            return self.keep(call)
        self.run(call)
        return ""

    def begin(self, operation: Operation) -> None:
        """Start an operation, to which the lines that follow belong, and compute its guard."""
        self.operation = operation
        self.guard = None
        if operation.guard is not None:
            value = self.value(operation.guard.register, BOOL)
            self.guard = self.keep(f"~{value}") if operation.guard.negated else value

    def scalar(self, value: int | float | bool, dtype: DType) -> str:
        """Return the name of a constant."""
        return self.constants.scalar(dtype.type(value))

    def value(self, operand: Argument, dtype: DType) -> str:
        """Return a name for an operand's bits as `dtype`; if its register is wider, the upper bits are cut off."""
        match operand:
            case Register(number):
                return self._register(number, dtype)
            case Not(register):
                self.refuse_if(dtype != BOOL, "predicate instead of a value")
                return self.keep(f"~{self._register(register.number, BOOL)}")
            case Immediate():
                return self.constants.scalar(immediate_value(operand, dtype))
            case Special(name):
                return self.keep(f"special(B, T, {name!r}, {dtype_name(dtype)}_t)")
            case Symbol():
                return self._symbol(operand, dtype)
        raise self.refuse("operand")

    def input(self, index: int, dtype: DType) -> str:
        """Return the `value` of the operation's operand at an index."""
        assert self.operation is not None
        return self.value(self.operation.operands[index], dtype)

    def values(self, operands: Iterable[Argument], dtype: DType) -> list[str]:
        """Return the `value` of each operand."""
        return [self.value(operand, dtype) for operand in operands]

    def tuple_of(self, operands: Iterable[Argument], dtype: DType) -> str:
        """Return the text of a tuple with the values of operands."""
        return f"({', '.join(self.values(operands, dtype))},)"

    def _register(self, number: int, dtype: DType) -> str:
        """Return the name of a register's value as `dtype`; write a view or a cut if its dtype differs."""
        if number not in self.current:
            declared = self.register_dtype(number)
            self.current[number] = (self.scalar(0, declared), declared)
        name, current = self.current[number]
        if current == dtype:
            return name
        self.refuse_if("b" in (current.kind, dtype.kind), "predicate instead of a value, or the other way round")
        if current.itemsize == dtype.itemsize:
            return self._view(name, dtype)
        if current.kind == "f":
            name = self._view(name, np.dtype(f"u{current.itemsize}"))
        if dtype.kind == "f":
            cut = self.keep(f"{name}.astype(d_u{dtype.itemsize})")
            return self._view(cut, dtype)
        return self.keep(f"{name}.astype({dtype_name(dtype)})")

    def _view(self, name: str, dtype: DType) -> str:
        key = (name, dtype)
        if key not in self.views:
            self.views[key] = self.keep(f"{name}.view({dtype_name(dtype)})")
        return self.views[key]

    def _symbol(self, symbol: Symbol, dtype: DType) -> str:
        if symbol.space in ("global", "const"):
            self.refuse_if(
                dtype.itemsize != 8 and not (symbol.space == "const" and dtype.itemsize == 4),
                "address of a global in less than 64 bits",
            )
            address = self.constants.address(symbol.name, symbol.offset)
            return self._view(address if dtype.itemsize == 8 else self.keep(f"{address}.astype(d_u4)"), dtype)
        start = 0 if symbol.space == "param" else self.offsets[symbol.space, symbol.name]
        if symbol.space == "shared" and start < 0:
            base = f"d_u8(B.dynamic_offset + {symbol.offset} & {2**64 - 1}).astype(d_u{dtype.itemsize})"
            return self._view(self.keep(base), dtype)
        return self.constants.scalar(immediate_value(Immediate(start + symbol.offset), dtype))

    def assign(self, target: Argument, expression: str, dtype: DType) -> None:
        """Assign an expression of `dtype` to a register where the guard is true, extended to the register's width.

        `_` as the target evaluates the expression only. Raises InvalidPtx for a target that cannot have the value.
        """
        if isinstance(target, Sink):
            self.keep(expression)
            return
        if not isinstance(target, Register):
            raise self.refuse("the result is not a register")
        declared = self.register_dtype(target.number)
        self.refuse_if(
            (declared.kind == "b") != (dtype.kind == "b"), "predicate instead of a value, or the other way round"
        )
        self.refuse_if(dtype.itemsize > declared.itemsize, "the result is wider than its register")
        if dtype.itemsize < declared.itemsize:
            name = self.keep(expression)
            if dtype.kind == "f":
                name = self._view(name, np.dtype(f"u{dtype.itemsize}"))
            wide = np.dtype(f"{'i' if dtype.kind == 'i' else 'u'}{declared.itemsize}")
            dtype, expression = wide, f"{name}.astype({dtype_name(wide)})"
        if self.guard is not None:
            # Read the old value after writing `expression`, which may itself need it.
            new = self.keep(expression)
            expression = f"select({self.guard}, {new}, {self._register(target.number, dtype)})"
        self.current[target.number] = (self.keep(expression), dtype)

    def set_result(self, expression: str, dtype: DType) -> None:
        """Assign an expression of `dtype` to the operation's first operand."""
        assert self.operation is not None
        self.assign(self.operation.operands[0], expression, dtype)

    def assign_both(self, target: Argument, first: str, second: str) -> None:
        """Assign a word and a predicate to a target `d|p`, or only the word to a target `d`."""
        if isinstance(target, Both):
            self.assign(target.first, first, U32)
            self.assign(target.second, second, BOOL)
        else:
            self.assign(target, first, U32)

    def address_of(self, memory: Argument) -> str:
        """Return the name of a memory operand's address."""
        return self.displace(*self.split_address(memory))

    def displace(self, base: str, offset: int) -> str:
        """Return the name of an address plus a constant."""
        return self.keep(f"displace({base}, {offset})") if offset else base

    def split_address(self, memory: Argument) -> tuple[str, int]:
        """Return (base, constant offset) of a memory operand.

        The base has 32 bits if it is a register of 32 bits, and 64 bits otherwise.
        """
        if not isinstance(memory, Memory):
            raise self.refuse("expected an address")
        base = memory.base
        if isinstance(base, Immediate):
            return self.scalar((base.value + memory.offset) & (2**64 - 1), U64), 0
        if isinstance(base, Symbol):
            return self.value(base, U64), memory.offset
        width = self.register_dtype(base.number).itemsize
        self.refuse_if(width < 4, "an address of less than 32 bits")
        return self.value(base, U64 if width == 8 else U32), memory.offset

    def register_value(self, number: int) -> str:
        """Return the name of a register's current value, in the dtype with which it is declared."""
        return self._register(number, self.register_dtype(number))

    def text(self, returned: str) -> list[str]:
        """Return the function's lines with a return statement for `returned`."""
        return [*self.lines, f"return {returned}"]
