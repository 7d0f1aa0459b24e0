"""How far a fatal fault reaches: the devices connected to the faulty one through shared clients, and who is on them.

Where users have executors of their own a fault stays among the executors of its user: what runs on the same device
for others is in another process, whose work goes on (docs/decisions/006).

Source: the MPS documents, 2.3.3.2 (Error Containment), and the recorded sessions several-gpus and
faults-and-shutdown, whose order of discovery this keeps: the contexts of a device, then the processes they belong
to with all their contexts, then the devices those have led to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_server.state_machine.executor_slots import Place
from pympsd_server.state_machine.roster import Client, Context

ELSEWHERE: Final = Result.ERROR_LAUNCH_FAILED
"""What contexts on the other devices get (recorded); those on the faulty one get the culprit's own error."""


@frozen
class OnDevice:
    """A context is torn down because of the device it is on."""

    client: Client
    context: Context


@frozen
class WholeProcess:
    """A process is affected: all its contexts are torn down, in the order they were made."""

    client: Client
    contexts: tuple[Context, ...]


@frozen
class Blast:
    """What a fault reaches. ``steps`` is the way there, as driver 580 logs it."""

    steps: tuple[OnDevice | WholeProcess, ...] = ()
    places: tuple[Place, ...] = ()
    """Whose executors are to be replaced, in order of their devices' ordinals."""
    clients: tuple[Client, ...] = ()
    """To be given a sticky error, in the order they were found."""
    contexts: frozenset[int] = frozenset()
    """Serials of all contexts that are torn down."""

    @property
    def devices(self) -> tuple[int, ...]:
        """The ordinals of the devices it reaches."""
        return tuple(place.device for place in self.places)


def blast_of(fault_at: Place, clients: Iterable[Client]) -> Blast:
    """Return what a fatal fault at a place reaches, given all clients of the server in the order they came."""
    present = tuple(clients)
    steps: list[OnDevice | WholeProcess] = []
    places, affected = [fault_at], []
    for place in places:  # grows while it is walked
        here = [client for client in present if any(context.place == place for context in _of(client))]
        steps += [OnDevice(client, context) for client in here for context in _of(client) if context.place == place]
        for client in here:
            if client not in affected:
                affected.append(client)
                steps.append(WholeProcess(client, tuple(_of(client))))
                places += dict.fromkeys(each.place for each in _of(client) if each.place not in places)
    contexts = frozenset(context.serial for client in affected for context in _of(client))
    return Blast(tuple(steps), tuple(sorted(places)), tuple(affected), contexts)


def sticky_error(fault_on: int, code: int, context: Context) -> int:
    """Return the result that every later call in a torn down context gets."""
    return code if context.device == fault_on else ELSEWHERE


def _of(client: Client) -> Iterator[Context]:
    return iter(sorted(client.contexts.values(), key=lambda context: context.number))
