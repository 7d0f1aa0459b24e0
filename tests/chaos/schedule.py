"""The plan of a soak, a pure function of the seed. A target is picked among the processes that run at the time."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from math import ceil
from typing import Final

from attrs import frozen

USERS: Final = 3
DEVICES: Final = 3


class Containment(StrEnum):
    """How far a fatal fault reaches on a machine."""

    DEVICE = "device"
    """To all clients of devices that shared clients connect (MPS documents, 2.3.3.2)."""
    CLIENT = "client"
    """To the context that it happened in: ``fault_containment = "client"`` of an emulated machine."""
    SERVER = "server"
    """To the server and all its clients: devices before Volta."""


class Backend(StrEnum):
    """The backend that runs the clients' work."""

    EMULATED = "emulated"
    """Our own server."""
    VENDOR = "vendor"
    """The fake driver's server and its clients (tests/support/fake_mps)."""


@frozen
class Setup:
    """A machine, the dialect of its daemon's logs, the backend, and the protocol."""

    containment: Containment = Containment.DEVICE
    dialect: str = "documented"
    backend: Backend = Backend.EMULATED
    protocol: int = 2


PLAIN: Final = Setup()
VENDOR: Final = Setup(backend=Backend.VENDOR)
NAMED: Final = Setup(protocol=3)
VARIANTS: Final = (
    NAMED,
    Setup(Containment.CLIENT),
    Setup(Containment.SERVER),
    Setup(dialect="r580"),
    VENDOR,
)
SETUPS: Final = (
    *(PLAIN,) * 3,
    *VARIANTS,
    VENDOR,
    Setup(Containment.CLIENT, "r580"),
    Setup(Containment.SERVER, "r580"),
    Setup(dialect="r580", backend=Backend.VENDOR),
)
ROUND_SECONDS: Final = 300.0
"""The longest time that a daemon's directory, logs and devices are used."""
SHORTEST_ROUND: Final = 27.0


@frozen
class Round:
    """A part of a soak, with a setup and a seed of its own."""

    number: int
    seconds: float
    setup: Setup
    seed: int


class Kind(StrEnum):
    """A kind of chaos."""

    CLIENT_KILL = "client_kill"
    CLIENT_STOP = "client_stop"
    CLIENT_FAULT = "client_fault"
    CLIENT_TERMINATE = "client_terminate"
    EXECUTOR_KILL = "executor_kill"
    EXECUTOR_STOP = "executor_stop"
    SERVER_KILL = "server_kill"
    SERVER_STOP = "server_stop"
    DAEMON_STOP = "daemon_stop"
    DAEMON_KILL = "daemon_kill"
    DAEMON_REPLACE = "daemon_replace"
    KEEPER_KILL = "keeper_kill"
    KEEPER_STOP = "keeper_stop"
    BOTH_KILL = "both_kill"
    """The keeper and the daemon."""
    DAEMON_TERM = "daemon_term"
    QUIT = "quit"
    SHUTDOWN_SERVER = "shutdown_server"
    SHUTDOWN_SERVER_FORCED = "shutdown_server_forced"
    START_SERVER = "start_server"
    DRAIN = "drain"
    """Clients are drained, and after a moment undrained: for them it is only a wait."""
    SERVER_MISBEHAVES = "server_misbehaves"
    """Servers that start then never register, crash, or answer wrongly."""
    LISTS = "lists"
    """The lists are compared with the clients' reports."""
    QUERIES = "queries"
    LIMITS = "limits"


TAKEOVER: Final = frozenset({Kind.DAEMON_KILL, Kind.DAEMON_REPLACE})
"""The kinds in which a new daemon takes over the previous daemon's servers."""
DEFAULT_KINDS: Final = frozenset(Kind)
KINDS_OF: Final = {
    Backend.EMULATED: DEFAULT_KINDS - {Kind.SERVER_MISBEHAVES},
    Backend.VENDOR: DEFAULT_KINDS - {Kind.EXECUTOR_KILL, Kind.EXECUTOR_STOP},
}

WEIGHTS: Final = {
    Kind.CLIENT_KILL: 8,
    Kind.CLIENT_STOP: 5,
    Kind.CLIENT_FAULT: 10,
    Kind.CLIENT_TERMINATE: 8,
    Kind.EXECUTOR_KILL: 4,
    Kind.EXECUTOR_STOP: 3,
    Kind.SERVER_KILL: 3,
    Kind.SERVER_STOP: 3,
    Kind.DAEMON_STOP: 2,
    Kind.DAEMON_KILL: 3,
    Kind.DAEMON_REPLACE: 3,
    Kind.KEEPER_KILL: 3,
    Kind.KEEPER_STOP: 2,
    Kind.BOTH_KILL: 1,
    Kind.DAEMON_TERM: 1,
    Kind.QUIT: 1,
    Kind.SHUTDOWN_SERVER: 2,
    Kind.SHUTDOWN_SERVER_FORCED: 2,
    Kind.START_SERVER: 3,
    Kind.DRAIN: 3,
    Kind.SERVER_MISBEHAVES: 2,
    Kind.LISTS: 8,
    Kind.QUERIES: 12,
    Kind.LIMITS: 6,
}
STOPS: Final = frozenset({Kind.CLIENT_STOP, Kind.EXECUTOR_STOP, Kind.SERVER_STOP, Kind.DAEMON_STOP, Kind.KEEPER_STOP})
STOP_SECONDS: Final = 2.5
LONG_STOPS: Final = 0.15
"""The share of stops that are longer than any bound of the product: 5 s to tear down, 10 s to terminate or report."""
LONG_STOP_SECONDS: Final = (5.5, 13.5)
FAULTS: Final = ("wild_store", "wild_load", "misaligned", "trap")
WORKS: Final = {
    Backend.EMULATED: {
        "copies": 3, "kernels": 3, "contexts": 2, "streams": 3, "memory": 2, "callbacks": 2, "mixed": 4, "endless": 1,
    },
    Backend.VENDOR: {"chain": 4, "contexts": 4, "memory": 2, "unresponsive": 1},
}  # fmt: skip
"""Kind of work -> how often it is chosen."""


