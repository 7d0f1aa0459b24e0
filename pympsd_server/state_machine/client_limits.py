"""The limits in force for a client: its percentage of the SMs, its memory, its static SM partitions. Sans-I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, evolve, field

from pympsd.devices import memory_limits
from pympsd.devices.machine import with_attributes
from pympsd.devices.memory_limits import BadEntry
from pympsd.errors import InputError
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import LimitsInForce, ThreadPercentage
from pympsd.vocabulary.partitions import ChosenPartition
from pympsd.vocabulary.partitions import multiprocessors as sms_of
from pympsd.wire.messages import OpenContext
from pympsd_server.state_machine.quotas import context_multiprocessors, memory_limit, process_multiprocessors


class PartitionRefused(InputError, ValueError):
    """A client gets no context on a device, which is in static use; the message says why."""


@define
class ClientLimits:
    """The limits of a client as of its connect, lowered by its environment; later changes are for later clients."""

    thread_percentage: ThreadPercentage
    memory: dict[int, int]
    """Bytes by device ordinal."""
    partitions: dict[int, ChosenPartition] = field(factory=dict)
    """What it gets on devices in static use, by ordinal."""

    def lower_memory(
        self, environment: Mapping[str, str], ordinals: Sequence[int], visible: Sequence[DeviceFacts]
    ) -> list[BadEntry]:
        """Lower the limits of memory by the client's environment; return its invalid entries.

        A number there counts among the devices that the client sees.
        """
        limits, bad = memory_limits.read(visible, memory_limits.text_of(environment), "this process")
        bad = [evolve(each, variable=memory_limits.variable_of(environment)) for each in bad]
        own = {ordinals[number]: limit.value for number, limit in limits.items()}
        of_all, bad_of_all = memory_limits.of_container(environment)
        self.memory = {
            each: memory_limit(self.memory.get(each, 0), memory_limit(own.get(each, 0), of_all)) for each in ordinals
        }
        return bad + bad_of_all

    def partition(self, ordinal: int) -> ChosenPartition:
        """Return its partition of a device, one without chunks if it has none there; raise PartitionRefused."""
        chosen = self.partitions.get(ordinal, ChosenPartition())
        if chosen.problem:
            raise PartitionRefused(chosen.problem)
        return chosen

    def as_seen(self, ordinal: int, device: DeviceFacts) -> DeviceFacts:
        """Return a device as the client sees it: with the SMs of its percentage (MPS documents, 2.3.5.2), at most
        those of its partition.
        """
        count = process_multiprocessors(self.thread_percentage, device, self._most(ordinal, device))
        return with_attributes(device, MULTIPROCESSOR_COUNT=count)

    def in_force(
        self, priority: int, ordinals: Sequence[int], seen: Sequence[DeviceFacts]
    ) -> tuple[LimitsInForce, dict[int, str]]:
        """Return the limits in force for the client, and its partitions, by ordinals of the devices that it sees."""
        counts = (device.attributes["MULTIPROCESSOR_COUNT"] for device in seen)
        multiprocessors = dict(zip(ordinals, counts, strict=True))
        memory = {ordinal: self.memory[ordinal] for ordinal in ordinals if self.memory.get(ordinal)}
        partitions = {ordinal: one.name for ordinal, one in self.partitions.items() if one.name}
        return LimitsInForce(self.thread_percentage.value, priority, memory, multiprocessors), partitions

    def multiprocessors(
        self, ordinal: int, device: DeviceFacts, environment: Mapping[str, str], asked: OpenContext
    ) -> int:
        """Return the SMs of a requested context: the client can only lower those of its process. Raise
        PartitionRefused or AffinityRefused.
        """
        self.partition(ordinal)
        limits = asked.thread_percentage, asked.affinity, asked.partition, self._most(ordinal, device)
        return context_multiprocessors(self.thread_percentage, environment, device, *limits)

    def _most(self, ordinal: int, device: DeviceFacts) -> int | None:
        chunks = self.partitions.get(ordinal, ChosenPartition()).chunks
        return len(sms_of(device, chunks)) if chunks else None
