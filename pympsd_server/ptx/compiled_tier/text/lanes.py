"""Read and set the registers and operands of one kernel as values of LLVM.

A varying register is a vector of integers, one element for each lane; a uniform register is a scalar. A varying
predicate is an integer with one bit for each lane, so that the mask of lanes that branch is one AND. Registers
contain the bits of floats. Every register is an `alloca`, which LLVM turns into values.

An instruction uses its operands in the shape of its result (`shape_of`). `assign` keeps the old value in lanes that
do not execute the instruction, if its guard is false or if pending lanes may need the value according to the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define, field

from pympsd_server.ptx.compiled_tier.ir_text import SCALAR, NotCompiled, Shape, Text, sequence
from pympsd_server.ptx.compiled_tier.native_runtime import CONSTANTS, Worker, offset_of
from pympsd_server.ptx.compiled_tier.planning.analysis import WarpPlan
from pympsd_server.ptx.compiled_tier.text.expressions import Expression
from pympsd_server.ptx.isa.datatypes import BOOL, DTYPES, DType, unsigned_of
from pympsd_server.ptx.isa.machine import AXES, TIMERS, WARP
from pympsd_server.ptx.lowering.ir import (
    Argument,
    Code,
    Not,
    Operation,
    Register,
    Sink,
    Special,
    Symbol,
    registers_in,
)
from pympsd_server.ptx.numpy_tier.literals import immediate_value
from pympsd_server.ptx.syntax.tree import Immediate

BITS: Final = {name: d.itemsize * 8 if d.kind != "b" else 1 for name, d in DTYPES.items()}
FLOATS: Final = {"f16": "half", "f32": "float", "f64": "double"}

BANK_ALIGNMENT: Final = 64
"""The alignment of a frame, and of the bank in it, in bytes."""


def is_signed(type_name: str) -> bool:
    """Return whether values of a type are sign-extended."""
    return type_name[0] == "s"


def _type_name(dtype: DType) -> str:
    """Return the PTX name of a dtype other than a predicate's."""
    return {"i": "s"}.get(dtype.kind, dtype.kind) + str(8 * dtype.itemsize)


