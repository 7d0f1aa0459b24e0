"""Open and close the sockets of servers and namespaces in protocol 3, while the daemon runs.

    PIPE-DIRECTORY/SERVER/control              the server's own, with a log FIFO next to it
    PIPE-DIRECTORY/SERVER/NAMESPACE/control    a namespace's: clients that connect here get its limits

The state machine decides which sockets exist; `NamespaceSockets` opens them, or reports why it cannot. Somebody else
may remove a file (an administrator, a cleaner of /tmp), so after events `look` checks all sockets and recreates
missing ones, with pauses that limit the cost. Listening sockets that the previous daemon left are taken over if the
file is still the same one.
"""

import contextlib
import math
import os
import socket
import stat
from collections.abc import Callable
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.descriptors import explain
from pympsd.journal.setup import Journal
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.files import namespace_directory
from pympsd.service.listeners import Listener
from pympsd.service.log_fifo import read_fifo
from pympsd.service.sessions.conversation import OwnConversation
from pympsd.service.sessions.driver.conversation import DriverConversation
from pympsd.state_machine.events import NamespaceLost, NamespaceOpened
from pympsd.takeover.keeper.entries import KeptEntries, file_note
from pympsd.takeover.state.entries import listener_name
from pympsd.vocabulary import files
from pympsd.wire.driver.handshake import HELLO

PAUSE_SECONDS: Final = 0.0002
"""The number of seconds for each socket between two checks of all sockets.

A check of a socket takes 5 µs, so checks take 1/40 of the time.
"""


@define
class _Socket:
    """A socket that is open, or that could not be opened."""

    path: str
    listener: Listener | None = None
    file: tuple[int, int] = (0, 0)
    """The device and inode of the socket's file."""
    problem: str = ""


