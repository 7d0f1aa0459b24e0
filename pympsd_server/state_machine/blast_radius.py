"""The blast radius of a fatal fault: the devices that clients connect to the faulty one, and all their clients.

Contexts and devices form a graph: a client process connects all devices on which it has contexts. A fault begins in
one *fault domain* (the contexts of an executor slot, or of one SM partition in it) and spreads along these edges
until they lead to nothing new:

    for each domain in the list, in order:
        all contexts of the domain                          -> steps OnDevice
        all contexts of each of their processes             -> steps WholeProcess
        the domains of those contexts, unless found already -> appended to the loop

The steps keep the order of discovery, because driver 580 logs them in that order.

If each user has separate executors, a fault stays within its user's executors: other users' work on the same device
runs in other processes, which continue (docs/decisions/006). If clients do not share an address space either, the
fault of a context in a static SM partition stays within the contexts of that partition.

Source: the MPS documents, 2.3.3.2 (Error Containment), and the recorded sessions several-gpus and
faults-and-shutdown.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_server.state_machine.client_table import ClientRecord, ContextRecord
from pympsd_server.state_machine.executor_slots import ExecutorSlot, FaultDomain

OTHER_DEVICES_ERROR: Final = Result.ERROR_LAUNCH_FAILED
"""The error of contexts on other devices (recorded); contexts on the faulty device get the fault's own error."""


@frozen
class OnDevice:
    """A context is torn down because of its device.

    One step for each context of a domain, in the order of the clients and of the contexts' numbers.
    """

    client: ClientRecord
    context: ContextRecord


@frozen
class WholeProcess:
    """All contexts of a process are torn down, in the order in which they were created.

    One step for each process, after the OnDevice steps of the domain in which it was found: a process that loses one
    context loses all (MPS documents, 2.3.3.2).
    """

    client: ClientRecord
    contexts: tuple[ContextRecord, ...]


@frozen
class Blast:
    """The reach of a fault; ``steps`` are in the order of discovery, as driver 580 logs them."""

    steps: tuple[OnDevice | WholeProcess, ...] = ()
    slots: tuple[ExecutorSlot, ...] = ()
    """The slots whose executors must be replaced, sorted by device; empty if SM partitions contain the fault."""
    clients: tuple[ClientRecord, ...] = ()
    """The clients that get a sticky error, in the order of discovery."""
    contexts: frozenset[int] = frozenset()
    """The ids of all contexts to tear down."""

    @property
    def devices(self) -> tuple[int, ...]:
        """The ordinals of the reached devices.

        Devices whose fault stayed in an SM partition are left out, because their executors are not replaced.
        """
        return tuple(slot.device for slot in self.slots)


def blast_of(faulty: Iterable[FaultDomain], clients: Iterable[ClientRecord]) -> Blast:
    """Return the reach of a fatal fault that was detected in some domains.

    Args:
        faulty: The domains in which the fault was detected, the first one first; driver 580 logs the steps in this
            order.
        clients: All clients of the server, in the order in which they connected. Clients without contexts are not
            reached.

    For example, a fault of client 1 on device 0 reaches client 2 there, and through client 2's context on device 1
    also client 3, which uses only device 1.
    """
    present = tuple(clients)
    steps: list[OnDevice | WholeProcess] = []
    domains, affected = [*faulty], []
    for domain in domains:  # grows during the loop
        members = [
            (client, context) for client in present for context in _contexts(client) if context.fault_domain == domain
        ]
        steps += [OnDevice(client, context) for client, context in members]
        for client, _ in members:
            if client not in affected:
                affected.append(client)
                steps.append(WholeProcess(client, tuple(_contexts(client))))
                domains += dict.fromkeys(
                    reached.fault_domain for reached in _contexts(client) if reached.fault_domain not in domains
                )
    slots = {domain.slot for domain in domains if not domain.partition}
    contexts = frozenset(context.id for client in affected for context in _contexts(client))
    return Blast(tuple(steps), tuple(sorted(slots)), tuple(affected), contexts)


def sticky_error(fault_on: int, code: int, context: ContextRecord) -> int:
    """Return the result of every later call in a context that is torn down.

    Args:
        fault_on: The server's ordinal of the faulty device.
        code: The CUresult of the fault, such as ERROR_ILLEGAL_ADDRESS.
        context: The context. On another device than ``fault_on`` it gets OTHER_DEVICES_ERROR (recorded:
            several-gpus).
    """
    return code if context.device == fault_on else OTHER_DEVICES_ERROR


def _contexts(client: ClientRecord) -> Iterator[ContextRecord]:
    return iter(sorted(client.contexts.values(), key=lambda context: context.number))
