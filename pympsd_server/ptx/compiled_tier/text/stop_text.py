"""Write the stops of a kernel: how a warp leaves the function and enters it again, and the barriers of a block.

The design is in kernel_text.py. A barrier needs all lanes of a warp. If some are elsewhere, the NumPy tier takes the
block over (`bail_if_apart`). If lanes name different barriers, they wait forever, which is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from attrs import define, field, frozen

from pympsd_server.ptx.compiled_tier.ir_text import LIKELY, SCALAR
from pympsd_server.ptx.compiled_tier.native_runtime import (
    FRAME_ALIVE,
    FRAME_HEADER,
    FRAME_MASK,
    FRAME_TOTAL,
    FRAME_TRUES,
    FRAME_TURNS,
    NO_AGREEMENT,
    NO_BARRIER,
    NO_COUNT,
    StopReason,
    offset_of,
)
from pympsd_server.ptx.compiled_tier.planning.analysis import CodeSegment
from pympsd_server.ptx.compiled_tier.planning.saves import comes_by_frame, find_saved, has_many_stops
from pympsd_server.ptx.compiled_tier.planning.sequences import find_extended_input
from pympsd_server.ptx.compiled_tier.text.dispatch_text import DispatchText
from pympsd_server.ptx.compiled_tier.text.lanes import BITS, is_signed
from pympsd_server.ptx.isa.machine import BARRIERS, CLUSTER_BARRIER
from pympsd_server.ptx.lowering.ir import Argument, Operation, Register, has_result, registers_in


@frozen
class Stop:
    """A place at which a warp leaves its kernel's function, and enters it again."""

    segment: int
    """The segment at which the lanes of the stop continue."""
    pending: tuple[int, ...]
    """The segments at which other lanes may be pending."""
    barrier: int = -1
    """The block at whose barrier the lanes wait, or -1."""
    result: Operation | None = None
    """The bar.red whose result is set when the warp continues; None for every other stop."""
    is_entry: bool = False
    """Whether the stop is the beginning of the kernel, at which registers are zero."""