@define(slots=False)
class Lanes(Text):
    """The part of a kernel's writer for registers and operands.

    `operation` is the operation that is being written, and `at` the index of its segment.
    """

    code: Code
    plan: WarpPlan
    width: int
    """The number of lanes of a vector."""
    whole_warps: bool
    """Whether all warps of a block have all their lanes."""
    has_masks: bool
    """Whether the processor has mask registers for 32 lanes, and with them masked stores, gathers and scatters."""
    offsets: dict[tuple[str, str], int]
    """The offsets of shared and local variables in their frames; -1 for dynamic shared memory."""
    bank: dict[int, int] = field(factory=dict, init=False)
    """The offset of each register that is in the bank (fragment_bank.py)."""
    resident: set[int] = field(factory=set, init=False)
    """The registers that are in the frame, outside of the bank, while the kernel runs (dispatch_text.py)."""
    globals_used: list[tuple[str, int]] = field(factory=list, init=False)
    """The variables and offsets whose addresses the kernel loads, in the order of its table of addresses."""
    at: int = field(default=0, init=False)
    first: bool = field(default=False, init=False)
    """Whether an operation is being written only for lane 0, as a scalar (sequences.py)."""
    operation: Operation | None = field(default=None, init=False)
    raw: dict[int, Expression] = field(factory=dict, init=False)
    """The floats that this segment has assigned to registers, by register, before their NaN were made canonical.

    Arithmetic reads them, so that a sequence of operations has no selections on its critical path.
    """

    def __attrs_post_init__(self) -> None:
        self.vector = Shape(self.width)
        self.mask_type = f"i{self.width}"

    def refuse(self, why: str = "") -> NotCompiled:
        """Return a NotCompiled, which leaves the operation to the NumPy tier."""
        return NotCompiled(f"{self.operation.opcode if self.operation else ''} {why}".strip())

    def refuse_if(self, condition: object, why: str = "") -> None:
        """Raise NotCompiled, which leaves the operation to the NumPy tier, if a condition is true."""
        if condition:
            raise self.refuse(why)

    # --- values of registers

    def is_varying(self, number: int) -> bool:
        """Return whether a register is a vector. While an operation is written only for lane 0, none is."""
        return number in self.plan.varying and not self.first

    def home(self, number: int) -> str:
        """Return the name of the variable that contains a register, or lane 0 of a register."""
        if number in self.bank:
            return f"%b{self.bank[number]}"
        return f"%f{number}" if self.first and number in self.plan.varying else f"%r{number}"

    def register_bits(self, number: int) -> int:
        """Return the number of bits of a register, 1 for a predicate."""
        return BITS[self.code.register_types[number]]

    def storage(self, number: int) -> str:
        """Return the type of a register's variable."""
        bits = self.register_bits(number)
        if self.is_varying(number):
            return self.mask_type if bits == 1 else self.vector.of(f"i{bits}")
        return f"i{bits}"

    def read(self, number: int) -> str:
        """Load a register in the type of its variable."""
        return self.load(self.storage(number), self.home(number), self._alignment(number))

    def _alignment(self, number: int) -> int:
        """Return the alignment of a register's variable in bytes; 0 is the alignment of its type."""
        return BANK_ALIGNMENT if number in self.bank else 4 * (number in self.resident)

    def use(self, argument: Argument, type_name: str, shape: Shape) -> str:
        """Return an operand's bits as an integer of the type's width, in a shape, or raise NotCompiled."""
        bits = BITS[type_name]
        if isinstance(argument, Register):
            return self._use_register(argument.number, bits, shape)
        if isinstance(argument, Immediate):
            value = immediate_value(argument, DTYPES[type_name])
            return shape.constant(f"i{bits}", int.from_bytes(value.tobytes(), "little"))
        if isinstance(argument, Special):
            value, varying, own = self.special(argument.name)
            if varying and self.first:
                value, varying = self.value(f"extractelement {self.vector.of(f'i{own}')} {value}, i64 0"), False
            own_shape = self.vector if varying else SCALAR
            if bits != own:
                value = self.cast(
                    "zext" if bits > own else "trunc", value, own_shape.of(f"i{own}"), own_shape.of(f"i{bits}")
                )
            return value if varying else self.splat(value, f"i{bits}", shape)
        if isinstance(argument, Symbol):
            return self.splat(self.symbol(argument, bits), f"i{bits}", shape)
        raise self.refuse("operand")

    def _use_register(self, number: int, bits: int, shape: Shape) -> str:
        own = self.register_bits(number)
        if 1 in (own, bits):
            raise self.refuse("predicate")
        varying = self.is_varying(number)
        own_shape, value = self.vector if varying else SCALAR, self.read(number)
        if own != bits:
            extend = "sext" if is_signed(self.code.register_types[number]) else "zext"
            name = "trunc" if own > bits else extend
            value = self.cast(name, value, own_shape.of(f"i{own}"), own_shape.of(f"i{bits}"))
        if varying and not shape.lanes:
            raise self.refuse("a vector where a scalar is needed")
        return value if varying else self.splat(value, f"i{bits}", shape)

    def expression(self, argument: Argument, dtype: DType, shape: Shape) -> Expression:
        """Return an operand, or a predicate, as an Expression of a dtype."""
        if dtype == BOOL:
            return Expression(self, shape, BOOL, self.predicate(argument, shape))
        bits = Expression(self, shape, unsigned_of(dtype), self.use(argument, _type_name(dtype), shape))
        return bits.view(dtype)

    def symbol(self, symbol: Symbol, bits: int) -> str:
        """Return the address of a variable as a scalar."""
        if symbol.space in ("global", "const"):
            if bits < 64:
                raise self.refuse("address of a global in less than 64 bits")
            return self.global_address(symbol.name, symbol.offset)
        if symbol.space == "param":
            return str(symbol.offset)
        start = self.offsets[symbol.space, symbol.name]
        if start >= 0:
            return str(start + symbol.offset)
        value = self.op("add", "i64", "%dynamic", str(symbol.offset))
        return self.cast("trunc", value, "i64", f"i{bits}") if bits < 64 else value

    def global_address(self, name: str, offset: int) -> str:
        """Return the address of a module's variable, which differs between clients, as a scalar."""
        if (name, offset) not in self.globals_used:
            self.globals_used.append((name, offset))
        index = self.globals_used.index((name, offset))
        return self.load("i64", self.field("%addresses", 8 * index))

    # --- predicates and masks

    def predicate(self, argument: Argument, shape: Shape) -> str:
        """Return a predicate as i1 or as a vector of i1."""
        if isinstance(argument, Immediate):
            return shape.constant("i1", int(argument.value != 0))
        register = argument.register if isinstance(argument, Not) else argument
        if not isinstance(register, Register) or self.register_bits(register.number) != 1:
            raise self.refuse("no predicate")
        value = self.read(register.number)
        varying = self.is_varying(register.number)
        if isinstance(argument, Not):
            value = self.op("xor", self.mask_type if varying else "i1", value, "-1")
        if varying and not shape.lanes:
            raise self.refuse("a vector where a scalar is needed")
        return self.as_lanes(value) if varying else self.splat(value, "i1", shape)

    def as_lanes(self, mask: str) -> str:
        """Convert a mask to a vector of i1."""
        return self.cast("bitcast", mask, self.mask_type, self.vector.of("i1"))

    def as_mask(self, lanes: str) -> str:
        """Convert a vector of i1 to a mask."""
        return self.cast("bitcast", lanes, self.vector.of("i1"), self.mask_type)

    def as_word(self, mask: str) -> str:
        """Convert a mask to i32."""
        return self.cast("zext", mask, self.mask_type, "i32") if self.width < WARP else mask

    def current(self) -> str:
        """Return the mask of the running lanes."""
        return self.load(self.mask_type, "%cur")

    def guard_mask(self, operation: Operation) -> str:
        """Return the mask of the lanes whose guard is true."""
        guard = operation.guard
        assert guard is not None
        mask = self.as_mask(self.predicate(guard.register, self.vector))
        return self.op("xor", self.mask_type, mask, "-1") if guard.negated else mask

    def uniform_guard(self, operation: Operation) -> str:
        """Return a guard, which must be the same in all lanes, as i1."""
        guard = operation.guard
        assert guard is not None
        value = self.predicate(guard.register, SCALAR)
        return self.op("xor", "i1", value, "true") if guard.negated else value

    def active(self) -> str:
        """Return the mask of the lanes that execute the operation."""
        assert self.operation is not None
        mask = self.current()
        if self.operation.guard is None:
            return mask
        return self.op("and", self.mask_type, mask, self.guard_mask(self.operation))

    # --- results

    def shape_of(self, *targets: Argument) -> Shape:
        """Return the shape in which an operation with these results is computed: a vector if one of them varies."""
        varying = any(self.is_varying(r.number) for target in targets for r in registers_in(target))
        return self.vector if varying else SCALAR

    def assign(self, target: Argument, value: str, type_name: str, shape: Shape) -> None:
        """Assign an integer of a type's width to a register, extended to the register's width."""
        if isinstance(target, Sink):
            return
        if not isinstance(target, Register):
            raise self.refuse("the result is not a register")
        self.raw.pop(target.number, None)
        own, bits = self.register_bits(target.number), BITS[type_name]
        if own == 1 or own < bits:
            raise self.refuse("width of the result")
        varying = self.is_varying(target.number)
        own_shape = self.vector if varying else SCALAR
        if varying and not shape.lanes:
            value = self.splat(value, f"i{bits}", self.vector)
        if own > bits:
            extend = "sext" if is_signed(type_name) else "zext"
            value = self.cast(extend, value, own_shape.of(f"i{bits}"), own_shape.of(f"i{own}"))
        kind, condition = self.storage(target.number), self._condition(target.number, own_shape)
        if condition:
            value = self.choose(own_shape, condition, kind, value, self.read(target.number))
        self.store(kind, value, self.home(target.number), self._alignment(target.number))

    def assign_expression(self, target: Argument, value: Expression) -> None:
        """Assign a value to a register or a predicate."""
        if value.dtype == BOOL:
            self.assign_predicate(target, value.name, value.shape)
            return
        bits = value.view(unsigned_of(value.dtype)).name
        self.assign(target, bits, _type_name(value.dtype), value.shape)
        if value.raw and isinstance(target, Register) and self._is_always_assigned(target.number, value):
            self.raw[target.number] = value.replace(value.dtype, value.raw)

    def _is_always_assigned(self, number: int, value: Expression) -> bool:
        """Return whether a register takes the value in all lanes, and its variable has the value's type."""
        has_guard = self.operation is not None and self.operation.guard is not None
        if has_guard or number in self.plan.blend[self.at] or number in self.bank or self.first:
            return False
        return self.storage(number) == value.shape.of(f"i{value.bits}")

    def _condition(self, number: int, shape: Shape) -> str:
        """Return the condition under which a register takes its new value in a lane, or "" if it always may."""
        operation = self.operation
        guard = None if operation is None else operation.guard
        if not shape.lanes:
            return "" if guard is None or operation is None else self.uniform_guard(operation)
        if number in self.plan.blend[self.at]:
            return self.as_lanes(self.active())
        return "" if guard is None or operation is None else self.as_lanes(self.guard_mask(operation))

    def assign_predicate(self, target: Argument, value: str, shape: Shape) -> None:
        """Assign i1 or a vector of i1 to a predicate."""
        if isinstance(target, Sink):
            return
        if not isinstance(target, Register) or self.register_bits(target.number) != 1:
            raise self.refuse("the result is not a predicate")
        varying = self.is_varying(target.number)
        condition = self._condition(target.number, self.vector if varying else SCALAR)
        if not varying:
            if condition:
                value = self.choose(SCALAR, condition, "i1", value, self.read(target.number))
            self.store("i1", value, f"%r{target.number}")
            return
        value = self.as_mask(value if shape.lanes else self.splat(value, "i1", self.vector))
        if condition:
            chosen, kind = self.as_mask(condition), self.mask_type
            preserved = self.op("and", kind, self.read(target.number), self.op("xor", kind, chosen, "-1"))
            value = self.op("or", kind, self.op("and", kind, value, chosen), preserved)
        self.store(self.mask_type, value, f"%r{target.number}")

    # --- special registers

    def special(self, text: str) -> tuple[str, bool, int]:
        """Return a special register's value, whether it is a vector, and its number of bits."""
        name, _, axis = text[1:].partition(".")
        index = AXES.index(axis) if axis else 0
        if name == "tid":
            return (f"%tid{index}s", False, 32) if self.plan.rows and index else (f"%tid{index}", True, 32)
        if name in TIMERS:
            return self._timer(name)
        if hasattr(Worker, name):  # a field of the worker has the register's name
            return self.load("i32", self.field("%ctx", offset_of(name) + 4 * index)), False, 32
        if name in CONSTANTS:
            return self.load("i32", self.field("%ctx", offset_of("constants") + 4 * CONSTANTS.index(name))), False, 32
        if self.width != WARP:
            raise self.refuse(text)
        if name == "warpid":
            return self.load("i32", self.field("%ctx", offset_of("warp"))), False, 32
        lane = sequence(WARP, "i32")
        if name == "laneid":
            return lane, True, 32
        if name.startswith("lanemask_"):
            return self._lane_mask(name[-2:], lane), True, 32
        raise self.refuse(text)

    def _lane_mask(self, relation: str, lane: str) -> str:
        kind = self.vector.of("i32")
        equal = self.op("shl", kind, self.vector.constant("i32", 1), lane)
        below = self.op("sub", kind, equal, self.vector.constant("i32", 1))
        up_to = self.op("or", kind, below, equal)
        everyone = self.vector.constant("i32", -1)
        if relation in ("gt", "ge"):
            return self.op("xor", kind, up_to if relation == "gt" else below, everyone)
        return {"eq": equal, "lt": below, "le": up_to}[relation]

    def _timer(self, name: str) -> tuple[str, bool, int]:
        now = self.call("kernels_clock", "i64")
        if name.endswith("_hi"):
            now = self.op("lshr", "i64", now, "32")
        if name in ("clock", "clock_hi", "globaltimer_lo", "globaltimer_hi"):
            return self.cast("trunc", now, "i64", "i32"), False, 32
        return now, False, 64

    def last_value(self, value: Argument, type_name: str, mask: str) -> str:
        """Return the scalar that remains in memory if all lanes store to the same address: the last lane's."""
        if not self.plan.is_varying(value):
            return self.use(value, type_name, SCALAR)
        vector = self.use(value, type_name, self.vector)
        zeros = self.call(f"llvm.ctlz.{self.mask_type}", self.mask_type, (self.mask_type, mask), ("i1", "true"))
        lane = self.op("sub", self.mask_type, str(self.width - 1), zeros)
        kind = self.vector.of(f"i{BITS[type_name]}")
        return self.value(f"extractelement {kind} {vector}, {self.mask_type} {lane}")

    def write_lanes_here(self) -> None:
        """Compute `%lanes_here`: how many of the block's threads there are from this warp's first lane on."""
        extents = [self.load("i32", self.field("%ctx", offset_of("ntid") + 4 * axis)) for axis in range(3)]
        threads = self.op("mul", "i32", self.op("mul", "i32", extents[0], extents[1]), extents[2])
        before = self.op("mul", "i32", self.load("i32", self.field("%ctx", offset_of("warp"))), str(self.width))
        self.line(f"%lanes_here = sub i32 {threads}, {before}")

    # --- lane by lane

    def write_lane_loop(self, mask: str, body: Callable[[str], None]) -> None:
        """Write a loop over the lanes of a mask, the lowest first; `body` is called with the lane's number as i64."""
        before, loop, on = self.label("before"), self.label("lane"), self.label("after")
        self.continue_at(before)
        self.branch(self.op("icmp eq", self.mask_type, mask, "0"), on, loop)
        self.place(loop)
        remaining, rest = f"%{self.label('remaining')}", f"%{self.label('rest')}"
        at = len(self.lines)
        self.lines.append("")
        kind = self.mask_type
        lane = self.call(f"llvm.cttz.{kind}", kind, (kind, remaining), ("i1", "true"))
        body(self.cast("zext", lane, kind, "i64"))
        end = self.label("end")
        self.continue_at(end)
        self.line(f"{rest} = and {kind} {remaining}, {self.op('sub', kind, remaining, '1')}")
        self.lines[at] = f"  {remaining} = phi {kind} [{mask}, %{before}], [{rest}, %{end}]"
        self.branch(self.op("icmp eq", kind, rest, "0"), on, loop)
        self.place(on)
