"""Watch the pidfds of the clients of a driver's server, because that server does not report when its clients end.

The driver's server is never asked to terminate the same context twice (`DriverTerminations`). If it is asked again
while the context exists, it stops answering all questions until the client's process ends (measured on driver 580). A
context exists until its process destroys or resets it.
"""

import os
from collections.abc import Callable
from contextlib import suppress

import msgspec
import trio
from attrs import Factory, define, evolve, field

from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.status import process_end
from pympsd.service.sessions.driver.server_link import ServerLink
from pympsd.state_machine.state.client import Client
from pympsd.takeover.state.entries import ClientNote, client_name
from pympsd.vocabulary.results import Result
from pympsd.wire.driver import server_commands as commands


@define(eq=False)
class DriverTerminations:
    """Terminates clients, and remembers their contexts by PID. ``changed`` is called with a PID and its contexts."""

    _changed: Callable[[int, frozenset[int]], None]
    _terminated: dict[int, frozenset[int]] = field(factory=dict)

    def restore(self, pid: int, contexts: frozenset[int]) -> None:
        """Take over the clients that an earlier daemon had terminated."""
        self._terminated[pid] = contexts

    def find(self, pid: int) -> frozenset[int]:
        """Return the contexts of a process that were terminated and may still exist."""
        return self._terminated.get(pid, frozenset())

    def forget(self, pid: int) -> None:
        """Forget a process that has ended."""
        self._terminated.pop(pid, None)

    def terminate(self, link: ServerLink, pid: int, answered: Callable[[int], None]) -> None:
        """Request the server to terminate a process's contexts; then call ``answered`` with a CUresult number."""

        def ask(devices: tuple[commands.DeviceClients, ...]) -> None:
            present = _contexts(devices, pid)
            terminated = present & self.find(pid)
            if terminated:
                answered(Result.ERROR_INVALID_CONTEXT if terminated == present else Result.ERROR_NOT_SUPPORTED)
                return
            # Note this before the request: before the answer, another operator may request the same, or this daemon
            # may be killed.
            self._note(pid, present)
            link.ask(commands.terminate(pid), note_result)

        def note_result(code: int) -> None:
            if not code:
                # A context that was created in the meantime may have been terminated too.
                link.ask(commands.device_clients(), lambda devices: self._note(pid, _contexts(devices, pid)))
            answered(code)

        link.ask(commands.device_clients(), ask)

    def _note(self, pid: int, contexts: frozenset[int]) -> None:
        self._terminated[pid] = contexts
        self._changed(pid, contexts)


def _contexts(devices: tuple[commands.DeviceClients, ...], pid: int) -> frozenset[int]:
    """Return the numbers of a process's contexts."""
    return frozenset(context.number for device in devices for context in device.contexts if context.pid == pid)


@define(eq=False)
class WatchedClients:
    """Calls ``_gone`` with a client's id when its process ends, until the server has ended (``_ended``)."""

    _dispatcher: Dispatcher
    _server: int
    """The server's id."""
    _ended: trio.Event
    _gone: Callable[[int], None]
    terminations: DriverTerminations = field(
        default=Factory(lambda self: DriverTerminations(self._note_terminated), takes_self=True), init=False
    )
    _noted: dict[int, tuple[int, ClientNote]] = field(factory=dict, init=False)
    """The pidfds of watched clients and their notes at the keeper, by the client's id."""

    def __len__(self) -> int:
        return len(self._noted)

    def add(self, nursery: trio.Nursery | None, client: int, record: Client | None, pidfd: int) -> None:
        """Watch a client; take over the pidfd. Do nothing if it is -1, or if too many clients are watched."""
        if pidfd < 0:
            return
        server = self._dispatcher.sessions.servers.get(self._server)
        has_room = server is not None and self._dispatcher.may_watch(server) and not self._ended.is_set()
        if record is None or nursery is None or not has_room:
            os.close(pidfd)
            return
        process = record.process
        identity = process.command, process.pid_namespace, process.namespace, process.since
        terminated = tuple(sorted(self.terminations.find(record.pid)))
        self._noted[client] = (
            pidfd,
            ClientNote(self._server, record.pid, record.uid, *identity, terminated, record.limits),
        )
        nursery.start_soon(self._watch, client)

    async def _watch(self, client: int) -> None:
        """Wait until a client's process ends, report that, and close the pidfd."""
        pidfd, note = self._noted[client]
        try:
            with (
                suppress(OSError),
                self._dispatcher.keeper.hold_during(client_name(client), pidfd, msgspec.json.encode(note)),
            ):
                await process_end(pidfd)
                # Several clients may have PID 0.
                if sum(noted_client.pid == note.pid for _, noted_client in self._noted.values()) == 1:
                    self.terminations.forget(note.pid)
                self._gone(client)
        finally:
            if self._ended.is_set():
                self._dispatcher.keeper.drop(client_name(client))
            del self._noted[client]
            os.close(pidfd)

    def _note_terminated(self, pid: int, contexts: frozenset[int]) -> None:
        for client, (pidfd, note) in self._noted.items():
            if note.pid == pid:
                new_note = evolve(note, terminated=tuple(sorted(contexts)))
                self._noted[client] = pidfd, new_note
                self._dispatcher.keeper.hold(client_name(client), pidfd, msgspec.json.encode(new_note))
