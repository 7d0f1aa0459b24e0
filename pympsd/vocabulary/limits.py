"""The values of limits, as daemon and servers use them: percentages, priorities, and amounts of memory.

A value cannot be invalid: constructing it, or parsing a text, raises `BadLimit` for a value that is not allowed.

- `ThreadPercentage`, `ClientPriority` and `PinnedMemory` are limits of one client.
- `CgroupLimit` and `MemoryGroup` are limits on the memory that several clients hold together.
- `Quota` has the limits of one context, as its executor applies them.
- `LimitsInForce` has what applies to a client after all of these were combined, for lists and metrics.

Which limits exist, and how those of several places are combined, is in `pympsd.vocabulary.limit_table`.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

from attrs import field, frozen

from pympsd.errors import InputError

_MEMORY = re.compile(r"([0-9]{1,12})([GgMm])[Bb]?")
MAX_MEMORY = 1 << 50
"""The largest limit of memory, 1 PiB: a larger value is a typing error."""
ALL_DEVICES: Final = -1
"""The key, in a limit by device ordinal, that stands for every device without an entry of its own."""
PER_CONTEXT_PARTITIONING = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
"""The variable that gives each context of a client its own percentage, if it is 1 when the process starts (MPS
documents, 4.2.6)."""


class BadLimit(InputError, ValueError):
    """Raised for a limit that is not allowed; the message explains which are."""


@frozen(order=True)
class ThreadPercentage:
    """The part of a device's threads that a client may use, in percent: above 0, at most 100 (MPS documents, 4.2.5).

    Raises:
        BadLimit: The value is not in that range.

    >>> str(ThreadPercentage(33.25)), ThreadPercentage(10) < ThreadPercentage()
    ('33.2', True)
    """

    value: float = 100.0

    def __attrs_post_init__(self) -> None:
        if not (isfinite(self.value) and 0.0 < self.value <= 100.0):
            raise BadLimit(f"an active thread percentage must be above 0 and at most 100, not {self.value!r}")

    @classmethod
    def parse(cls, text: str) -> ThreadPercentage:
        """Return the percentage that a text means, with or without a percent sign.

        Args:
            text: The value of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, or of a command.

        Raises:
            BadLimit: The text is not a number, or not in the range.
        """
        try:
            # Unlike Python, C accepts no underscores in a number.
            number = float(text.rstrip().removesuffix("%") if "_" not in text else "")
        except ValueError:
            raise BadLimit(f"an active thread percentage must be a number above 0, up to 100, not {text!r}") from None
        return cls(number)

    def __str__(self) -> str:
        return f"{self.value:.1f}"


OF_CGROUP = "cgroup "
"""The prefix of the name of a group of clients that are in a cgroup."""


@frozen
class MemoryGroup:
    """A limit on the memory that several clients hold together on one device.

    The clients are those of a namespace, or of a cgroup and the cgroups below it.
    """

    name: str
    """The group's name as sentences contain it: ``namespace a/hi``, ``cgroup /x``."""
    limit: int
    """The maximum number of bytes that the group's clients hold together (hard limit)."""
    soft: int = 0
    """The bytes that the group's clients are guaranteed (soft limit). When memory is short, clients of groups
    above their soft limit are terminated."""


@frozen
class Quota:
    """The limits of a context, as its executor applies them.

    A device ignores a limit for which it lacks the capability (`pympsd_server.backends.interface.Capabilities`).
    """

    multiprocessors: int
    """The number of SMs. With 0, or the number that the device has, the context may use all and counts as the user of
    none."""
    memory_bytes: int
    """The limit of the client process, shared by all its contexts, the overhead of each included; 0 means none.

    The value of the process's first context applies as long as the process has contexts.
    """
    priority: int
    """The level of the client's priority: 0 normal, 1 below normal."""
    chunks: tuple[int, ...] = ()
    """The chunks of SMs (`pympsd.vocabulary.partitions`) on which alone the context runs; empty means any."""
    groups: tuple[MemoryGroup, ...] = ()
    """Limits that hold for the client together with others, as ``memory_bytes`` for itself."""
    audited: bool = False
    """Whether the client's allocations and frees are reported; as for ``memory_bytes``, its first context decides."""
    counts_sms: bool = False
    """Whether kernels count the SMs of ``chunks`` from 0 (%smid), as a driver with static partitions has it; only
    emulated devices can."""
    user: int = 0
    """The user ID of the client process, because users have equal shares of the executor's compiler."""


def cgroup_group(path: str) -> str:
    """Return the name of the group that the clients of a cgroup form.

    Args:
        path: The cgroup's path; bytes that are not UTF-8 are shown as ``\\xff``.

    >>> cgroup_group("/batch")
    'cgroup /batch'
    """
    return f"{OF_CGROUP}{path.encode(errors='surrogateescape').decode(errors='backslashreplace')}"


