"""What a daemon leaves to the next on its pipe directory: limits set by commands, start requests, servers."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pympsd.state_machine.daemon_state import Daemon, Quit, Server
from pympsd.state_machine.server_lifecycle import Phase
from pympsd.vocabulary.limits import MOST_MEMORY, ClientPriority, PinnedMemory, ThreadPercentage

MOST_GENERATIONS: Final = 1 << 22
"""With 40 bits for the serials of each generation, all fit 63 bits."""


@frozen
class PersistentServer:
    """A server that ran; it reports its clients and contexts itself when it returns."""

    serial: int
    pid: int
    uid: int
    thread_percentage: float
    memory_limits: dict[int, int]
    """Bytes by device ordinal."""
    leaving: bool = False
    """It was asked to end. Own servers say so themselves."""


@frozen
class PersistentQuit:
    """A quit under way that an operator asked for."""

    timeout: float | None = None
    """The seconds that were given before force; 0 once it is used."""


@frozen
class PersistentState:
    """What a daemon knew. A default is None if no command has set it: then the next daemon's own applies."""

    generation: int = 0
    """Counts the daemons whose servers were handed on; the serials of each lie above those of the earlier ones."""
    thread_percentage: float | None = None
    client_priority: int | None = None
    memory_limits: dict[int, int] | None = None
    wishes: tuple[int, ...] = ()
    """The users with a queued start request (the name is the state file's key)."""
    servers: tuple[PersistentServer, ...] = ()
    quit: PersistentQuit | None = None


EMPTY_STATE = PersistentState()


@frozen
class InitialDefaults:
    """The defaults a daemon started with: those of its environment."""

    thread_percentage: ThreadPercentage
    client_priority: ClientPriority
    memory_limits: dict[int, PinnedMemory]

    @classmethod
    def of(cls, daemon: Daemon) -> InitialDefaults:
        """Return the defaults of a daemon that has just started."""
        return cls(daemon.thread_percentage, daemon.client_priority, dict(daemon.memory_limits))


def snapshot(daemon: Daemon, initial: InitialDefaults) -> PersistentState:
    """Return the state that the next daemon needs."""
    percentage, priority, limits = daemon.thread_percentage, daemon.client_priority, daemon.memory_limits
    return PersistentState(
        generation=daemon.generation,
        thread_percentage=None if percentage == initial.thread_percentage else percentage.value,
        client_priority=None if priority == initial.client_priority else priority.level,
        memory_limits=None if limits == initial.memory_limits else _in_bytes(limits),
        wishes=tuple(entry.uid for entry in daemon.queue if not entry.client),
        servers=tuple(_persistent(server) for server in daemon.running_servers()),
        quit=_persistent_quit(daemon.quitting),
    )


def check(state: PersistentState, devices: int) -> None:
    """Raise ValueError for a state that no daemon with this number of devices can have had."""
    if state.thread_percentage is not None:
        ThreadPercentage(state.thread_percentage)
    if state.client_priority is not None:
        ClientPriority(state.client_priority)
    if not 0 <= state.generation < MOST_GENERATIONS:
        raise ValueError(f"there is no generation {state.generation}")
    for server in state.servers:
        _check_server(server, devices)
    for alike in ("serial", "pid"):
        if len({getattr(server, alike) for server in state.servers}) < len(state.servers):
            raise ValueError(f"two servers have one {alike}")
    for uid in state.wishes:
        _check_user(uid)
    _check_limits(state.memory_limits or {}, devices)
    if state.quit is not None and state.quit.timeout is not None and not 0 <= state.quit.timeout < 1 << 31:
        raise ValueError(f"there is no quit within {state.quit.timeout:g} s")


def _check_server(server: PersistentServer, devices: int) -> None:
    ThreadPercentage(server.thread_percentage)
    if not 0 < server.pid < 1 << 31 or not 0 < server.serial < 1 << 63:
        raise ValueError(f"there is no process {server.pid} with serial {server.serial}")
    _check_user(server.uid)
    _check_limits(server.memory_limits, devices)


def _check_user(uid: int) -> None:
    # The last number is no uid: to the kernel it means "unchanged", which is the daemon's own user.
    if not 0 <= uid < (1 << 32) - 1:
        raise ValueError(f"there is no user {uid}")


def _check_limits(limits: dict[int, int], devices: int) -> None:
    for ordinal, limit in limits.items():
        if not 0 <= ordinal < devices or not 0 < limit <= MOST_MEMORY:
            raise ValueError(f"there is no limit of {limit} bytes for device {ordinal}")


def _persistent(server: Server) -> PersistentServer:
    percentage, limits = server.thread_percentage.value, _in_bytes(server.memory_limits)
    return PersistentServer(server.serial, server.pid, server.uid, percentage, limits, server.phase is Phase.LEAVING)


def _persistent_quit(quitting: Quit | None) -> PersistentQuit | None:
    if quitting is None or not quitting.asked:
        return None
    return PersistentQuit(0.0 if quitting.forced else quitting.timeout)


def _in_bytes(limits: dict[int, PinnedMemory]) -> dict[int, int]:
    return {ordinal: limit.value for ordinal, limit in limits.items()}