@define(slots=False)
class StopText(DispatchText):
    """The part of a kernel's writer for stops, faults and barriers."""

    stops: list[Stop] = field(factory=list, init=False)
    escapes: dict[int, tuple[Operation, int]] = field(factory=dict, init=False)
    """The escaping operations, each with the number of the stop after it, by the number of the stop before it."""
    slots: dict[int, int] = field(factory=dict, init=False)
    """The offset in a frame, in bytes, of each register that is saved."""
    frame_bytes: int = field(default=0, init=False)
    bank_start: int = field(default=0, init=False)
    _cleared_end: int = field(default=0, init=False)
    module_text: str = field(default="", init=False)

    @property
    def segments(self) -> list[CodeSegment]:
        """The segments of the kernel, in order."""
        return self.plan.segments

    # --- stops

    @cached_property
    def _saved(self) -> list[tuple[frozenset[int], frozenset[int]]]:
        return find_saved(self.plan, self.code.carry)

    def slot(self, number: int) -> str:
        """Return a pointer to a register's place in the frame."""
        return self.field("%frame", self._slot_of(number))

    def _slot_of(self, number: int) -> int:
        if number not in self.slots:
            bits = self.register_bits(number)
            varying = self.is_varying(number)
            size = (self.width * bits // 8 if bits > 1 else 4) if varying else 8
            align = min(max(size, 4), 64)
            self.frame_bytes = -(-self.frame_bytes // align) * align
            self.slots[number] = self.frame_bytes
            self.frame_bytes += size
        return self.slots[number]

    def keep_in_frame(self, registers: set[int]) -> None:
        """Make registers resident: they are in the frame while the kernel runs."""
        self.resident = registers
        for number in sorted(registers):
            self._slot_of(number)
        self._cleared_end = self.frame_bytes

    def _clear_frame(self) -> None:
        """Write code that sets the masks and registers in the frame to zero."""
        start, size = self.field("%frame", FRAME_HEADER), self._cleared_end - FRAME_HEADER
        self.call("llvm.memset.p0.i64", "void", ("ptr", start), ("i8", "0"), ("i64", str(size)), ("i1", "false"))

    def registers_of(self, stop: Stop) -> list[int]:
        """Return the registers that are saved at a stop."""
        if stop.is_entry:
            return []
        live = set(self.segments[stop.segment].live_in).union(*(self.segments[k].live_in for k in stop.pending))
        return sorted(live - ({r.number for r in registers_in(stop.result.operands[0])} if stop.result else set()))

    def number_of(self, stop: Stop) -> int:
        """Return the number of a stop; add the stop if it is new."""
        if stop not in self.stops:
            self.stops.append(stop)
        return self.stops.index(stop)

    def leave(self, stop: Stop, mask: str, status: StopReason | str, *, stays: str = "") -> None:
        """Write a stop: save in the frame what is needed to continue, and return a status.

        `stays` is the name of an i1. If it is true, the warp continues immediately instead.
        """
        saved = self._saved[self.at][stop.barrier >= 0]
        for register in self.registers_of(stop):
            if register not in saved | self.bank.keys() | self.resident:
                value, kind = self.read(register), self.storage(register)
                self.store(kind, value, self.slot(register), 4)
        self.save_masks(stop.pending)
        self.store("i32", self.as_word(mask), self.field("%frame", FRAME_MASK))
        alive = self.as_word(self.load(self.mask_type, "%alive"))
        self.store("i32", alive, self.field("%frame", FRAME_ALIVE))
        number = self.number_of(stop)
        if stays:
            away = self.label("away")
            self.branch(stays, f"enter{number}", away)
            self.place(away)
        self.store("i32", str(number), "%frame")
        self.line(f"ret i32 {status if isinstance(status, str) else status.value}")

    def write_entry_of(self, index: int) -> None:
        """Write the code with which a warp continues from a stop."""
        stop = self.stops[index]
        self.place(f"enter{index}")
        if has_many_stops(self.plan):
            self.fence_compiler()
        mask = self.load_saved_mask(self.field("%frame", FRAME_MASK))
        if stop.is_entry and self.is_crowded:
            self._clear_frame()
        masks = self.restore_masks(mask, stop.segment, stop.pending)
        for number in self.registers_of(stop):
            if number in self.bank or number in self.resident:
                continue
            kind = self.storage(number)
            self.store(kind, self.load(kind, self.slot(number), 4), self.home(number))
            if number in self.sequences.certain:
                here = [lanes for k, lanes in masks.items() if number in self.segments[k].live_in]
                self.restore_sequence(number, self.slot(number), here)
        if stop.result is not None:
            self.store(self.mask_type, mask, "%cur")
            self.at, self.operation = stop.segment, stop.result
            self._set_reduction(stop.result)
        self.jump(f"run{stop.segment}")

    # --- sequences

    def write_first(self, operation: Operation, write: Callable[[StopText, Operation], None]) -> None:
        """If an operation's result is a certain sequence, write it again for lane 0 only, and write the flag."""
        target = operation.operands[0] if operation.operands and has_result(operation) else None
        if not isinstance(target, Register) or target.number not in self.sequences.certain:
            return
        self.first = True
        if target.number in self.sequences.flagged:
            flag = self._sequence_flag(operation)
            self.store("i1", flag, f"%e{target.number}")
        write(self, operation)
        self.first = False

    def restore_sequence(self, number: int, slot: str, masks: list[str]) -> None:
        """Compute lane 0's value and the flag of a sequence from its slot, which contains the lanes in `masks`."""
        element, mask, stride = f"i{self.register_bits(number)}", masks[0], self.sequences.strides[number] or 0
        for other in masks[1:]:
            mask = self.op("or", self.mask_type, mask, other)
        some = self.op("or", self.mask_type, mask, str(-(1 << (self.width - 1))))
        lane = self.call(f"llvm.cttz.{self.mask_type}", self.mask_type, (self.mask_type, some), ("i1", "true"))
        lane = self.cast("zext", lane, self.mask_type, "i64")
        value = self.load(element, self.value(f"getelementptr {element}, ptr {slot}, i64 {lane}"))
        before = self.op("mul", "i64", lane, str(stride))
        before = self.cast("trunc", before, "i64", element) if element != "i64" else before
        first = self.op("sub", element, value, before)
        self.store(element, first, f"%f{number}")
        if number in self.sequences.flagged:
            self.store("i1", self._follow(self.read(number), first, element, stride, mask), f"%e{number}")

    def _sequence_flag(self, operation: Operation) -> str:
        """Return whether the inputs' flags are true, and no input that is extended has wrapped within the warp."""
        numbers = [x.number for x in operation.inputs if isinstance(x, Register)]
        flag = "true"
        for number in set(numbers) & self.sequences.flagged:
            flag = self.op("and", "i1", flag, self.flag(number))
        extended = find_extended_input(operation, self.plan)
        if extended is None:
            return flag
        argument, type_name = extended
        stride = self.sequences.strides.get(argument.number, 0) if isinstance(argument, Register) else 1
        extend, kind = "sext" if is_signed(type_name) else "zext", f"i{BITS[type_name]}"
        first = self.cast(extend, self.use(argument, type_name, SCALAR), kind, "i64")
        last = self.op("add", "i64", first, str((stride or 0) * (self.width - 1)))
        again = self.cast(extend, self.cast("trunc", last, "i64", kind), kind, "i64")
        return self.op("and", "i1", flag, self.op("icmp eq", "i64", again, last))

    # --- ends

    def fault(self, kind: int, address: str, lane: str) -> None:
        """Write the end of the kernel with a fault other than a memory fault; `address` is an i64."""
        self.store("i64", address, self.field("%ctx", offset_of("fault_address")))
        self.store("i32", str(kind), self.field("%ctx", offset_of("fault_kind")))
        self.store("i32", lane, self.field("%ctx", offset_of("fault_lane")))
        self.jump("fault")

    def first_lane(self, mask: str) -> str:
        """Return the lowest lane of a mask, which must not be empty, as i32."""
        lane = self.call(f"llvm.cttz.{self.mask_type}", self.mask_type, (self.mask_type, mask), ("i1", "false"))
        return self.as_word(lane)

    def make_stop(self) -> Stop:
        """Return the stop at the current segment, with the other segments at which lanes may be pending."""
        return Stop(self.at, tuple(sorted(self.plan.pending[self.at] - {self.at})))

    # --- barriers

    def write_barrier(self, last: Operation, segment: CodeSegment, following: int, mask: str) -> None:
        """Write a barrier that ends a segment. The lanes of ``mask`` continue at the segment ``following``."""
        operands, in_cluster = list(last.operands), last.has("cluster")
        predicate = operands.pop() if last.has("red") else None
        operands = operands[1:] if last.has("red") else operands
        arrives = last.has("arrive")
        number = str(CLUSTER_BARRIER)
        if not in_cluster:
            number = self._barrier_number(self._write_agreed_value(operands[0], mask, is_firsts=arrives), mask)
        threads = self._write_agreed_value(operands[1], mask, is_firsts=arrives) if len(operands) > 1 else "0"
        if arrives and len(operands) == 1:
            return self.fault(NO_COUNT, "0", self.first_lane(mask))
        if arrives:
            bad = self.call("kernels_arrive", "i32", ("ptr", "%ctx"), ("i32", number), ("i32", threads))
            self.fault_unless_zero(bad)
            return self.go_ways({following: mask})
        self.store(self.mask_type, mask, f"%m{following}")
        is_plain = predicate is None and threads == "0" and not in_cluster
        by_frame = is_plain and comes_by_frame(self.plan, following)
        if is_plain and not by_frame:
            wait = self.label("wait")
            self.branch("%alone", f"segment{following}", wait)
            self.place(wait)
        self.store("i32", number, self.field("%ctx", offset_of("barrier_number")))
        self.store("i32", threads, self.field("%ctx", offset_of("barrier_threads")))
        if predicate is not None:
            true = self.op("and", self.mask_type, self.as_mask(self.predicate(predicate, self.vector)), mask)
            for name, lanes in (("barrier_trues", true), ("barrier_total", mask)):
                count = self.intrinsic("ctpop", self.mask_type, SCALAR, lanes)
                self.store("i32", self.as_word(count), self.field("%ctx", offset_of(name)))
        self.store("i32", "0", self.field("%frame", FRAME_TURNS))
        stop = Stop(following, (), self._origin_of(segment), None if predicate is None else last)
        return self.leave(stop, mask, StopReason.BARRIER, stays="%alone" if by_frame else "")

    def _write_agreed_value(self, operand: Argument, mask: str, *, is_firsts: bool) -> str:
        """Return a barrier's operand as a scalar.

        If `is_firsts` is true, the first lane's value counts. Otherwise lanes with different values are a fault.
        """
        if not self.plan.is_varying(operand):
            return self.use(operand, "u32", SCALAR)
        kind, values = self.vector.of("i32"), self.use(operand, "u32", self.vector)
        lane = self.first_lane(mask)
        value = self.value(f"extractelement {kind} {values}, i32 {lane}")
        if is_firsts:
            return value
        odd = self.as_mask(self.op("icmp ne", kind, values, self.splat(value, "i32", self.vector)))
        wrong, right = self.label("wrong"), self.label("right")
        odd = self.op("and", self.mask_type, odd, mask)
        self.branch(self.op("icmp eq", self.mask_type, odd, "0"), right, wrong)
        self.place(wrong)
        self.fault(NO_AGREEMENT, "0", lane)
        self.place(right)
        return value

    def _barrier_number(self, number: str, mask: str) -> str:
        """Write the check that a block has the barrier with this number; return the number."""
        wrong, right = self.label("wrong"), self.label("right")
        self.branch(self.op("icmp ult", "i32", number, str(BARRIERS)), right, wrong)
        self.place(wrong)
        self.fault(NO_BARRIER, self.cast("zext", number, "i32", "i64"), self.first_lane(mask))
        self.place(right)
        return number

    def bail_if_apart(self) -> None:
        """Write the bail from a block that ends with a barrier, for the case that lanes of the warp are elsewhere."""
        apart, together = self.label("apart"), self.label("together")
        mask, alive = self.current(), self.load(self.mask_type, "%alive")
        self.branch(self.op("icmp eq", self.mask_type, mask, alive), together, apart, LIKELY)
        self.place(apart)
        self.leave(self.make_stop(), mask, StopReason.BAIL)
        self.place(together)

    def end_of(self, segment: CodeSegment) -> CodeSegment:
        """Return the last segment of the block that begins with a segment."""
        for following in self.segments[self.at + 1 :]:
            if following.origin >= 0:
                break
            segment = following
        return segment

    def _origin_of(self, segment: CodeSegment) -> int:
        """Return the block to which a segment belongs."""
        index = next(i for i, s in enumerate(self.segments) if s is segment)
        return next(s.origin for s in reversed(self.segments[: index + 1]) if s.origin >= 0)

    def _set_reduction(self, barrier: Operation) -> None:
        """Assign the result of a bar.red from the C runtime's count of votes."""
        trues, total = (self.load("i32", self.field("%frame", at)) for at in (FRAME_TRUES, FRAME_TOTAL))
        target = barrier.operands[0]
        if barrier.has("popc"):
            return self.assign(target, trues, "u32", SCALAR)
        other = ("icmp eq", total) if barrier.has("and") else ("icmp ne", "0")
        return self.assign_predicate(target, self.op(other[0], "i32", trues, other[1]), SCALAR)
