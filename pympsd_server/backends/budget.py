"""Accounts of device memory in bytes, for both backends: of the device, of groups of clients, and of each client.

Three accounts have to agree before a client gets memory, and all three are charged or none:

    ClientBudget.take(n)
        own limit of the client                 else OUT_OF_MEMORY with the limit
        GroupBudget of each of its groups       else OUT_OF_MEMORY with the group (namespaces, cgroups)
        DeviceBudget                            else OUT_OF_MEMORY, or a Shortage

A `Shortage` means that the client is within a soft limit: the memory is guaranteed to it, so the server may end
clients that exceed their soft limits (`service.eviction`), and the allocation is tried again.

A device may have several executors, for other users or SM partitions. Each keeps accounts of its own, and the server
sends it the bytes that the others hold (`account_others`). A real GPU also reports the total in use, which includes
other programs.

`AccountedDevice` is the part of a device that both backends share. Operators and tests read `Counters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from attrs import define, field

from pympsd.vocabulary.limits import MemoryGroup
from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Audit
from pympsd_server.backends.interface import BackendError

NOTEWORTHY_BYTES: Final = 64 << 20
"""The smallest amount of memory in bytes that is counted when others free it on the device."""
AUDITED_BYTES: Final = 1 << 20
"""The size in bytes above which an audited client's allocation or free is reported."""
GRANULE_BYTES: Final = 512
"""The size of a granule in bytes. Accounts hold whole granules, as the address space places allocations in them."""


class Shortage(BackendError):
    """The device lacks ``short`` bytes for a client that is within its soft limit, so other clients may be ended.

    The executor reports it to its server, which chooses the clients (`pympsd_server.state_machine.eviction`).
    """

    def __init__(self, reason: str, short: int) -> None:
        super().__init__(Result.ERROR_OUT_OF_MEMORY, reason)
        self.short = short


