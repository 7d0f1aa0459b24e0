"""The slots of an executable graph's items; the first is the stream that it is launched in.

An item continues in the slot of the last item it depends on; dependencies between slots are events.
"""

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
        slot = next(
            (slots[earlier] for earlier in sorted(after, reverse=True) if tails[slots[earlier]] == earlier), -1
        )
        if slot < 0:
            slot = len(tails) if len(tails) < limit else index % limit
        if slot == len(tails):
            tails.append(index)
        tails[slot] = index
        begins.append(slot > 0 and slot not in slots and not after)
        latest: dict[int, int] = {}
        for earlier in after:
            latest[slots[earlier]] = max(earlier, latest.get(slots[earlier], -1))
        waits.append(tuple(earlier for other, earlier in latest.items() if other != slot))
        slots.append(slot)
    waited_for = {earlier for some in waits for earlier in some} | set(tails[1:])
    return [SlotAssignment(slots[at], waits[at], begins[at], at in waited_for) for at in range(len(slots))]
