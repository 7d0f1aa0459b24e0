"""The measurements of both daemons, in turn: the same programs, with one daemon first and then the other."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpu import throughput
from gpu.clients import Client, Failure, end_all
from gpu.figures import Run

from beside_vendor import inference
from beside_vendor.daemons import Daemon, Programs

PS: Final = "ps"
JOIN: Final = "join"
IDLE: Final = "idle"
ARRIVAL: Final = "arrival"
TURN: Final = "turn"
LAUNCHES: Final = throughput.SECTION
BARE: Final = "the bare interpreter"
ARRIVALS: Final = 48
USERS: Final = (10001, 10002)
IDLE_SECONDS: Final = 10.0
QUIET_SECONDS: Final = 15.0
"""Seconds until a daemon is idle: for ten seconds after a server's start it has timers, and threads that end."""
_ROUND: Final = ", round "
_JOINS, _TURNS, _CROWDS, _QUESTIONS = 15, 5, 3, 40
_JOIN_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.3
_MILLI: Final = 1e6
"""The nanoseconds in a millisecond."""

Daemons = tuple[Daemon, Daemon]


def in_turn(daemons: Daemons, times: int) -> Iterator[tuple[int, Daemon]]:
    """Yield both daemons ``times`` times, the other one first each time."""
    for number in range(times):
        for daemon in daemons if number % 2 == 0 else daemons[::-1]:
            yield number, daemon


def round_of(daemon: str, number: int) -> str:
    """Return the name of the figures of a daemon's round."""
    return f"{daemon}{_ROUND}{number + 1}"


def _put(run: Run, value: float, unit: str, section: str, daemon: str, what: str) -> None:
    run.figures.put(value, section, daemon, what)
    print(f"{f'{what}, {daemon}':<64} {value:>12,.2f} {unit}", flush=True)


def _join(client: Client) -> list[float]:
    """Return the four times of a program that joins, in nanoseconds."""
    return [float(word) for word in client.ask("join", _JOIN_SECONDS).split()]


# --- the sections


def launches(run: Run, daemons: Daemons, programs: Programs, rounds: int) -> None:
    """Measure launches/s in rounds, each with new clients."""
    for number, daemon in in_turn(daemons, rounds):
        throughput.measure(run, daemon.way(round_of(daemon.name, number), programs.launching))


def joins(run: Run, daemons: Daemons, programs: Programs, rounds: int) -> None:
    """Measure the time from cuInit to the first kernel's end, for programs one by one, while another one stays."""
    taken: dict[str, list[list[float]]] = {daemon.name: [] for daemon in daemons}
    clients: list[Client] = []
    try:
        for daemon in daemons:
            clients.append(daemon.client(programs.joining))
            _join(clients[-1])
        for _, daemon in in_turn(daemons, 2 if run.rehearsal else _JOINS):
            entry = [daemon.client(programs.joining)]
            try:
                taken[daemon.name].append(_join(entry[0]))
            finally:
                end_all(entry)
    finally:
        end_all(clients)
    for name, times in taken.items():
        for what, last in (("cuInit, p50", 1), ("cuInit to a context, p50", 2), ("cuInit to first kernel, p50", 3)):
            _put(run, statistics.median(time[last] - time[0] for time in times) / _MILLI, "ms", JOIN, name, what)


def arrivals(run: Run, daemons: Daemons, programs: Programs, rounds: int) -> None:
    """Measure the time until all of many simultaneous clients have a context."""
    count = 4 if run.rehearsal else ARRIVALS
    taken: dict[str, list[float]] = {daemon.name: [] for daemon in daemons}
    for _, daemon in in_turn(daemons, 1 if run.rehearsal else _CROWDS):
        clients: list[Client] = []
        try:
            clients.append(daemon.client(programs.joining))
            _join(clients[0])  # the server runs before they come
            clients += [daemon.client(programs.joining) for _ in range(count - 1)]
            for client in clients[1:]:
                client.tell("join")
            times = [client.answer(_JOIN_SECONDS).split() for client in clients[1:]]
            latest, first = max(float(time[2]) for time in times), min(float(time[0]) for time in times)
            taken[daemon.name].append((latest - first) / _MILLI)
        finally:
            end_all(clients)
    for name, milliseconds in taken.items():
        _put(run, statistics.median(milliseconds), "ms", ARRIVAL, name, "until all have a context")