def round_up_to_granules(count: int) -> int:
    """Return the number of bytes charged for an allocation of ``count`` bytes.

    >>> round_up_to_granules(1), round_up_to_granules(512), round_up_to_granules(513)
    (512, 512, 1024)
    """
    return -(-count // GRANULE_BYTES) * GRANULE_BYTES


@define(eq=False)
class DeviceBudget:
    """All memory of one device, in bytes; safe to use from several threads.

    ``in_all`` returns the bytes in use on the device, by clients of this executor and by others. It is called at the
    start, and before a client is refused, because others may have freed some since. If it is None, the server reports
    what others hold (`account_others`).
    """

    total: int
    in_all: Callable[[], int] | None = None
    used: int = field(default=0, init=False)
    on_change: Callable[[], None] | None = field(default=None, init=False)
    """The function to call, from any thread, after bytes were taken or returned."""
    on_audited: Audit | None = field(default=None, init=False)
    """The function to call, from any thread, after an audited client has taken or returned bytes; None for none."""
    _groups: WeakValueDictionary[str, GroupBudget] = field(factory=WeakValueDictionary, init=False)
    """The groups that have clients, by name."""
    _others: int = field(default=0, init=False)
    """The part of ``used`` that clients of this executor do not hold."""
    _other_executors: Mapping[str, int] = field(factory=dict, init=False)
    """The bytes that clients of other executors hold, by group."""
    _lock: Lock = field(factory=Lock, init=False)

    def __attrs_post_init__(self) -> None:
        if self.in_all is not None:
            self.used = self._others = self.in_all()

    def take(self, count: int) -> bool:
        """Take bytes; return whether there were enough.

        Before it returns False, it calls ``in_all`` again, because other processes may have freed memory.
        """
        if not (self._take(count) or (self._others_have_freed() and self._take(count))):
            return False
        self.report_change()
        return True

    def _take(self, count: int) -> bool:
        with self._lock:
            if self.used + count > self.total:
                return False
            self.used += count
        return True

    def _others_have_freed(self) -> bool:
        if self.in_all is None:
            return False
        in_all = self.in_all()
        with self._lock:
            freed = self.used - in_all
            # The bytes charged to clients differ a little from the memory taken on the device.
            if freed < NOTEWORTHY_BYTES:
                return False
            freed = min(freed, self._others)
            self._others -= freed
            self.used -= freed
        return True

    def give(self, count: int) -> None:
        """Return bytes to the device, and report the change."""
        with self._lock:
            self.used -= count
        self.report_change()

    def account_others(self, count: int, groups: Mapping[str, int]) -> None:
        """Set how many bytes clients of other executors hold, as the server reports it.

        Args:
            count: The bytes that they hold in all; ignored if there is an ``in_all``, which counts them itself.
            groups: The bytes that they hold in each group that has a limit, by the group's name.
        """
        with self._lock:
            if self.in_all is None:
                self.used += count - self._others
                self._others = count
            self._other_executors = groups
            for name, group in self._groups.items():
                group.in_other_executors = groups.get(name, 0)

    def groups(self, limits: Sequence[MemoryGroup], client: int) -> tuple[GroupBudget, ...]:
        """Return the accounts of groups; all clients of a group share one account.

        The limits of the client with the highest id apply, because an older client may create its context later.
        """
        with self._lock:
            groups = [self._groups.setdefault(limit.name, GroupBudget(limit.name)) for limit in limits]
            for group, limit in zip(groups, limits, strict=True):
                group.in_other_executors = self._other_executors.get(group.name, 0)
                if client >= group.latest:
                    group.latest, group.limit, group.soft = client, limit.limit, limit.soft
            return tuple(groups)

    def take_all(self, count: int, groups: Sequence[GroupBudget]) -> GroupBudget | None:
        """Take bytes from all groups, or from none of them.

        Returns:
            None, or the first group that has too few bytes left.
        """
        with self._lock:
            for group in groups:
                if count > group.remaining:
                    return group
            for group in groups:
                group.used += count
        return None

    def give_all(self, count: int, groups: Sequence[GroupBudget]) -> None:
        """Release bytes from all these groups."""
        with self._lock:
            for group in groups:
                group.used -= count

    def report_change(self) -> None:
        """Call ``on_change``, if it is set; the caller must not hold the lock."""
        if self.on_change is not None:
            self.on_change()


@define(eq=False)
class GroupBudget:
    """The account of clients that share a limit, such as the clients of a namespace or a cgroup.

    All amounts are in bytes. The lock of the device's account guards it.
    """

    name: str
    limit: int = 0
    soft: int = 0
    used: int = 0
    in_other_executors: int = 0
    """The bytes that clients of other executors hold."""
    latest: int = 0
    """The id of the client that set ``limit`` and ``soft``."""

    @property
    def remaining(self) -> int:
        """The bytes that the group can still take; negative if the limit was lowered below its clients' memory."""
        return self.limit - self.used - self.in_other_executors


@define(eq=False)
class ClientBudget:
    """The account of one client process on a device. All amounts are bytes.

    ``limit`` is the client's own limit, 0 if it has none. The client's memory lock guards the account.

    >>> client = ClientBudget(DeviceBudget(total=1 << 30), limit=1 << 20)
    >>> client.take(1 << 19, "cuMemAlloc")
    >>> client.free, client.total
    (524288, 1048576)
    """

    device: DeviceBudget
    limit: int
    groups: tuple[GroupBudget, ...] = ()
    audited: int = 0
    """The client's id if its allocations and frees are reported to the device's ``on_audited``, otherwise 0."""
    used: int = field(default=0, init=False)

    @property
    def total(self) -> int:
        """The total that cuMemGetInfo reports, in bytes: the lowest limit that applies, or the device's memory."""
        limits = (self.limit or self.device.total, *(group.limit for group in self.groups))
        return min(self.device.total, *limits)

    @property
    def free(self) -> int:
        """The bytes that the client can still take, which cuMemGetInfo reports as free."""
        remaining = (self.device.total - self.device.used, *(group.remaining for group in self.groups))
        return max(0, min(self.total - self.used, *remaining))

    def take(self, count: int, what: str = "an allocation") -> None:
        """Take bytes for ``what``.

        Raises:
            BackendError: OUT_OF_MEMORY, whose reason names ``what`` and the limit. It is a `Shortage` if the device
                lacks bytes that the client is guaranteed.
        """
        own_limit = min(self.limit or self.device.total, self.device.total)
        if self.used + count > own_limit:
            raise BackendError(
                Result.ERROR_OUT_OF_MEMORY,
                f"{what} takes {count} bytes; this client's limit is {own_limit} bytes and it holds {self.used}",
            )
        if (full := self.device.take_all(count, self.groups)) is not None:
            raise BackendError(
                Result.ERROR_OUT_OF_MEMORY,
                f"{what} takes {count} bytes; the clients of {full.name} have {max(0, full.remaining)} of "
                f"{full.limit} left",
            )
        if not self.device.take(count):
            self.device.give_all(count, self.groups)
            remaining = self.device.total - self.device.used
            reason = f"{what} takes {count} bytes; the device has {max(0, remaining)} of {self.device.total} left"
            soft = [group for group in self.groups if group.soft]
            if soft and all(group.used + group.in_other_executors + count <= group.soft for group in soft):
                raise Shortage(reason, count - remaining)
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
        self.used += count
        self._audit(count)

    def _audit(self, change: int) -> None:
        if self.audited and abs(change) > AUDITED_BYTES and self.device.on_audited is not None:
            self.device.on_audited(self.audited, change, self.used, self.total)

    def give(self, count: int) -> None:
        """Return bytes to the client's, its groups' and the device's accounts."""
        self.device.give_all(count, self.groups)
        self.device.give(count)
        self.used -= count
        self._audit(-count)


class AccountedDevice:
    """The part of a device that both backends share: the account of its memory, and callbacks for changes.

    The methods are those of `pympsd_server.backends.device_interface.Device`.
    """

    budget: DeviceBudget

    def watch_memory(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after every change of ``memory_used``, from any thread; it must not wait."""
        self.budget.on_change = changed

    def account_others(self, count: int, groups: Mapping[str, int]) -> None:
        """Set how many bytes clients of other executors hold, in all and by the name of each group."""
        self.budget.account_others(count, groups)

    def audit_memory(self, audited: Audit) -> None:
        """Call ``audited`` whenever an audited client takes or returns more than AUDITED_BYTES at a time."""
        self.budget.on_audited = audited


class Counters(Mapping[str, int]):
    """Counters and gauges by name, as a read-only mapping that several threads may change with its methods.

    >>> counters = Counters()
    >>> counters.add("kernels", 2); counters.put("contexts", 1)
    >>> dict(counters)
    {'kernels': 2, 'contexts': 1}
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        self._lock = Lock()

    def add(self, name: str, count: int = 1) -> None:
        """Add ``count`` to a counter, which begins at 0."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + count

    def put(self, name: str, value: int) -> None:
        """Set a gauge to a value."""
        with self._lock:
            self._counters[name] = value

    def __getitem__(self, name: str) -> int:
        return self._counters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._counters))

    def __len__(self) -> int:
        return len(self._counters)