@frozen
class ClientPlan:
    """The plan of a client: its user (an index), kind of work, devices, duration and settings."""

    at: float
    number: int
    user: int
    work: str
    devices: tuple[int, ...]
    seconds: float
    seed: int
    settings: tuple[tuple[str, str], ...] = ()


@frozen
class Action:
    """An action at a time. ``pick``, 0 to 1, chooses the target; ``extent``, 0 to 1, for example a stop's length."""

    at: float
    number: int
    kind: Kind
    pick: float
    extent: float


def rounds(seed: int, seconds: float, backends: Collection[Backend] = tuple(Backend)) -> tuple[Round, ...]:
    """Return the rounds of a run, a plain one first and one of protocol 3 after it.

    A run of three minutes has a round of each variant.
    """
    source = random.Random(f"{seed}/rounds")
    first = next(entry for entry in (PLAIN, VENDOR) if entry.backend in backends)
    variants = [entry for entry in VARIANTS if entry.backend in backends and entry != first]
    others = [entry for entry in SETUPS if entry.backend in backends]
    count = max(1, ceil(seconds / ROUND_SECONDS), min(1 + len(variants), int(seconds / SHORTEST_ROUND)))
    setups = [first, *sorted(source.sample(variants, len(variants)), key=lambda variant: variant != NAMED)]
    while len(setups) < count:
        setups += source.sample(others, len(others))
    return tuple(Round(index + 1, seconds / count, setups[index], 1000 * seed + index) for index in range(count))


def stop_seconds(extent: float) -> float:
    """Return the seconds for which a process is stopped."""
    if extent < 1 - LONG_STOPS:
        return extent * STOP_SECONDS
    least, most = LONG_STOP_SECONDS
    return least + (extent - 1 + LONG_STOPS) / LONG_STOPS * (most - least)


def clients(
    seed: int, seconds: float, pace: float = 1.0, backend: Backend = Backend.EMULATED
) -> tuple[ClientPlan, ...]:
    """Return the clients that start within that many seconds, in order; with ``pace`` 2 there are twice as many."""
    return tuple(_clients(random.Random(f"{seed}/clients"), seconds, pace, WORKS[backend]))


def actions(seed: int, seconds: float, kinds: Iterable[Kind], pace: float = 1.0) -> tuple[Action, ...]:
    """Return the actions of the chosen kinds within that many seconds, in order; ``pace`` 2 means twice as many."""
    chosen = [kind for kind in Kind if kind in frozenset(kinds)]
    return tuple(_actions(random.Random(f"{seed}/actions"), seconds, chosen, pace)) if chosen else ()


def _clients(source: random.Random, seconds: float, pace: float, works: Mapping[str, int]) -> Iterator[ClientPlan]:
    at, number = 0.0, 0
    while at < seconds:
        number += 1
        # Most clients have the user of the client before, so that servers have several clients.
        if number == 1 or source.random() < 0.25:
            user = source.randrange(USERS)
        work = source.choices(tuple(works), tuple(works.values()))[0]
        devices = source.sample(range(DEVICES), source.choices((1, 2, 3), (6, 3, 1))[0])
        yield ClientPlan(
            at, number, user, work, tuple(devices), _life(source, work), source.getrandbits(32), _settings(source)
        )
        at += source.choice((0.1, 0.5, 1.0, 2.0, 3.0)) / pace


def _life(source: random.Random, work: str) -> float:
    return source.uniform(0.5, 2.0) if work == "endless" else source.choice((0.2, 1.0, 3.0, 7.0))


def _settings(source: random.Random) -> tuple[tuple[str, str], ...]:
    settings = []
    if source.random() < 0.2:
        settings.append(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", source.choice(("25", "50", "75"))))
    if source.random() < 0.2:
        settings.append(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", source.choice(("0=1G", "0=1G,1=2G", "1=1500M"))))
    if source.random() < 0.2:
        settings.append(("CUDA_MPS_CLIENT_PRIORITY", source.choice(("0", "1"))))
    return tuple(settings)


def _actions(source: random.Random, seconds: float, kinds: list[Kind], pace: float) -> Iterator[Action]:
    at, number = 0.0, 0
    while (at := at + source.uniform(0.05, 1.6) / pace) < seconds:
        number += 1
        kind = source.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        yield Action(at, number, kind, source.random(), source.random())