@define
class NamespaceSockets:
    """Opens, checks and closes the sockets that should exist."""

    dispatcher: Dispatcher
    kept_entries: KeptEntries
    """The descriptors that an earlier daemon left; empty after this daemon has started."""
    is_taken_by_another: Callable[[], bool] = lambda: False
    """The function that returns whether another daemon has taken the pipe directory."""
    opened: list[NamespaceOpened] = field(factory=list, init=False)
    """The results of ``open``, for the state machine."""
    _sockets: dict[tuple[str, str], _Socket] = field(factory=dict, init=False)
    """The sockets by server and namespace; the namespace of a server's own socket is empty."""
    _fifos: dict[str, trio.CancelScope] = field(factory=dict, init=False)
    """The tasks that read the servers' log FIFOs, by server."""
    _next_look: float = field(default=-math.inf, init=False)
    """The time before which sockets are not checked again."""
    _looks_soon: bool = field(default=False, init=False)

    def open(self, server: str, namespace: str, uid: int) -> None:
        """Open the socket of a namespace, or a server's own with its log FIFO, unless it is open.

        The result is added to ``opened``. While a server's own socket cannot be opened, its namespaces have none.
        """
        entry = self._sockets.setdefault((server, namespace), _Socket(self._path(server, namespace)))
        if not self._is_there(entry):
            self._stop(entry)
            own = self._sockets.get((server, "")) if namespace else None
            entry.problem = (own.problem if own is not None else "") or self._open(entry, server, namespace, uid)
        self.opened.append(NamespaceOpened(server, namespace, entry.problem))

    def look(self) -> None:
        """Recreate missing sockets, which were removed or could not be created.

        Do so immediately, or after the pause that follows the last check.
        """
        pause = self._next_look - trio.current_time()
        if pause <= 0:
            self._look()
        elif not self._looks_soon:
            self._looks_soon = True
            self.dispatcher.nursery.start_soon(self._look_after, pause)

    def close(self, server: str, namespace: str) -> None:
        """Close a socket and remove its directory; conversations that have begun continue."""
        entry = self._sockets.pop((server, namespace), None)
        if entry is not None:
            self._stop(entry)
        if not namespace and server in self._fifos:
            self._fifos.pop(server).cancel()
            self.dispatcher.journal.close_server_log(server)
        self._remove(server, namespace)

    def remove_all(self) -> None:
        """Remove all files and directories, because the daemon quits."""
        for server, namespace in sorted(self._sockets, reverse=True):
            self._remove(server, namespace)
        self._sockets.clear()

    async def _look_after(self, pause: float) -> None:
        await trio.sleep(pause)
        self._looks_soon = False
        self._look()

    def _look(self) -> None:
        lost = [key for key, entry in self._sockets.items() if not self._is_there(entry)]
        self._next_look = trio.current_time() + PAUSE_SECONDS * len(self._sockets)
        if lost and not self.is_taken_by_another():
            for key in lost:
                self.dispatcher.feed(NamespaceLost(*key))

    def _open(self, entry: _Socket, server: str, namespace: str, uid: int) -> str:
        """Open a socket and start its listener; return why it cannot be opened, or an empty text."""
        try:
            with namespace_directory.open_directory(self._directory, server, namespace, uid) as folder:
                if not namespace:
                    self._read_log(server, uid, namespace_directory.open_fifo(folder))
                listening = self._open_listener(folder, server, namespace)
        except OSError as error:
            return str(error) if isinstance(error, namespace_directory.Foreign) else explain(error)
        file = self._file(server, namespace)
        entry.file = self._file_at(entry.path)
        self.dispatcher.keeper.hold(listener_name(file), listening.fileno(), file_note(entry.path))
        speaks = DriverConversation if self._is_vendor else OwnConversation
        conversation = speaks(self.dispatcher, accepts_clients=True, server=server, namespace=namespace)
        entry.listener = Listener(
            self.dispatcher,
            file,
            trio.socket.from_stdlib_socket(listening),
            conversation.run,
            self.kept_entries.take_connections(file),
            greeting=HELLO if self._is_vendor else b"",
        )
        self.dispatcher.nursery.start_soon(entry.listener.run)
        return ""

    def _is_there(self, entry: _Socket) -> bool:
        """Return whether a socket is open and its file has not been replaced."""
        return entry.listener is not None and entry.file == self._file_at(entry.path)

    def _file_at(self, path: str) -> tuple[int, int]:
        """Return the device and inode of a socket below the pipe directory; zeros if it does not exist.

        A socket behind a symbolic link does not count: the folders belong to users, who may put links there.
        """
        place = self._directory
        *folders, _ = path.removeprefix(place).strip("/").split("/")
        try:
            for name in folders:
                place = f"{place}/{name}"
                if not stat.S_ISDIR(os.lstat(place).st_mode):
                    return 0, 0
            status = os.lstat(path)
        except OSError:
            return 0, 0
        return status.st_dev, status.st_ino

    def _stop(self, entry: _Socket) -> None:
        if entry.listener is not None:
            self.dispatcher.keeper.drop(listener_name(entry.listener.file))
            entry.listener.stop()
            entry.listener = None

    def _remove(self, server: str, namespace: str) -> None:
        parent, name = (server, namespace) if namespace else ("", server)
        # Other files, such as a user's own, stay, and so does their directory.
        with (
            contextlib.suppress(OSError),
            namespace_directory.open_existing(self._directory, parent) as folder,
        ):
            with namespace_directory.open_subdirectory(folder, name) as own:
                namespace_directory.remove(own, files.CONTROL)
                if not namespace:
                    namespace_directory.remove(own, files.LOG_FIFO)
            os.rmdir(name, dir_fd=folder)

    def _open_listener(self, folder: int, server: str, namespace: str) -> socket.socket:
        """Return a listening socket: an earlier daemon's, whose backlog holds clients, or a new one."""
        kind = socket.SOCK_SEQPACKET if self._is_vendor else socket.SOCK_STREAM
        file, path = self._file(server, namespace), self._path(server, namespace)
        return self.kept_entries.take_listener(file, path, kind) or namespace_directory.listen(folder, kind)

    def _read_log(self, server: str, uid: int, fifo: int) -> None:
        if server in self._fifos:
            self._fifos[server].cancel()
        scope = self._fifos[server] = trio.CancelScope()
        journal = self.dispatcher.journal.open_for_server(server, uid)
        self.dispatcher.nursery.start_soon(self._read, journal, fifo, scope)

    async def _read(self, journal: Journal, fifo: int, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await read_fifo(journal, fifo)
        finally:
            os.close(fifo)

    @property
    def _directory(self) -> str:
        return self.dispatcher.state.options.pipe_directory

    @property
    def _is_vendor(self) -> bool:
        return self.dispatcher.settings.backend == "vendor"

    def _file(self, server: str, namespace: str) -> str:
        return "/".join(filter(None, (server, namespace, files.CONTROL)))

    def _path(self, server: str, namespace: str) -> str:
        return os.path.join(self._directory, self._file(server, namespace))
