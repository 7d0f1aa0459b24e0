"""One kernel as one function of LLVM's intermediate representation. The design of the compiled tier.

The problem: the threads of a warp run in step until they diverge, wait for each other, fault at exact places, and can
be stopped at any moment; and a NumPy call for each instruction is 10 to 770 times slower than machine code.

The idea: a warp is one thread of execution, `status kernel(worker, frame)`. A register of the warp is a vector, or a
scalar if all lanes have the same (analysis.py). A mask states which lanes run. At the end of a block its lanes are
added to the masks of the blocks they go to, and the *lowest* block that has lanes runs next, as in the NumPy tier:

    block 2 (loop)      block 5 (after it)          block 2 runs again and again, until its last lane has come to
    mask 0b10001111     mask 0b01110000             block 5; then all eight continue together

A kernel leaves its function at *stops* only. A stop saves in the warp's *frame* what is needed there and returns why:

- BARRIER: the warp waits; the runtime in C (native/src/kernels.c) counts warps and calls it again.
- SLICE: the fuel is used up at a loop's header; other warps, blocks and clients have their turn. POLL is the same in
  a loop that may wait for other threads, SPIN if lanes of the warp wait elsewhere meanwhile.
- TURN: the warp has read shared memory, and is about to write what other warps may have to read before, or the other
  way round (turns.py). Well-written programs have a barrier there; others rely on warps that run side by side.
- ESCAPE: the next instruction is one that only the NumPy tier has, or whose attempt in C has failed. Its function
  runs on the registers in the frames, for all warps that wait there together (batch.py).
- BAIL: a rare case of lanes that wait for each other. The NumPy tier takes over the whole block, from the frames:
  lanes stop at the beginnings of blocks, as the groups of its threads do.
- DONE, FAULT and TRAP end the warp.

The NumPy emitters define what an instruction does. The *_forms modules implement the common instructions a second
time; an operation that a form does not support escapes. A kernel in which an escape would be hot, or whose threads
meet in other ways (clusters, warp groups), stays in the NumPy tier as a whole: `Refused` at compile time.

Invariants: a register that is read at a stop's segment or at a pending one is in the frame; the old value of a lane
survives whatever other lanes do while it is pending; nothing is left in the worker between two calls.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from attrs import define, field, frozen

from pympsd_server.backends.emulated.ptx.compiled_tier import (
    data_forms,
    float_forms,
    integer_forms,
    matrix_forms,
    warp_forms,
)
from pympsd_server.backends.emulated.ptx.compiled_tier.analysis import (
    CodeSegment,
    group_accesses,
    is_left_whole,
)
from pympsd_server.backends.emulated.ptx.compiled_tier.dispatch_text import DispatchText, size_of_masks
from pympsd_server.backends.emulated.ptx.compiled_tier.fragment_bank import size_of_bank
from pympsd_server.backends.emulated.ptx.compiled_tier.instruction_table import write, write_attempt
from pympsd_server.backends.emulated.ptx.compiled_tier.ir_text import LIKELY, METADATA, SCALAR, UNLIKELY
from pympsd_server.backends.emulated.ptx.compiled_tier.lanes import BANK_ALIGNMENT, Refused
from pympsd_server.backends.emulated.ptx.compiled_tier.memory_text import FRAGMENT_BYTES
from pympsd_server.backends.emulated.ptx.compiled_tier.native_runtime import (
    FRAME_ALIVE,
    FRAME_HEADER,
    FRAME_MASK,
    FRAME_TOTAL,
    FRAME_TRUES,
    FRAME_TURNS,
    NO_BARRIER,
    NO_ENTRY,
    StopReason,
    offset_of,
)
from pympsd_server.backends.emulated.ptx.compiled_tier.saves import (
    comes_by_frame,
    find_entries,
    find_saved,
    has_many_stops,
)
from pympsd_server.backends.emulated.ptx.isa.machine import BARRIERS, WARP
from pympsd_server.backends.emulated.ptx.lowering.control_flow import EXIT
from pympsd_server.backends.emulated.ptx.lowering.ir import (
    Argument,
    Operation,
    registers_in,
)

FORMS: Final = (data_forms, float_forms, integer_forms, matrix_forms, warp_forms)
"""The modules whose forms are in the table."""
FUNCTION: Final = "kernel"
_SCRATCHES: Final = 4
_LOADED: Final = (
    *(("shared_p", "ptr", "shared"), ("local_p", "ptr", "local"), ("params", "ptr", "parameters")),
    *(("sites", "ptr", "sites"), ("addresses", "ptr", "addresses"), ("delta", "i64", "delta")),
    *(("shared32", "i32", "shared_bytes"), ("warps", "i32", "warps"), ("given", "i64", "fuel")),
    *(
        ("param_size", "i64", "parameter_bytes"),
        ("dynamic", "i64", "dynamic_offset"),
        ("local_frame", "i64", "local_frame"),
        ("local_size", "i64", "local_bytes"),
    ),
)
"""What a kernel loads from its worker when it is entered: the name of the value, its type, and the field."""


@frozen
class Stop:
    """A place at which a warp leaves its kernel, and at which it enters the kernel again."""

    segment: int
    """The segment that its lanes continue with."""
    pending: tuple[int, ...]
    """The segments at which others may be pending."""
    barrier: int = -1
    """The block at whose barrier the lanes wait."""
    result: Operation | None = None
    """A bar.red whose result is set when the warp continues."""
    is_entry: bool = False
    """Whether it is the beginning of the kernel, at which registers are zero."""


@define(slots=False)
class KernelText(DispatchText):
    """Writes the segments of a kernel, its stops and its entry."""

    stops: list[Stop] = field(factory=list, init=False)
    escapes: dict[int, tuple[Operation, int]] = field(factory=dict, init=False)
    """The escaping operations and the stops behind them, by the stop before them."""
    slots: dict[int, int] = field(factory=dict, init=False)
    """Where registers are saved in a frame, in bytes."""
    frame_bytes: int = field(default=0, init=False)
    _bank_start: int = field(default=0, init=False)
    _cleared_end: int = field(default=0, init=False)
    module_text: str = field(default="", init=False)

    @property
    def segments(self) -> list[CodeSegment]:
        """The parts of the kernel, in order."""
        return self.plan.segments

    # --- stops

    @cached_property
    def _saved(self) -> list[tuple[frozenset[int], frozenset[int]]]:
        return find_saved(self.plan, self.code.carry)

    def slot(self, number: int) -> str:
        """Return a pointer to where a register is saved."""
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

    def registers_of(self, stop: Stop) -> list[int]:
        """Return the registers that are saved at a stop."""
        if stop.is_entry:
            return []
        live = set(self.segments[stop.segment].live_in).union(*(self.segments[k].live_in for k in stop.pending))
        return sorted(live - ({r.number for r in registers_in(stop.result.operands[0])} if stop.result else set()))

    def number_of(self, stop: Stop) -> int:
        """Return the number of a stop, which is new if it has not been written before."""
        if stop not in self.stops:
            self.stops.append(stop)
        return self.stops.index(stop)

    def leave(self, stop: Stop, mask: str, status: StopReason | str, *, stays: str = "") -> None:
        """Return a status with everything in the frame that is needed to continue at a stop.

        `stays`: a truth; if it holds the warp continues there immediately.
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

    def _enter(self, index: int) -> None:
        """Write the code that continues from a stop."""
        stop = self.stops[index]
        self.place(f"enter{index}")
        if has_many_stops(self.plan):
            self.fence_compiler()
        mask = self.saved_mask(self.field("%frame", FRAME_MASK))
        if stop.is_entry:
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

    # --- control flow

    def write_end(self, segment: CodeSegment) -> None:
        """Write the end of a segment."""
        last = self.operation = segment.terminator
        mask = self.current()
        following = EXIT if segment.following is None else segment.following
        if last is None:
            return self.go_ways({following: mask})
        if last.name in ("trap", "brkpt"):
            return self._trap(mask)
        if last.name in ("bra", "exit"):
            return self._branch(last, segment.targets[0], following, mask)
        if last.name in ("bar", "barrier"):
            return self._barrier(last, segment, following, mask)
        if last.name == "brx":
            return self._switch(last, segment, mask)
        raise self.refuse()

    def _branch(self, last: Operation, target: int, following: int, mask: str) -> None:
        if last.guard is None or target == following:
            return self.go_ways({target: mask})
        if last.guard.register.number in self.plan.varying:
            yes = self.op("and", self.mask_type, mask, self.guard_mask(last))
            ways = {target: yes, following: self.op("xor", self.mask_type, yes, mask)}
            return self.go_ways(ways)
        yes, no = self.label("yes"), self.label("no")
        self.branch(self.uniform_guard(last), yes, no)
        self.place(yes)
        self.go_ways({target: mask})
        self.place(no)
        return self.go_ways({following: mask})

    def _fault(self, kind: int, address: str, lane: str) -> None:
        """Write the end of the kernel with a fault other than a memory fault; `address` is an i64."""
        self.store("i64", address, self.field("%ctx", offset_of("fault_address")))
        self.store("i32", str(kind), self.field("%ctx", offset_of("fault_kind")))
        self.store("i32", lane, self.field("%ctx", offset_of("fault_lane")))
        self.jump("fault")

    def _first_lane(self, mask: str) -> str:
        lane = self.call(f"llvm.cttz.{self.mask_type}", self.mask_type, (self.mask_type, mask), ("i1", "false"))
        return self.as_word(lane)

    def _trap(self, mask: str) -> None:
        self.store("i32", self._first_lane(mask), self.field("%ctx", offset_of("fault_lane")))
        self.line(f"ret i32 {StopReason.TRAP.value}")

    def _switch(self, last: Operation, segment: CodeSegment, mask: str) -> None:
        entry = last.operands[0]
        kind, count = self.vector.of("i32"), len(segment.targets)
        if not self.plan.is_varying(entry):
            labels = [self.label("case") for _ in segment.targets]
            cases = " ".join(f"i32 {index}, label %{label}" for index, label in enumerate(labels))
            number, wrong = self.use(entry, "u32", SCALAR), self.label("wrong")
            self.line(f"switch i32 {number}, label %{wrong} [ {cases} ]")
            self.place(wrong)
            self._fault(NO_ENTRY, self.cast("zext", number, "i32", "i64"), self._first_lane(mask))
            for label, target in zip(labels, segment.targets, strict=True):
                self.place(label)
                self.go({target: mask}, certain=True)
            return
        numbers, ways = self.use(entry, "u32", self.vector), dict[int, str]()
        bad = self.as_mask(self.op("icmp uge", kind, numbers, self.vector.constant("i32", count)))
        bad = self.op("and", self.mask_type, bad, mask)
        wrong, right = self.label("wrong"), self.label("right")
        self.branch(self.op("icmp eq", self.mask_type, bad, "0"), right, wrong)
        self.place(wrong)
        lane = self._first_lane(bad)
        number = self.value(f"extractelement {kind} {numbers}, i32 {lane}")
        self._fault(NO_ENTRY, self.cast("zext", number, "i32", "i64"), lane)
        self.place(right)
        for index, target in enumerate(segment.targets):
            these = self.as_mask(self.op("icmp eq", kind, numbers, self.vector.constant("i32", index)))
            these = self.op("and", self.mask_type, these, mask)
            ways[target] = self.op("or", self.mask_type, ways[target], these) if target in ways else these
        self.go(ways, certain=False)

    # --- barriers

    def _barrier(self, last: Operation, segment: CodeSegment, following: int, mask: str) -> None:
        operands = list(last.operands)
        is_known = last.one_of("sync", "arrive", "red") and not last.has("cluster") and last.guard is None
        predicate = operands.pop() if last.has("red") else None
        operands = operands[1:] if last.has("red") else operands
        if not is_known or any(map(self.plan.is_varying, operands)) or following == EXIT:
            raise self.refuse("this barrier")
        number = self._barrier_number(operands[0], mask)
        threads = self.use(operands[1], "u32", SCALAR) if len(operands) > 1 else "0"
        if last.has("arrive"):
            bad = self.call("kernels_arrive", "i32", ("ptr", "%ctx"), ("i32", number), ("i32", threads))
            self.fault_unless_zero(bad)
            self.go_ways({following: mask})
            return
        self.store(self.mask_type, mask, f"%m{following}")
        is_plain = predicate is None and threads == "0"
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
        self.leave(stop, mask, StopReason.BARRIER, stays="%alone" if by_frame else "")

    def _barrier_number(self, operand: Argument, mask: str) -> str:
        """Return the number of a barrier, which must be one that the block has."""
        number = self.use(operand, "u32", SCALAR)
        wrong, right = self.label("wrong"), self.label("right")
        self.branch(self.op("icmp ult", "i32", number, str(BARRIERS)), right, wrong)
        self.place(wrong)
        self._fault(NO_BARRIER, self.cast("zext", number, "i32", "i64"), self._first_lane(mask))
        self.place(right)
        return number

    def _bail_if_apart(self) -> None:
        """Leave a barrier to the NumPy tier if lanes of the warp are elsewhere."""
        apart, together = self.label("apart"), self.label("together")
        mask, alive = self.current(), self.load(self.mask_type, "%alive")
        self.branch(self.op("icmp eq", self.mask_type, mask, alive), together, apart, LIKELY)
        self.place(apart)
        self.leave(self._here(), mask, StopReason.BAIL)
        self.place(together)

    def _origin_of(self, segment: CodeSegment) -> int:
        """Return the block that a segment is the end of."""
        index = next(i for i, s in enumerate(self.segments) if s is segment)
        return next(s.origin for s in reversed(self.segments[: index + 1]) if s.origin >= 0)

    def _set_reduction(self, barrier: Operation) -> None:
        """Set the result of a bar.red from what the runtime has counted."""
        trues, total = (self.load("i32", self.field("%frame", at)) for at in (FRAME_TRUES, FRAME_TOTAL))
        target = barrier.operands[0]
        if barrier.has("popc"):
            return self.assign(target, trues, "u32", SCALAR)
        other = ("icmp eq", total) if barrier.has("and") else ("icmp ne", "0")
        return self.assign_predicate(target, self.op(other[0], "i32", trues, other[1]), SCALAR)

    # --- lanes that must meet, and loops

    def _meet(self, segment: CodeSegment) -> None:
        """Run the lanes of a membermask that have not arrived yet first."""
        assert segment.meeting is not None
        pending = self.plan.pending[self.at]
        if segment.meeting.in_group or self.width != WARP:
            raise self.refuse("warp group")
        if not pending:
            return
        mask, alive = self.current(), self.load("i32", "%alive")
        members = self._named_lanes(segment.meeting.mask, mask)
        absent = self.op("and", "i32", self.op("and", "i32", members, alive), self.op("xor", "i32", mask, "-1"))
        ready, wait = self.label("ready"), self.label("wait")
        self.branch(self.op("icmp eq", "i32", absent, "0"), ready, wait)
        self.place(wait)
        fuel = self._burn(64)
        going, stuck = self.label("going"), self.label("stuck")
        self.branch(self.op("icmp slt", "i64", fuel, "0"), stuck, going, UNLIKELY)
        self.place(going)
        last = self.go_elsewhere(mask, sorted(pending - {self.at}), stuck)
        self.place(stuck)
        status = self.phi("i32", (str(StopReason.SPIN.value), wait), (str(StopReason.BAIL.value), last))
        self.leave(self._here(), mask, status)
        self.place(ready)

    def _take_turn(self, kind: int, mask: str) -> None:
        """Give other warps of the block a turn, unless they have had one since the last barrier."""
        taken = self.load("i32", self.field("%frame", FRAME_TURNS))
        is_done = self.op("icmp ne", "i32", self.op("and", "i32", taken, str(kind)), "0")
        stays, turn, on = self.op("or", "i1", is_done, "%alone"), self.label("turn"), self.label("turned")
        by_frame = comes_by_frame(self.plan, self.at)
        if not by_frame:
            self.branch(stays, on, turn)
            self.place(turn)
        self.store("i32", self.op("or", "i32", taken, str(kind)), self.field("%frame", FRAME_TURNS))
        self.leave(self._here(), mask, StopReason.TURN, stays=stays if by_frame else "")
        if not by_frame:
            self.place(on)

    def _named_lanes(self, mask: Argument, running: str) -> str:
        if not self.plan.is_varying(mask):
            return self.use(mask, "u32", SCALAR)
        words = self.vector.of("i32")
        value = self.use(mask, "u32", self.vector)
        value = self.choose(self.vector, self.as_lanes(running), words, value, "zeroinitializer")
        return self.call(f"llvm.vector.reduce.or.v{WARP}i32", "i32", (words, value))

    def _here(self) -> Stop:
        return Stop(self.at, tuple(sorted(self.plan.pending[self.at] - {self.at})))

    def _burn(self, weight: int) -> str:
        """Use fuel; return what is left."""
        fuel = self.op("sub", "i64", self.load("i64", "%fuel"), str(weight))
        self.store("i64", fuel, "%fuel")
        return fuel

    def _check_fuel(self) -> None:
        """Leave at the header of a loop if the fuel is used up."""
        pause = self.label("pause")
        fuel = self._burn(self.plan.weights[self.at])
        self.branch(self.op("icmp slt", "i64", fuel, "0"), pause, f"run{self.at}", UNLIKELY)
        self.place(pause)
        may_wait, stop = self.at in self.plan.spinning, self._here()
        status: str | StopReason = StopReason.POLL if may_wait else StopReason.SLICE
        if may_wait and stop.pending:
            apart = self.have_lanes(stop.pending)
            status = self.choose(SCALAR, apart, "i32", str(StopReason.SPIN.value), str(StopReason.POLL.value))
        self.leave(stop, self.load(self.mask_type, f"%m{self.at}"), status)

    # --- the whole kernel

    def write_segment(self, segment: CodeSegment) -> None:
        """Write one segment."""
        self.place(f"segment{self.at}")
        if self.at in self.plan.weights:
            self._check_fuel()
        elif segment.turn and comes_by_frame(self.plan, self.at):
            self._take_turn(segment.turn, self.load(self.mask_type, f"%m{self.at}"))
        else:
            self.jump(f"run{self.at}")
        self.place(f"run{self.at}")
        self.begin_running()
        if self.at in self.plan.spinning:
            self.fence_compiler()
        if segment.meeting is not None:
            self._meet(segment)
        if segment.turn and not comes_by_frame(self.plan, self.at):
            self._take_turn(segment.turn, self.current())
        if segment.escapes or is_left_whole(segment.terminator):
            stop = self._here()
            if segment.attempts:
                write_attempt(self, segment.operations[0])
            self.leave(stop, self.current(), StopReason.ESCAPE if segment.escapes else StopReason.BAIL)
            if segment.escapes:
                behind = self.number_of(Stop(self.at + 1, stop.pending))
                self.escapes[self.number_of(stop)] = segment.operations[0], behind
            return
        last = segment.terminator
        if last is not None and last.name in ("bar", "barrier") and self.plan.pending[self.at]:
            if segment.origin < 0:
                raise Refused("a barrier behind an instruction in the NumPy tier")
            self._bail_if_apart()
        self.begin_accesses(group_accesses(segment.operations, self.code.carry))
        for self.index, operation in enumerate(segment.operations):
            write(self, operation)
            self.write_first(operation, write)
        self.write_end(segment)

    def _begin_frame(self) -> None:
        """Lay out the beginning of a frame."""
        self._bank_start = -(-(FRAME_HEADER + size_of_masks(self.plan)) // BANK_ALIGNMENT) * BANK_ALIGNMENT
        self.frame_bytes = self._bank_start + size_of_bank(self.code, self.bank)
        lives = set().union(*(segment.live_in for segment in self.segments))
        self.slots = {number: self._bank_start + at for number, at in self.bank.items() if number in lives}
        if self.is_crowded:
            self.resident = lives - self.bank.keys()
            for number in sorted(self.resident):
                self._slot_of(number)
            self._cleared_end = self.frame_bytes

    def _clear_frame(self) -> None:
        """Set the masks and registers of a crowded kernel, which are in the frame, to zero."""
        if self.is_crowded:
            kinds = "ptr", "i8", "i64", "i1"
            values = self.field("%frame", FRAME_HEADER), "0", str(self._cleared_end - FRAME_HEADER), "false"
            self.call("llvm.memset.p0.i64", "void", *zip(kinds, values, strict=True))

    def write_kernel(self) -> str:
        """Return the text of the module. Raises Refused for a kernel that stays in the NumPy tier."""
        self._begin_frame()
        for index, segment in enumerate(self.segments):
            self.at = index
            self.write_segment(segment)
        for k in find_entries(self.plan):
            self.number_of(Stop(k, tuple(sorted(self.plan.pending[k] - {k}))))
        index = 0
        while index < len(self.stops):
            self._enter(index)
            index += 1
        self.write_dispatch()
        body, self.lines = self.lines, []
        self._write_entry()
        alive = [f"  %living = load {self.mask_type}, ptr %alive", f"  %ended = icmp eq {self.mask_type} %living, 0"]
        tail = [
            "nothing:",
            *alive,
            "  br i1 %ended, label %done, label %lost",
            "done:",
            f"  ret i32 {StopReason.DONE.value}",
        ]
        # Lanes are alive but in no segment: this cannot happen.
        tail += [
            *("lost:", "  call void @llvm.trap()", "  unreachable", "fault:"),
            f"  ret i32 {StopReason.FAULT.value}",
            "}",
        ]
        self.declared.add("declare void @llvm.trap()")
        head = f"define i32 @{FUNCTION}(ptr noalias %ctx, ptr noalias %frame) #0 {{\nentry:"
        wide = 'nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512"'
        attributes = f"attributes #0 = {{ {wide} }}\nattributes #1 = {{ noinline {wide} }}"
        parts = [*self.tables, head, *self.lines, *body, *tail, *sorted(self.declared), attributes, METADATA]
        return "\n".join(parts) + "\n"

    def _write_entry(self) -> None:
        mask = self.mask_type
        self.line(f"%cur = alloca {mask}")
        self.line(f"%alive = alloca {mask}")
        self.line("%fuel = alloca i64")
        for number in range(_SCRATCHES):
            self.line(f"%scratch{number} = alloca [{self.width * 8} x i8], align 64")
        if self.needs_fragments:
            self.line(f"%fragments = alloca [{FRAGMENT_BYTES} x i8], align 64")
        self.declare_masks()
        for place in sorted(set(self.bank.values())):
            self.line(f"%b{place} = getelementptr i8, ptr %frame, i64 {self._bank_start + place}")
        for number in range(len(self.code.register_types)):
            if number in self.bank:
                continue
            if number in self.resident:
                self.line(f"%r{number} = getelementptr i8, ptr %frame, i64 {self.slots[number]}")
                continue
            kind = self.storage(number)
            self.line(f"%r{number} = alloca {kind}")
            self.store(kind, "zeroinitializer", f"%r{number}")
        for number in sorted(self.sequences.certain):
            self.line(f"%f{number} = alloca i{self.register_bits(number)}")
        for number in sorted(self.sequences.flagged):
            self.line(f"%e{number} = alloca i1")
        for name, kind, where in _LOADED:
            self.line(f"%{name} = load {kind}, ptr {self.field('%ctx', offset_of(where))}")
        self.line("%shared = ptrtoint ptr %shared_p to i64")
        self.line("%local = ptrtoint ptr %local_p to i64")
        self.line("%param = ptrtoint ptr %params to i64")
        self.line("%shared_size = zext i32 %shared32 to i64")
        self.line("%alone = icmp eq i32 %warps, 1")
        self.store("i64", "%given", "%fuel")
        for axis in range(3):
            places = self.load("ptr", self.field("%ctx", offset_of("tid") + 8 * axis))
            if self.plan.rows and axis:
                self.line(f"%tid{axis}s = load i32, ptr {places}")
            else:
                self.line(f"%tid{axis} = load {self.vector.of('i32')}, ptr {places}, align 4")
        if not self.whole_warps:
            self.write_lanes_here()
        self.store(mask, self.saved_mask(self.field("%frame", FRAME_ALIVE)), "%alive")
        cases = " ".join(f"i32 {index}, label %enter{index}" for index in range(1, len(self.stops)))
        self.line(f"switch i32 {self.load('i32', '%frame')}, label %enter0 [ {cases} ]")