def idle(run: Run, daemons: Daemons, programs: Programs, rounds: int) -> None:
    """Count how often a daemon's processes wake up while one client idles; both daemons at the same time."""
    seconds = 0.5 if run.rehearsal else IDLE_SECONDS
    clients: list[Client] = []
    try:
        for daemon in daemons:
            clients.append(daemon.client(programs.joining))
            _join(clients[-1])
        watched = {}
        for daemon, client in zip(daemons, clients, strict=True):
            watched[daemon.name] = _processes_of(daemon, {*daemon.servers(), client.process.pid})
        time.sleep(_PAUSE_SECONDS if run.rehearsal else QUIET_SECONDS)
        before = {name: _switches(pids) for name, pids in watched.items()}
        time.sleep(seconds)  # the time in which nothing is to happen
        after = {name: _switches(pids) for name, pids in watched.items()}
    finally:
        end_all(clients)
    for name, pids in watched.items():
        _put(run, len(pids), "", IDLE, name, "processes")
        _put(run, after[name] - before[name], "", IDLE, name, "wake-ups")


def turns(run: Run, daemons: Daemons, programs: Programs, rounds: int) -> None:
    """Measure the turn of a user who waits for another's last client."""
    if os.geteuid() != 0:
        run.figures.leave_out("the turn between two users", "only root starts processes of others")
        return
    taken: dict[str, list[dict[str, float]]] = {daemon.name: [] for daemon in daemons}
    for _, daemon in in_turn(daemons, 1 if run.rehearsal else _TURNS):
        taken[daemon.name].append(_turn(daemon, programs))
    for name, times in taken.items():
        for what in times[0]:
            _put(run, statistics.median(time[what] for time in times), "ms", TURN, name, what)


EXIT_TO_START: Final = "exit to the start of a server"
EXIT_TO_SUCCESS: Final = "exit to success, less the server's start"


def _turn(daemon: Daemon, programs: Programs) -> dict[str, float]:
    """Return the ms of one turn."""
    clients: list[Client] = []
    try:
        clients.append(daemon.client(programs.joining, USERS[0]))
        _join(clients[0])
        waiting = daemon.client(programs.joining, USERS[1])
        clients.append(waiting)
        waiting.tell("join")
        daemon.await_line(rf"CLIENT {waiting.process.pid}\b", _JOIN_SECONDS)
        time.sleep(_PAUSE_SECONDS)
        clients[0].end()
        clients[0].process.wait(_JOIN_SECONDS)
        exit_at = time.time()
        zero = exit_at - time.monotonic()
        succeeded = zero + float(waiting.answer(_JOIN_SECONDS).split()[1]) / 1e9
        starts = [at for at, text in daemon.log() if text.startswith("Starting new server")]
        readies = [at for at, text in daemon.log() if text.startswith("NEW SERVER")]
    except subprocess.TimeoutExpired:
        raise Failure("the first user's client does not end") from None
    finally:
        end_all(clients)
    start = readies[-1] - starts[-1]
    return {
        EXIT_TO_START: (starts[-1] - exit_at) * 1000,
        EXIT_TO_SUCCESS: (succeeded - exit_at - start) * 1000,
        "the server's start": start * 1000,
        "ready to success": (succeeded - readies[-1]) * 1000,
    }


def questions(run: Run, daemons: Daemons, programs: Programs, rounds: int) -> None:
    """Measure ``echo ps |`` of both tools, and the start of a bare interpreter."""
    bare = [sys.executable, "-I", "-S", "-c", "pass"]
    queries: dict[str, Callable[[], object]] = {
        **{daemon.name: lambda daemon=daemon: daemon.run_command("ps") for daemon in daemons},  # type: ignore[misc]
        BARE: lambda: subprocess.run(bare, input=b"ps\n", stdout=subprocess.PIPE, check=True, timeout=30),
    }
    taken: dict[str, list[float]] = {name: [] for name in queries}
    for _ in range(3 if run.rehearsal else _QUESTIONS):
        for name, ask in queries.items():
            start = time.perf_counter()
            ask()
            taken[name].append((time.perf_counter() - start) * 1000)
    for name, milliseconds in taken.items():
        _put(run, statistics.median(milliseconds), "ms", PS, name, "echo ps |")


SECTIONS: Final[dict[str, Callable[[Run, Daemons, Programs, int], None]]] = {
    PS: questions,
    JOIN: joins,
    TURN: turns,
    ARRIVAL: arrivals,
    IDLE: idle,
    LAUNCHES: launches,
    inference.SECTION: inference.inference,
}


# --- processes


def _processes_of(daemon: Daemon, others: set[int]) -> list[int]:
    """Return the daemon and other processes of its directory, such as a keeper, without servers and clients."""
    data = f"CUDA_MPS_PIPE_DIRECTORY={daemon.directory}\0".encode()
    result = {daemon.pid}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) not in others:
            with suppress(OSError):
                if data in (place / "environ").read_bytes():
                    result.add(int(place.name))
    return sorted(result)


def _switches(pids: Sequence[int]) -> int:
    """Return how often the threads of processes have gone to sleep until now, which is how often they woke up."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total
