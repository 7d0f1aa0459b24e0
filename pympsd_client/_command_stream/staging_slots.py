"""Parts of the shared memory for records: taken, waited for, given back when they are copied out."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pympsd_client._command_stream.transport import Transport
    from pympsd_client._objects.context import Context

_ROOM_RECHECK_MS: Final = 1
"""A part that another thread has copied out is told by no answer, and who waits may be reading answers."""


def take_part(transport: Transport, sequence: int, count: int, context: Context, kept: bool = False) -> int:
    """Return the offset of ``count`` bytes of shared memory for a record; wait for room.

    A thread that has kept parts of its own must not wait here: it asks ``shared.take`` instead.
    """
    found: list[int] = []

    def there_is_room() -> bool:
        if not found:  # asked more than once while it waits; a part is taken once
            offset = transport.shared.take(sequence, count, context, kept)
            found.extend(() if offset is None else (offset,))
        return bool(found)

    if not there_is_room():
        waiting = -sequence  # no record has a negative number: woken for every part that is given back
        gate = Lock()
        gate.acquire()
        transport.expect(waiting, gate)
        try:
            transport.wait(gate, there_is_room, _ROOM_RECHECK_MS)
        finally:
            transport.forget(waiting)
    return found[0]


def release_when_answered(transport: Transport, sequence: int) -> None:
    """A kept part is needed no more: free now if its answer has come, else as soon as it does."""
    transport.shared.keep_no_more(sequence)
    if sequence in transport.arrived():
        transport.give_part_back(sequence)
