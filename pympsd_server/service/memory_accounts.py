"""The memory of clients on each device, by executor and in other servers.

Each executor is sent the bytes that clients hold elsewhere.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import trio
from attrs import define, field

from pympsd.wire.executor_messages import OthersMemory
from pympsd_server.service.executor import Executor
from pympsd_server.state_machine.executor_slots import ExecutorSlot


@define
class MemoryAccounts:
    """Bytes of device memory, as last reported."""

    groups_of: Callable[[int, int], Iterable[str]] = lambda client, device: ()
    """Returns the groups of a client, by id, whose limits hold on a device."""
    changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    """The tasks that wait for the next report."""
    _held: dict[ExecutorSlot, dict[int, int]] = field(factory=dict, init=False)
    """The bytes of each client, by slot."""
    _other_servers: dict[int, Counter[str]] = field(factory=dict, init=False)
    """The bytes in other servers, by device and group; the sum of all is under an empty name."""
    _sent: dict[ExecutorSlot, OthersMemory] = field(factory=dict, init=False)
    _executors: dict[ExecutorSlot, Executor] = field(factory=dict, init=False)

    def usage(self, device: int) -> dict[int, int]:
        """Return what clients hold on a device, by id."""
        of_device = (usage for other, usage in self._held.items() if other.device == device)
        return {client: count for usage in of_device for client, count in usage.items()}

    def in_slot(self, slot: ExecutorSlot) -> dict[int, int]:
        """Return what the clients in a slot hold."""
        return self._held.get(slot, {})

    def report(self, slot: ExecutorSlot, bytes_by_client: dict[int, int]) -> None:
        """Store what a slot's clients hold, and send it to the other executors of its device."""
        self._held[slot] = bytes_by_client
        self.changed.unpark_all()
        self._send(slot.device)

    def set_other_servers(self, device: int, count: int, groups: dict[str, int]) -> None:
        """Store what is held in other servers, and send it to the executors of the device."""
        self._other_servers[device] = Counter({**groups, "": count})
        self._send(device)

    def add_executor(self, executor: Executor) -> None:
        """Send a new executor what others hold."""
        self._executors[executor.slot] = executor
        self._send(executor.device)

    def remove_executor(self, slot: ExecutorSlot) -> None:
        """Remove the executor of a slot, and what its clients held."""
        self._executors.pop(slot, None)
        self._sent.pop(slot, None)
        self.report(slot, {})

    def _send(self, device: int) -> None:
        for slot, executor in self._executors.items():
            if slot.device != device:
                continue
            others = Counter(self._other_servers.get(slot.device, Counter()))
            for other, clients in self._held.items():
                if other.device == slot.device and other != slot:
                    for client, count in clients.items():
                        others.update(dict.fromkeys(("", *self.groups_of(client, slot.device)), count))
            message = OthersMemory(others.pop("", 0), dict(others))
            if message != self._sent.get(slot, OthersMemory(0, {})):
                self._sent[slot] = message
                executor.channel.send(message)
