"""Write how lanes go from segment to segment: the masks of pending lanes, and the choice of the next segment.

The problem: after each segment, the lowest segment that has lanes runs. In an unstructured kernel (breaks out of
nested loops, locks, early returns) lanes may meanwhile be at 150 other segments. A ladder of tests at the end of each
of 180 segments has 15,000 branches. Every register needs a phi after each of them, and every stop saves 150 masks.
LLVM did not finish within a minute.

The idea: nearly all kernels have few pending segments. They use the ladder, and their masks are variables. A
*crowded* kernel has its masks in the warp's frame, where a stop needs them anyway, and a bit for each segment that
has lanes:

    end of segment 7: lanes go to 9 or 12       waiting & (bits pending below 9)  != 0   dispatch
                                                mask of 9                         != 0   segment 9
                                                waiting & (bits between 9 and 12) != 0   dispatch
                                                mask of 12                        != 0   segment 12
                                                otherwise                                dispatch
    dispatch                                    a switch by the lowest bit of `waiting`

So the program's own branches remain branches, and one switch does everything else. Registers that live across
segments are in the frame, too, because the switch would need a phi for each of them.

Invariant: a segment's bit is set if its mask is not 0, except in the segment's own code while it runs. Only the masks
of segments that are pending in the plan may be set, so the lowest bit is the segment that the ladder would find. When
a warp continues at a stop, the bits are computed from the masks, because the NumPy tier writes masks.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

from attrs import define

from pympsd_server.ptx.compiled_tier.native_runtime import FRAME_HEADER
from pympsd_server.ptx.compiled_tier.planning.analysis import WarpPlan
from pympsd_server.ptx.compiled_tier.text.memory_text import MemoryText
from pympsd_server.ptx.isa.machine import WARP
from pympsd_server.ptx.lowering.control_flow import EXIT

MAX_LADDER_TESTS: Final = 1500
"""The maximum number of tests in all ladders; a sorting network of 292 segments has 288, crowded kernels 14,000."""
_WORD: Final = 64


def is_crowded(plan: WarpPlan) -> bool:
    """Return whether a kernel has so many pending segments that a switch must choose the next segment."""
    return sum(map(len, plan.pending)) > MAX_LADDER_TESTS


def size_of_masks(plan: WarpPlan) -> int:
    """Return the bytes of the masks in a frame: a mask for each segment; crowded kernels have a multiple of _WORD."""
    count = len(plan.segments)
    return 4 * (-(-count // _WORD) * _WORD if is_crowded(plan) else count)


@define(slots=False)
class DispatchText(MemoryText):
    """The part of a kernel's writer for the code between segments."""

    @cached_property
    def is_crowded(self) -> bool:
        """Whether masks and registers are in the frame, and a switch chooses segments."""
        return is_crowded(self.plan)

    @cached_property
    def _words(self) -> range:
        return range(-(-len(self.plan.segments) // _WORD))

    def mask_place(self, segment: int) -> str:
        """Return a pointer to the mask of a segment in the frame."""
        return self.field("%frame", FRAME_HEADER + 4 * segment)

    def load_saved_mask(self, place: str) -> str:
        """Load the mask at a place in the frame."""
        word = self.load("i32", place)
        return self.cast("trunc", word, "i32", self.mask_type) if self.width < WARP else word

    def declare_masks(self) -> None:
        """Write the variables of the masks, at the kernel's entry."""
        for k in range(len(self.plan.segments)):
            if self.is_crowded:
                self.line(f"%m{k} = getelementptr i8, ptr %frame, i64 {FRAME_HEADER + 4 * k}")
                continue
            self.line(f"%m{k} = alloca {self.mask_type}")
            self.store(self.mask_type, "0", f"%m{k}")
        for word in self._words if self.is_crowded else ():
            self.line(f"%waiting{word} = alloca i64")
            self.line(f"%chosen{word} = alloca i64")

    def save_masks(self, segments: Iterable[int]) -> None:
        """Save the masks of pending segments in the frame; those of a crowded kernel are already there."""
        for k in segments if not self.is_crowded else ():
            self.store("i32", self.as_word(self.load(self.mask_type, f"%m{k}")), self.mask_place(k))

    def restore_masks(self, mask: str, segment: int, pending: Iterable[int]) -> dict[int, str]:
        """Set a segment's mask, and load the masks of pending segments from the frame; return these masks by segment.

        A crowded kernel does not load masks; it computes the bits of all masks.
        """
        masks = {segment: mask}
        if not self.is_crowded:
            masks |= {k: self.load_saved_mask(self.mask_place(k)) for k in pending}
        for k, lanes in masks.items():
            self.store(self.mask_type, lanes, f"%m{k}")
        for word in self._words if self.is_crowded else ():
            lanes = self.load(f"<{_WORD} x i32>", self.mask_place(_WORD * word), 4)
            there = self.op("icmp ne", f"<{_WORD} x i32>", lanes, "zeroinitializer")
            self.store("i64", self.cast("bitcast", there, f"<{_WORD} x i1>", "i64"), f"%waiting{word}")
        return masks

    def begin_running(self) -> None:
        """Make the lanes of the current segment the running ones: clear its mask and its bit."""
        self.store(self.mask_type, self.load(self.mask_type, f"%m{self.at}"), "%cur")
        self.store(self.mask_type, "0", f"%m{self.at}")
        if self.is_crowded:
            name = f"%waiting{self.at // _WORD}"
            self.store("i64", self.op("and", "i64", self.load("i64", name), str(~(1 << self.at % _WORD))), name)

    def have_lanes(self, segments: Iterable[int]) -> str:
        """Return, as i1, whether any of the segments has lanes."""
        if not self.is_crowded:
            union = "0"
            for k in segments:
                union = self.op("or", self.mask_type, union, self.load(self.mask_type, f"%m{k}"))
            return self.op("icmp ne", self.mask_type, union, "0")
        some = "0"
        for word, bits in _bits_by_word(segments).items():
            some = self.op("or", "i64", some, self._masked_word(word, bits))
        return self.op("icmp ne", "i64", some, "0")

    def _masked_word(self, word: int, bits: int) -> str:
        return self.op("and", "i64", self.load("i64", f"%waiting{word}"), str(bits))

    # --- to the next segment

    def go(self, arriving: dict[int, str], *, certain: bool) -> None:
        """Write the jump to the lowest segment that has lanes.

        `arriving` has the mask of the lanes that go to each segment. Lanes may also be pending at other segments.
        `certain` is True if some segment certainly has lanes.
        """
        pending = self.plan.pending[self.at]
        for k, mask in arriving.items():
            if k in pending:
                mask = self.op("or", self.mask_type, mask, self.load(self.mask_type, f"%m{k}"))
            self.store(self.mask_type, mask, f"%m{k}")
            if self.is_crowded:
                self._note_waiting(k, mask)
        candidates = sorted(pending | set(arriving))
        while candidates:
            k = candidates.pop(0)
            if self.is_crowded and k not in arriving:
                run = [k]
                while candidates and candidates[0] not in arriving:
                    run.append(candidates.pop(0))
                if not candidates:
                    return self.jump("dispatch")
                self._test(self.have_lanes(run), "dispatch")
                continue
            if certain and not candidates:
                return self.jump(f"segment{k}")
            there = self.load(self.mask_type, f"%m{k}")
            self._test(self.op("icmp ne", self.mask_type, there, "0"), f"segment{k}")
        return self.jump("nothing")

    def _test(self, truth: str, label: str) -> None:
        following = self.label("next")
        self.branch(truth, label, following)
        self.place(following)

    def _note_waiting(self, segment: int, mask: str) -> None:
        """Set the bit of a segment if lanes have arrived at it."""
        name, bit = f"%waiting{segment // _WORD}", str(1 << segment % _WORD)
        some = self.op("icmp ne", self.mask_type, mask, "0")
        bits = self.value(f"select i1 {some}, i64 {bit}, i64 0")
        self.store("i64", self.op("or", "i64", self.load("i64", name), bits), name)

    def go_elsewhere(self, mask: str, segments: list[int], nowhere: str) -> str:
        """Let lanes wait here, and go to the lowest of `segments` that has lanes, or if none has, to `nowhere`.

        Return the label of the basic block from which control goes to `nowhere`.
        """
        self.store(self.mask_type, mask, f"%m{self.at}")
        if self.is_crowded:
            self._note_waiting(self.at, mask)
            masks, last = _bits_by_word(segments), self.label("elsewhere")
            for word in self._words:
                self.store("i64", self._masked_word(word, masks.get(word, 0)), f"%chosen{word}")
            some = self.have_lanes(segments)
            self.continue_at(last)
            self.branch(some, "choose", nowhere)
            return last
        last = self.label("elsewhere")
        self.continue_at(last)
        for k in segments:
            last = self.label("next")
            self.branch(
                self.op("icmp ne", self.mask_type, self.load(self.mask_type, f"%m{k}"), "0"), f"segment{k}", last
            )
            self.place(last)
        self.jump(nowhere)
        return last

    def write_dispatch(self) -> None:
        """Write the switch of a crowded kernel: it selects the segment of the lowest bit in the words `%chosenN`."""
        if not self.is_crowded:
            return
        self.place("dispatch")
        for word in self._words:
            self.store("i64", self.load("i64", f"%waiting{word}"), f"%chosen{word}")
        self.continue_at("choose")
        for word, bits in _bits_by_word(set().union(*self.plan.pending)).items():
            value, find, following = self.load("i64", f"%chosen{word}"), self.label("find"), self.label("choose")
            self.branch(self.op("icmp ne", "i64", value, "0"), find, following)
            self.place(find)
            lowest = self.call("llvm.cttz.i64", "i64", ("i64", value), ("i1", "true"))
            places = [bit for bit in range(_WORD) if bits >> bit & 1]
            cases = " ".join(f"i64 {bit}, label %segment{_WORD * word + bit}" for bit in places)
            self.line(f"switch i64 {lowest}, label %nothing [ {cases} ]")
            self.place(following)
        self.jump("nothing")

    # --- lanes that end

    def end_lanes(self, mask: str) -> None:
        """Remove lanes that have exited from `%alive`."""
        alive = self.load(self.mask_type, "%alive")
        remaining = self.op("xor", self.mask_type, mask, "-1")
        self.store(self.mask_type, self.op("and", self.mask_type, alive, remaining), "%alive")

    def go_ways(self, ways: dict[int, str]) -> None:
        """Send the running lanes to segments, by their masks; EXIT ends lanes."""
        certain = EXIT not in ways
        if not certain:
            self.end_lanes(ways.pop(EXIT))
        self.go(ways, certain=certain)


def _bits_by_word(segments: Iterable[int]) -> dict[int, int]:
    """Return the words that contain bits of the segments, by index in ascending order."""
    words: dict[int, int] = {}
    for k in sorted(segments):
        words[k // _WORD] = words.get(k // _WORD, 0) | 1 << k % _WORD
    return words