@frozen
class LimitsInForce:
    """The limits that apply to a client: the lowest of the limits set for it and by itself."""

    thread_percentage: float
    """The client's percentage; if it differs between devices, the highest."""
    priority: int
    memory: dict[int, int]
    """The bytes that the client may hold, by device ordinal; a device without an entry has no limit."""
    multiprocessors: dict[int, int]
    """The number of SMs that the client may use on each device that it sees, by ordinal."""
    device_percentages: dict[int, float] = field(factory=dict)
    """The client's percentages by device ordinal, if they differ; else empty."""
    connections: int = 1
    """The connections of a device that each context of the client takes; 1 for a client of the driver's own server,
    because the number that it takes is unknown."""

    def is_possible(self, device_count: int) -> bool:
        """Return whether a client of this number of devices can have these limits; servers are not trusted.

        >>> LimitsInForce(float("nan"), 0, {}, {}).is_possible(1), LimitsInForce(50.0, 0, {}, {1: 8}).is_possible(1)
        (False, False)
        """
        percentages = self.thread_percentage, *self.device_percentages.values()
        counts = self.priority, self.connections, *self.memory.values(), *self.multiprocessors.values()
        ordinals = {*self.memory, *self.multiprocessors, *self.device_percentages}
        is_in_range = all(0 <= value <= 100 for value in percentages) and all(0 <= n <= MAX_MEMORY for n in counts)
        return is_in_range and ordinals <= {*range(device_count)}

    def percentage_on(self, ordinal: int) -> float:
        """Return the percentage on a device, by the device's ordinal."""
        return self.device_percentages.get(ordinal, self.thread_percentage)

    @property
    def percentage_record(self) -> float | dict[int, float]:
        """The percentage as JSON has it: one number, or if devices differ a number for each."""
        return self.device_percentages or self.thread_percentage


@frozen
class CgroupLimit:
    """The limits of the memory that the clients of a cgroup hold together on a device."""

    hard: PinnedMemory | None = None
    """The maximum in bytes that the clients of the cgroup hold together."""
    soft: PinnedMemory | None = None
    """The bytes that the cgroup's clients are guaranteed. When memory is short, clients of cgroups above their
    soft limit are terminated."""


def combine_cgroup_limits(first: CgroupLimit, second: CgroupLimit) -> CgroupLimit:
    """Return the lower of two limits of a cgroup, separately for the hard and the soft one; None means no limit."""
    hard = (limit for limit in (first.hard, second.hard) if limit is not None)
    soft = (limit for limit in (first.soft, second.soft) if limit is not None)
    return CgroupLimit(min(hard, default=None), min(soft, default=None))


CgroupLimits = dict[str, dict[int, CgroupLimit]]
"""The limits of the clients of a cgroup and those below it, by path and device ordinal."""


@frozen(order=True)
class ClientPriority:
    """A client's priority: 0 is normal, 1 is below normal (MPS documents, 2.3.8).

    Raises:
        BadLimit: The level is neither.
    """

    level: int = 0

    def __attrs_post_init__(self) -> None:
        if self.level not in (0, 1):
            raise BadLimit(f"a client priority must be 0 (normal) or 1 (below normal), not {self.level!r}")

    @classmethod
    def parse(cls, text: str) -> ClientPriority:
        """Return the priority that CUDA_MPS_CLIENT_PRIORITY means.

        Raises:
            BadLimit: The text is neither ``0`` nor ``1``.
        """
        if text.strip() not in ("0", "1"):
            raise BadLimit(f"a client priority must be 0 (normal) or 1 (below normal), not {text!r}")
        return cls(int(text))

    def __str__(self) -> str:
        return str(self.level)


@frozen(order=True)
class PinnedMemory:
    """A limit on the pinned device memory of one client on one device, in bytes (MPS documents, 4.2.7).

    >>> PinnedMemory.parse("2G"), PinnedMemory.parse("0")
    (PinnedMemory(value=2147483648), None)
    """

    value: int

    @classmethod
    def parse(cls, text: str) -> PinnedMemory | None:
        """Return the limit that a text means; None for ``0``, which means unlimited.

        Args:
            text: A whole number and G, GB, M or MB, in either case, such as ``10G`` or ``900M``.

        Raises:
            BadLimit: The text has another form, or the limit is above MAX_MEMORY.
        """
        if text == "0":
            return None
        match = _MEMORY.fullmatch(text)
        size = int(match[1]) << (30 if match[2] in "Gg" else 20) if match else 0
        if not 0 < size <= MAX_MEMORY:
            raise BadLimit(
                f"a memory limit is a whole number from 1 and G or M (10G, 900M), at most {MAX_MEMORY >> 30}G, "
                f"or 0 for no limit; not {text!r}"
            )
        return cls(size)

    def __str__(self) -> str:
        whole, remainder = divmod(self.value, 1 << 30)
        return f"{self.value >> 20}M" if remainder else f"{whole}G"
