"""Slots of the staging memory for records: taken, waited for, freed when they are copied out."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pympsd_client._command_stream.answers import Poisonable
    from pympsd_client._command_stream.transport import Transport

_ROOM_RECHECK_MS: Final = 1
"""No answer announces a slot that another thread has copied out, and the waiting thread may be reading answers."""


def take_slot(transport: Transport, sequence: int, count: int, context: Poisonable, kept: bool = False) -> int:
    """Return the offset of a slot of ``count`` bytes for a record; wait for room.

    A thread that has kept slots must not wait: it calls ``staging.take`` instead.
    """
    found: list[int] = []

    def has_room() -> bool:
        if not found:  # called more than once during a wait; a slot is taken once
            offset = transport.staging.take(sequence, count, context, kept)
            found.extend(() if offset is None else (offset,))
        return bool(found)

    if not has_room():
        waiting = -sequence  # no record has a negative number: woken for every slot that is freed
        gate = Lock()
        gate.acquire()
        transport.expect(waiting, gate)
        try:
            transport.wait(gate, has_room, _ROOM_RECHECK_MS)
        finally:
            transport.discard(waiting)
    return found[0]


def release_slot(transport: Transport, sequence: int) -> None:
    """Free a kept slot: now if its answer has come, else as soon as it does."""
    transport.staging.release_on_answer(sequence)
    if sequence in transport.answered():
        transport.free_slot(sequence)
