"""What one daemon leaves to the next on the same pipe directory: limits set by commands, wishes, servers."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pympsd.state_machine.daemon_state import Daemon, Server
from pympsd.vocabulary.limits import MOST_MEMORY, ClientPriority, PinnedMemory, ThreadPercentage

MOST_GENERATIONS: Final = 1 << 22
"""With 40 bits for what each counts, serials stay numbers of 63 bits."""


@frozen
class RememberedServer:
    """A server that ran; its clients and contexts it tells itself when it returns."""

    serial: int
    pid: int
    uid: int
    thread_percentage: float
    memory_limits: dict[int, int]
    """Bytes by device ordinal."""


@frozen
class Remembered:
    """What a daemon knew. A default is None where no command has set it: then the next daemon's own counts."""

    generation: int = 0
    """Counts the daemons whose servers were handed on: the serials of each lie above those of the ones before."""
    thread_percentage: float | None = None
    client_priority: int | None = None
    memory_limits: dict[int, int] | None = None
    wishes: tuple[int, ...] = ()
    """The users for whom an operator wants a server that is not ready yet."""
    servers: tuple[RememberedServer, ...] = ()


NOTHING = Remembered()


@frozen
class Origin:
    """The defaults a daemon began with: those of its environment."""

    thread_percentage: ThreadPercentage
    client_priority: ClientPriority
    memory_limits: dict[int, PinnedMemory]

    @classmethod
    def of(cls, daemon: Daemon) -> Origin:
        """Return the defaults of a daemon that has just begun."""
        return cls(daemon.thread_percentage, daemon.client_priority, dict(daemon.memory_limits))


def remember(daemon: Daemon, origin: Origin) -> Remembered:
    """Return what the next daemon has to know."""
    percentage, priority, limits = daemon.thread_percentage, daemon.client_priority, daemon.memory_limits
    return Remembered(
        generation=daemon.generation,
        thread_percentage=None if percentage == origin.thread_percentage else percentage.value,
        client_priority=None if priority == origin.client_priority else priority.level,
        memory_limits=None if limits == origin.memory_limits else _in_bytes(limits),
        wishes=tuple(waiting.uid for waiting in daemon.line if not waiting.client),
        servers=tuple(_remembered(server) for server in daemon.running_servers()),
    )


def check(remembered: Remembered, devices: int) -> None:
    """Raise ValueError for what no daemon of so many devices can have known."""
    if remembered.thread_percentage is not None:
        ThreadPercentage(remembered.thread_percentage)
    if remembered.client_priority is not None:
        ClientPriority(remembered.client_priority)
    if not 0 <= remembered.generation < MOST_GENERATIONS:
        raise ValueError(f"there is no generation {remembered.generation}")
    for server in remembered.servers:
        _check_server(server, devices)
    for alike in ("serial", "pid"):
        if len({getattr(server, alike) for server in remembered.servers}) < len(remembered.servers):
            raise ValueError(f"two servers have one {alike}")
    for uid in remembered.wishes:
        _check_user(uid)
    _check_limits(remembered.memory_limits or {}, devices)


def _check_server(server: RememberedServer, devices: int) -> None:
    ThreadPercentage(server.thread_percentage)
    if not 0 < server.pid < 1 << 31 or not 0 < server.serial < 1 << 63:
        raise ValueError(f"there is no process {server.pid} with serial {server.serial}")
    _check_user(server.uid)
    _check_limits(server.memory_limits, devices)


def _check_user(uid: int) -> None:
    # The last number is none: to the kernel it means "as before", which is the daemon's own user.
    if not 0 <= uid < (1 << 32) - 1:
        raise ValueError(f"there is no user {uid}")


def _check_limits(limits: dict[int, int], devices: int) -> None:
    for ordinal, limit in limits.items():
        if not 0 <= ordinal < devices or not 0 < limit <= MOST_MEMORY:
            raise ValueError(f"there is no limit of {limit} bytes for device {ordinal}")


def _remembered(server: Server) -> RememberedServer:
    percentage, limits = server.thread_percentage.value, _in_bytes(server.memory_limits)
    return RememberedServer(server.serial, server.pid, server.uid, percentage, limits)


def _in_bytes(limits: dict[int, PinnedMemory]) -> dict[int, int]:
    return {ordinal: limit.value for ordinal, limit in limits.items()}
