"""The slots of an executable graph's items; the first is the stream that it is launched in.

An item continues in the slot of the last item it depends on; dependencies between slots are events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

MAX_SLOTS: Final = 16
"""More branches than this share slots, which orders them."""


@frozen
class SlotAssignment:
    """An item's slot, the items of other slots it waits for, and whether others wait for it."""

    slot: int
    waits_for: tuple[int, ...]
    begins_slot: bool
    """Whether it must wait for the launch itself: it is the first of its slot, and after nothing."""
    is_waited_for: bool


def assign_slots(dependencies: Sequence[Sequence[int]], limit: int = MAX_SLOTS) -> list[SlotAssignment]:
    """Return the slots of items, given what each depends on (indices of earlier ones)."""
    slots: list[int] = []
    tails: list[int] = []
    """The last item of each slot."""
    waits: list[tuple[int, ...]] = []
    begins = []
    for index, after in enumerate(dependencies):
        slot = next((slots[each] for each in sorted(after, reverse=True) if tails[slots[each]] == each), -1)
        if slot < 0:
            slot = len(tails) if len(tails) < limit else index % limit
        if slot == len(tails):
            tails.append(index)
        tails[slot] = index
        begins.append(slot > 0 and slot not in slots and not after)
        latest: dict[int, int] = {}
        for each in after:
            latest[slots[each]] = max(each, latest.get(slots[each], -1))
        waits.append(tuple(each for other, each in latest.items() if other != slot))
        slots.append(slot)
    awaited = {each for some in waits for each in some} | set(tails[1:])
    return [SlotAssignment(slots[at], waits[at], begins[at], at in awaited) for at in range(len(slots))]
