"""The limits that a context is created with."""

from __future__ import annotations

from attrs import frozen

from pympsd.vocabulary.limits import MemoryGroup


@frozen
class Quota:
    """The limits of a context; a device ignores a limit for which it lacks the capability."""

    multiprocessors: int
    """Their number; 0, or the device's whole number: all of them, and the context counts as the user of none."""
    memory_bytes: int
    """The limit of the client process, shared by all its contexts, the overhead of each included; 0: none.

    The value of its first context applies as long as it has any.
    """
    priority: int
    """As ClientPriority.level: 0 normal, 1 below normal."""
    chunks: tuple[int, ...] = ()
    """The chunks of SMs (`pympsd.vocabulary.partitions`) that it runs on, and no others; empty: on any."""
    groups: tuple[MemoryGroup, ...] = ()
    """Limits that hold for the client together with others, as ``memory_bytes`` for itself."""
    audited: bool = False
    """Whether what the client takes and returns is reported; as for ``memory_bytes``, its first context decides."""
