"""Write one kernel as one function of LLVM's intermediate representation. The design of the tier is described here.

The problem: the threads of a warp run in step until they diverge, wait for each other, fault at exact places, and can
be stopped at any moment. And a NumPy call for each instruction is 10 to 770 times slower than machine code.

The idea: a warp is one call of a function, `status kernel(worker, frame)`. A register of the warp is a vector, or a
scalar if all lanes have the same value (analysis.py). A mask contains the lanes that run. At the end of a block its
lanes are added to the masks of the blocks to which they go, and the *lowest* block that has lanes runs next, as in
the NumPy tier:

    block 2 (loop)      block 5 (after it)          block 2 runs again and again, until its last lane has come to
    mask 0b10001111     mask 0b01110000             block 5; then all eight continue together

A warp leaves the function only at *stops*. A stop saves the values that are needed later in the warp's *frame*, and
returns the reason:

- BARRIER: the warp waits; the runtime in C (native/src/kernels.c) counts warps and calls it again.
- SLICE: the fuel is used up at a loop's header, so that other warps, blocks and clients have their turn. POLL is the
  same in a loop that may wait for other threads, SPIN if lanes of the warp meanwhile wait elsewhere.
- TURN: the warp has read shared memory, and is about to write memory that other warps may have to read first, or the
  reverse (turns.py). Well-written programs have a barrier there; others rely on warps that run side by side.
- ESCAPE: only the NumPy tier has the next instruction, or the attempt of it in C has failed. The instruction's
  function runs on the registers in the frames, for all warps that wait before it together (batch.py). POLLING_ESCAPE
  is the same in a loop that may wait for other threads, and does not count as progress.
- BAIL: lanes wait for each other in a way that is rare. The NumPy tier takes over the whole block from the frames. It
  can, because these lanes are at beginnings of basic blocks, where groups of the NumPy tier can start.
- SLEEP: a nanosleep of at least a microsecond. The warp continues after it when the time has passed.
- DONE, FAULT and TRAP end the warp.

The NumPy emitters define what an instruction does. They also write the instructions that only compute for this tier
(shared_forms.py). The other *_forms modules implement further instructions a second time. An operation that cannot be
written escapes, so a whole kernel stays in the NumPy tier (`NotCompiled`) only if it is too large.

Invariants:

- A register that is read at a stop's segment or at a pending one is in the frame.
- While a lane is pending, the operations of other lanes keep its values.
- The worker contains no state of a warp between two calls.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

from pympsd_server.ptx.compiled_tier.ir_text import METADATA, SCALAR, UNLIKELY, NotCompiled
from pympsd_server.ptx.compiled_tier.native_runtime import (
    FRAME_ALIVE,
    FRAME_HEADER,
    FRAME_TURNS,
    NO_ENTRY,
    NO_SEGMENT,
    StopReason,
    offset_of,
)
from pympsd_server.ptx.compiled_tier.planning.analysis import CodeSegment, group_accesses, is_left_whole
from pympsd_server.ptx.compiled_tier.planning.fragment_bank import size_of_bank
from pympsd_server.ptx.compiled_tier.planning.saves import comes_by_frame, find_entries
from pympsd_server.ptx.compiled_tier.text import data_forms, matrix_forms, warp_forms
from pympsd_server.ptx.compiled_tier.text.dispatch_text import size_of_masks
from pympsd_server.ptx.compiled_tier.text.instruction_table import write, write_attempt
from pympsd_server.ptx.compiled_tier.text.lanes import BANK_ALIGNMENT
from pympsd_server.ptx.compiled_tier.text.memory_text import FRAGMENT_BYTES
from pympsd_server.ptx.compiled_tier.text.stop_text import Stop, StopText
from pympsd_server.ptx.isa.machine import WARP
from pympsd_server.ptx.lowering.control_flow import EXIT
from pympsd_server.ptx.lowering.ir import Argument, Operation, is_barrier

FORMS: Final = (data_forms, matrix_forms, warp_forms)
"""The modules with forms; importing them fills the table."""
FUNCTION: Final = "kernel"
MAX_TEXT: Final = 6_000_000
"""The maximum number of characters of a kernel's text; LLVM takes 1 to 40 microseconds for each."""
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
"""The values that a kernel loads from its worker at its entry: name, type and field of each."""


