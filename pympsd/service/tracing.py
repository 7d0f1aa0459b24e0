"""Write the trace of a daemon (``trace start``): its servers, clients and queue. Executors add the devices' work."""

import os
import time
from collections.abc import Collection, Iterator
from typing import Final, Protocol

import trio
from attrs import define, evolve, field, frozen

from pympsd.channel.trace_file import TraceFile
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, refusal

STOP_SECONDS: Final = 5.0
"""The time in seconds that a server has to report that its executors have stopped writing."""
NO_DEVICES: Final = (
    "The trace has servers, clients and waits, but no kernels and copies: "
    "the driver's own server does not report them."
)


class TracedServer(Protocol):
    """A server's session."""

    @property
    def pid(self) -> int:
        """The PID of the server's process."""

    def start_trace(self, trace: TraceFile) -> None:
        """Let the server's executors write to a trace."""

    async def stop_trace(self) -> None:
        """Let the executors stop writing, and return when they have."""


@frozen
class _State:
    """A state that lasts for some time: its name, and the numbers of the track that shows it."""

    process: int
    thread: int
    name: str


@define
class Tracing:
    """The daemon's trace, if there is one, and the spans that are open in it."""

    _trace: TraceFile | None = field(default=None, init=False)
    _path: str = field(default="", init=False)
    _is_ending: bool = field(default=False, init=False)
    _lasting: dict[tuple[str, int], tuple[_State, int]] = field(factory=dict, init=False)
    """The states that still last, each with the time when it began."""

    @property
    def path(self) -> str:
        """The path of the trace; empty if the daemon has no trace."""
        return self._path

    def start(self, path: str, daemon: Daemon, servers: Collection[TracedServer], times_devices: bool) -> Answer:
        """Begin a trace in a new file; return the answer to the command."""
        if self._trace is not None:
            return refusal(f"A trace is written to {self._path}: end it with 'trace stop' first.")
        if not os.path.isabs(path):
            return refusal(f"{path}: the daemon has another working directory: give an absolute path.")
        try:
            self._trace = TraceFile.make(path)
        except FileExistsError:
            return refusal(f"{path} exists: remove it, or name another file.")
        except (OSError, ValueError) as error:
            return refusal(f"{path}: {getattr(error, 'strerror', '') or error}.")
        self._path = path
        self._trace.name(os.getpid(), "MPS control daemon")
        self.observe(daemon)
        for server in servers:
            self.include(server)
        return Answer(diagnostic="" if times_devices else NO_DEVICES)

    def include(self, server: TracedServer) -> None:
        """Let a server's executors write to the trace. Do nothing without a trace, or while it is being completed."""
        if self._trace is not None and not self._is_ending:
            server.start_trace(self._trace)

    def observe(self, daemon: Daemon) -> None:
        """Write the spans that have ended since the last call, and note those that have begun."""
        if self._trace is None:
            return
        now, current = time.monotonic_ns(), dict(_states(daemon, self._trace))
        for key, (state, began) in list(self._lasting.items()):
            if current.get(key) != state:
                del self._lasting[key]
                self._trace.slice(state.process, state.thread, state.name, began, now)
        for key, state in current.items():
            self._lasting.setdefault(key, (state, now))

    async def stop(self, daemon: Daemon, servers: Collection[TracedServer]) -> Answer:
        """Complete the trace; return the answer to the command."""
        if self._trace is None:
            return refusal("There is no trace: begin one with 'trace start FILE'.")
        if self._is_ending:
            return refusal(f"The trace {self._path} is being completed already.")
        self._is_ending = True
        silent = {server.pid for server in servers}

        async def stop_one(server: TracedServer) -> None:
            await server.stop_trace()
            silent.discard(server.pid)

        with trio.move_on_after(STOP_SECONDS):
            async with trio.open_nursery() as nursery:
                for server in servers:
                    nursery.start_soon(stop_one, server)
        self.observe(daemon)
        answer = self.end()
        if not silent or answer.refused:
            return answer
        pids = ", ".join(map(str, sorted(silent)))
        note = f"server {pids} did not answer within {STOP_SECONDS:.0f} s: its kernels and copies may be missing"
        return evolve(answer, diagnostic=f"{note}.")

    def end(self) -> Answer:
        """Complete the trace, if there is one, with the spans that are still open; return the answer."""
        if self._trace is None:
            return Answer()
        now = time.monotonic_ns()
        for state, began in self._lasting.values():
            self._trace.slice(state.process, state.thread, state.name, began, now)
        path, is_there = self._path, self._trace.is_at(self._path)
        self._trace.end()
        error = self._trace.error
        self._trace, self._path, self._is_ending = None, "", False
        self._lasting.clear()
        if not is_there:
            return refusal(f"{path} was removed or moved while the trace was written and no longer exists.")
        return refusal(f"{path} is not complete: {error}.") if error else Answer()


def _states(daemon: Daemon, trace: TraceFile) -> Iterator[tuple[tuple[str, int], _State]]:
    """Yield the spans that are open now, by kind and id; name the tracks."""
    own = os.getpid()
    for server in daemon.list_running_servers():
        trace.name(server.pid, f"server {server.name}")
        trace.name(server.pid, "status", 0)
        yield ("status", server.id), _State(server.pid, 0, server.phase.name)
        # Servers that take turns share a track, because they run one after the other.
        track = server.id if daemon.options.serves_users_together else 0
        trace.name(own, f"server {server.name}" if daemon.options.serves_users_together else "turns", track)
        yield ("server", server.id), _State(own, track, f"{server.name}, PID {server.pid}")
        for client_id, client in server.clients.items():
            trace.name(client.pid, f"client {client.pid}: {client.process.command}")
            trace.name(client.pid, "MPS", 0)
            yield ("client", client_id), _State(client.pid, 0, f"client of {server.name}")
    for entry in daemon.queue.all_entries:
        if entry.process is not None:
            pid = entry.process.peer.pid
            trace.name(pid, f"client {pid}: {entry.process.command}")
            trace.name(pid, "MPS", 0)
            yield ("waiting", entry.client), _State(pid, 0, "waits for a server")
