"""The lanes of an executable graph's items; the first is the stream that it is launched in.

An item goes on in the lane of the last item it depends on; dependencies between lanes are events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

LANE_LIMIT: Final = 16
"""More branches than this share lanes, which orders them."""


@frozen
class LaneAssignment:
    """An item's lane, the items of other lanes it waits for, and whether others wait for it."""

    lane: int
    waits_for: tuple[int, ...]
    begins_lane: bool
    """Whether it must wait for the launch itself: it is the first of its lane, and after nothing."""
    is_awaited: bool


def assign_lanes(dependencies: Sequence[Sequence[int]], limit: int = LANE_LIMIT) -> list[LaneAssignment]:
    """Return the lanes of items, given what each depends on (indices of earlier ones)."""
    lanes: list[int] = []
    tails: list[int] = []
    """The last item of each lane so far."""
    waits: list[tuple[int, ...]] = []
    begins = []
    for index, after in enumerate(dependencies):
        lane = next((lanes[each] for each in sorted(after, reverse=True) if tails[lanes[each]] == each), -1)
        if lane < 0:
            lane = len(tails) if len(tails) < limit else index % limit
        if lane == len(tails):
            tails.append(index)
        tails[lane] = index
        begins.append(lane > 0 and lane not in lanes and not after)
        latest: dict[int, int] = {}
        for each in after:
            latest[lanes[each]] = max(each, latest.get(lanes[each], -1))
        waits.append(tuple(each for other, each in latest.items() if other != lane))
        lanes.append(lane)
    awaited = {each for some in waits for each in some} | set(tails[1:])
    return [LaneAssignment(lanes[at], waits[at], begins[at], at in awaited) for at in range(len(lanes))]