@define(slots=False)
class KernelText(StopText):
    """The writer of a kernel: its segments and its entry."""

    _characters: int = field(default=0, init=False)
    """The number of characters of the first `_counted` lines."""
    _counted: int = field(default=0, init=False)

    # --- control flow

    def write_end(self, segment: CodeSegment) -> None:
        """Write the end of a segment: its terminator, or the way to the following segment."""
        last = self.operation = segment.terminator
        mask = self.current()
        following = EXIT if segment.following is None else segment.following
        if last is None:
            return self.go_ways({following: mask})
        if last.name in ("trap", "brkpt"):
            return self._trap(mask)
        if last.name in ("bra", "exit"):
            return self._branch(last, segment.targets[0], following, mask)
        if is_barrier(last):
            return self.write_barrier(last, segment, following, mask)
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

    def _trap(self, mask: str) -> None:
        self.store("i32", self.first_lane(mask), self.field("%ctx", offset_of("fault_lane")))
        self.line(f"ret i32 {StopReason.TRAP.value}")

    def _switch(self, last: Operation, segment: CodeSegment, mask: str) -> None:
        """Write the branch of brx.idx: each lane goes to the target with its number; other numbers are faults."""
        entry = last.operands[0]
        kind, count = self.vector.of("i32"), len(segment.targets)
        if not self.plan.is_varying(entry):
            labels = [self.label("case") for _ in segment.targets]
            cases = " ".join(f"i32 {index}, label %{label}" for index, label in enumerate(labels))
            number, wrong = self.use(entry, "u32", SCALAR), self.label("wrong")
            self.line(f"switch i32 {number}, label %{wrong} [ {cases} ]")
            self.place(wrong)
            self.fault(NO_ENTRY, self.cast("zext", number, "i32", "i64"), self.first_lane(mask))
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
        lane = self.first_lane(bad)
        number = self.value(f"extractelement {kind} {numbers}, i32 {lane}")
        self.fault(NO_ENTRY, self.cast("zext", number, "i32", "i64"), lane)
        self.place(right)
        for index, target in enumerate(segment.targets):
            matching = self.as_mask(self.op("icmp eq", kind, numbers, self.vector.constant("i32", index)))
            matching = self.op("and", self.mask_type, matching, mask)
            ways[target] = self.op("or", self.mask_type, ways[target], matching) if target in ways else matching
        self.go(ways, certain=False)

    # --- lanes that must meet, and loops

    def _meet(self, segment: CodeSegment) -> None:
        """Write the wait for the lanes of a membermask: lanes that have not arrived yet run first."""
        assert segment.meeting is not None
        pending = self.plan.pending[self.at]
        if not pending:
            return
        mask, alive = self.current(), self.load("i32", "%alive")
        members = self._mask_named_lanes(segment.meeting.mask, mask)
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
        self.leave(self.make_stop(), mask, status)
        self.place(ready)

    def _take_turn(self, kind: int, mask: str) -> None:
        """Write a turn of other warps, unless the warp has had one of this kind since the last barrier."""
        turns = self.load("i32", self.field("%frame", FRAME_TURNS))
        is_done = self.op("icmp ne", "i32", self.op("and", "i32", turns, str(kind)), "0")
        stays, turn, on = self.op("or", "i1", is_done, "%alone"), self.label("turn"), self.label("turned")
        by_frame = comes_by_frame(self.plan, self.at)
        if not by_frame:
            self.branch(stays, on, turn)
            self.place(turn)
        self.store("i32", self.op("or", "i32", turns, str(kind)), self.field("%frame", FRAME_TURNS))
        self.leave(self.make_stop(), mask, StopReason.TURN, stays=stays if by_frame else "")
        if not by_frame:
            self.place(on)

    def _mask_named_lanes(self, mask: Argument, running: str) -> str:
        if not self.plan.is_varying(mask):
            return self.use(mask, "u32", SCALAR)
        words = self.vector.of("i32")
        value = self.use(mask, "u32", self.vector)
        value = self.choose(self.vector, self.as_lanes(running), words, value, "zeroinitializer")
        return self.call(f"llvm.vector.reduce.or.v{WARP}i32", "i32", (words, value))

    def _burn(self, weight: int) -> str:
        """Write the use of fuel; return the remaining fuel."""
        fuel = self.op("sub", "i64", self.load("i64", "%fuel"), str(weight))
        self.store("i64", fuel, "%fuel")
        return fuel

    def _check_fuel(self) -> None:
        """Write the stop at the header of a loop, for the case that the fuel is used up."""
        pause = self.label("pause")
        fuel = self._burn(self.plan.weights[self.at])
        self.branch(self.op("icmp slt", "i64", fuel, "0"), pause, f"run{self.at}", UNLIKELY)
        self.place(pause)
        may_wait, stop = self.at in self.plan.spinning, self.make_stop()
        status: str | StopReason = StopReason.POLL if may_wait else StopReason.SLICE
        if may_wait and stop.pending:
            apart = self.have_lanes(stop.pending)
            status = self.choose(SCALAR, apart, "i32", str(StopReason.SPIN.value), str(StopReason.POLL.value))
        self.leave(stop, self.load(self.mask_type, f"%m{self.at}"), status)

    # --- the whole kernel

    def write_segment(self, segment: CodeSegment) -> None:
        """Write a segment, with its stops and its end."""
        self.place(f"segment{self.at}")
        self.raw.clear()
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
        if segment.origin >= 0 and self.plan.pending[self.at] and is_barrier(self.end_of(segment).terminator):
            self.bail_if_apart()
        if segment.escapes or is_left_whole(segment.terminator):
            stop = self.make_stop()
            if segment.attempts:
                write_attempt(self, segment.operations[0])
            behind = Stop(self.at + 1, stop.pending)
            if segment.attempts and segment.operations[0].name == "nanosleep":
                return self.leave(behind, self.current(), StopReason.SLEEP)
            reason = StopReason.POLLING_ESCAPE if self.at in self.plan.in_spinning else StopReason.ESCAPE
            self.leave(stop, self.current(), reason if segment.escapes else StopReason.BAIL)
            if segment.escapes:
                self.escapes[self.number_of(stop)] = segment.operations[0], self.number_of(behind)
            return None
        self.begin_accesses(group_accesses(segment.operations, self.code.carry))
        for self.index, operation in enumerate(segment.operations):
            write(self, operation)
            self.write_first(operation, write)
        return self.write_end(segment)

    def _begin_frame(self) -> None:
        """Lay out the frame: the masks, the bank, and the registers that stay in the frame."""
        self.bank_start = -(-(FRAME_HEADER + size_of_masks(self.plan)) // BANK_ALIGNMENT) * BANK_ALIGNMENT
        self.frame_bytes = self.bank_start + size_of_bank(self.code, self.bank)
        lives = set().union(*(segment.live_in for segment in self.segments))
        self.slots = {number: self.bank_start + at for number, at in self.bank.items() if number in lives}
        if self.is_crowded:
            self.keep_in_frame(lives - self.bank.keys())

    def write_kernel(self) -> str:
        """Write the kernel, and return the text of its module. Raises NotCompiled if the text becomes too long."""
        self._begin_frame()
        for index, segment in enumerate(self.segments):
            self.at = index
            self.write_segment(segment)
            self._check_size()
        for k in find_entries(self.plan):
            self.number_of(Stop(k, tuple(sorted(self.plan.pending[k] - {k}))))
        index = 0
        while index < len(self.stops):
            self.write_entry_of(index)
            self._check_size()
            index += 1
        self.write_dispatch()
        self._write_nothing()
        body, self.lines = self.lines, []
        self._write_entry()
        tail = ["done:", f"  ret i32 {StopReason.DONE.value}", "fault:", f"  ret i32 {StopReason.FAULT.value}", "}"]
        head = f"define i32 @{FUNCTION}(ptr noalias %ctx, ptr noalias %frame) #0 {{\nentry:"
        wide = 'nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512"'
        attributes = f"attributes #0 = {{ {wide} }}\nattributes #1 = {{ noinline {wide} }}"
        parts = [*self.tables, head, *self.lines, *body, *tail, *sorted(self.declared), attributes, METADATA]
        return "\n".join(parts) + "\n"

    def _check_size(self) -> None:
        """Raise NotCompiled if the text is already too long, before the rest of it is written.

        The whole text of some kernels would be a thousand times longer than allowed.
        """
        self._characters += sum(map(len, self.lines[self._counted :]))
        self._counted = len(self.lines)
        if self._characters > MAX_TEXT:
            raise NotCompiled(f"more than {MAX_TEXT} characters of LLVM's text, the most that is compiled")

    def _write_nothing(self) -> None:
        """Write the code for a warp that has no lanes in any segment: all have exited, or it is an internal error."""
        lost = self.label("lost")
        self.place("nothing")
        alive = self.load(self.mask_type, "%alive")
        self.branch(self.op("icmp eq", self.mask_type, alive, "0"), "done", lost)
        self.place(lost)
        self.fault(NO_SEGMENT, "0", self.first_lane(alive))

    def _write_entry(self) -> None:
        """Write the entry: variables of masks and registers, the worker's values, and the jump to the warp's stop."""
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
            self.line(f"%b{place} = getelementptr i8, ptr %frame, i64 {self.bank_start + place}")
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
        self.store(mask, self.load_saved_mask(self.field("%frame", FRAME_ALIVE)), "%alive")
        cases = " ".join(f"i32 {index}, label %enter{index}" for index in range(1, len(self.stops)))
        self.line(f"switch i32 {self.load('i32', '%frame')}, label %enter0 [ {cases} ]")
