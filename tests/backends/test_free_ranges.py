"""Free ranges against a model: the set of the free granules."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pympsd_server.backends.budget import GRANULE_BYTES, round_up_to_granules
from pympsd_server.backends.free_ranges import FreeRanges, NoRange

BASE, SIZE = 8 * GRANULE_BYTES, 64 * GRANULE_BYTES


def lengths_of(free: set[int]) -> dict[int, int]:
    """Return the start and the length of each run of free granules."""
    starts = sorted(at for at in free if at - GRANULE_BYTES not in free)
    ends = sorted(at + GRANULE_BYTES for at in free if at + GRANULE_BYTES not in free)
    return {start: end - start for start, end in zip(starts, ends, strict=True)}


class Taking(RuleBasedStateMachine):
    """Take ranges and give them back."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.ranges = FreeRanges(BASE, SIZE)
        self.free = set(range(BASE, BASE + SIZE, GRANULE_BYTES))

    @rule(
        target=taken,
        count=st.integers(1, SIZE // 4),
        alignment=st.sampled_from([1, GRANULE_BYTES, 4 * GRANULE_BYTES]),
        is_at_end=st.booleans(),
    )
    def take(self, count: int, alignment: int, is_at_end: bool) -> tuple[int, int]:
        size, step = round_up_to_granules(count), max(alignment, GRANULE_BYTES)
        lengths = lengths_of(self.free)
        fitting = [low for low, length in lengths.items() if -(-low // step) * step + size <= low + length]
        try:
            start = (self.ranges.take_at_end if is_at_end else self.ranges.take)(count, alignment)
        except NoRange:
            assert not fitting
            return 0, 0
        assert start % alignment == 0
        low = max(low for low in lengths if low <= start)
        assert low == (max(fitting) if is_at_end else min(fitting, key=lambda at: (lengths[at], at)))
        granules = set(range(start, start + size, GRANULE_BYTES))
        assert granules <= self.free
        self.free -= granules
        return start, count

    @rule(taken=consumes(taken))
    def give(self, taken: tuple[int, int]) -> None:
        start, count = taken
        if count:
            self.ranges.give(start, count)
            self.free |= set(range(start, start + round_up_to_granules(count), GRANULE_BYTES))

    @invariant()
    def the_longest_range_is_one(self) -> None:
        length = max(lengths_of(self.free).values(), default=0)
        with pytest.raises(NoRange, match=f"no free range of {length + GRANULE_BYTES} bytes"):
            self.ranges.take(length + 1)
        if length:
            self.ranges.give(self.ranges.take(length), length)


TestTaking = Taking.TestCase
