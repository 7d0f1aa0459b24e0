"""The sockets of servers and namespaces in protocol 3: opened and closed while the daemon runs."""

from __future__ import annotations

import contextlib
import os
import socket

import trio
from attrs import define, field

from pympsd.channel.descriptors import explain
from pympsd.journal.setup import Journal
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.files import namespace_directory
from pympsd.service.files.log_fifo import read_fifo
from pympsd.service.inheritance import Inherited, file_note, listener_name
from pympsd.service.listeners import Listener
from pympsd.service.sessions.conversation import Conversation
from pympsd.service.sessions.vendor.conversation import VendorConversation
from pympsd.vocabulary import files
from pympsd.wire.vendor.handshake import HELLO


@define
class NamespaceSockets:
    """Those that are open."""

    dispatcher: Dispatcher
    left: Inherited
    """What an earlier daemon left; it is empty once this one has started."""
    _listeners: dict[tuple[str, str], Listener] = field(factory=dict, init=False)
    """By server and namespace; the server's own has no namespace."""
    _fifos: dict[str, trio.CancelScope] = field(factory=dict, init=False)
    """The tasks that read the servers' log FIFOs."""

    def open(self, server: str, namespace: str, uid: int) -> str:
        """Open the socket of a namespace, or a server's own with its log FIFO; return why it cannot be."""
        try:
            with namespace_directory.opened(self.dispatcher.pipe_directory, server, namespace, uid) as folder:
                listening = self._listening(folder, server, namespace)
                if not namespace:
                    self._read_log(server, uid, namespace_directory.open_fifo(folder))
        except OSError as error:
            return str(error) if isinstance(error, namespace_directory.Foreign) else explain(error)
        file, path = self._file(server, namespace), self._path(server, namespace)
        self.dispatcher.hold(listener_name(file), listening.fileno(), file_note(path))
        speaks = VendorConversation if self._is_vendor else Conversation
        conversation = speaks(self.dispatcher, accepts_clients=True, server=server, namespace=namespace)
        listener = Listener(
            self.dispatcher,
            file,
            trio.socket.from_stdlib_socket(listening),
            conversation.run,
            self.left.take_connections(file),
            greeting=HELLO if self._is_vendor else b"",
        )
        self._listeners[server, namespace] = listener
        self.dispatcher.nursery.start_soon(listener.run)
        return ""

    def close(self, server: str, namespace: str) -> None:
        """Close a socket and remove its directory; conversations that have begun go on."""
        listener = self._listeners.pop((server, namespace), None)
        if listener is not None:
            self.dispatcher.drop(listener_name(listener.file))
            listener.stop()
        if not namespace and server in self._fifos:
            self._fifos.pop(server).cancel()
            self.dispatcher.journal.forget_server(server)
        self._remove(server, namespace)

    def remove_all(self) -> None:
        """Remove all files and directories: the daemon ends in order."""
        for server, namespace in sorted(self._listeners, reverse=True):
            self._remove(server, namespace)

    def _remove(self, server: str, namespace: str) -> None:
        parent, name = (server, namespace) if namespace else ("", server)
        # Whatever else is there, a user's file for instance, stays with its directory.
        with (
            contextlib.suppress(OSError),
            namespace_directory.existing(self.dispatcher.pipe_directory, parent) as folder,
        ):
            with namespace_directory.inside(folder, name) as own:
                namespace_directory.remove(own, files.CONTROL)
                if not namespace:
                    namespace_directory.remove(own, files.LOG_FIFO)
            os.rmdir(name, dir_fd=folder)

    def _listening(self, folder: int, server: str, namespace: str) -> socket.socket:
        """Return a listening socket: an earlier daemon's, whose backlog holds clients, or a new one."""
        kind = socket.SOCK_SEQPACKET if self._is_vendor else socket.SOCK_STREAM
        file, path = self._file(server, namespace), self._path(server, namespace)
        return self.left.take_listener(file, path, kind) or namespace_directory.listen(folder, kind)

    def _read_log(self, server: str, uid: int, fifo: int) -> None:
        scope = self._fifos[server] = trio.CancelScope()
        journal = self.dispatcher.journal.of_server(server, uid)
        self.dispatcher.nursery.start_soon(self._read, journal, fifo, scope)

    async def _read(self, journal: Journal, fifo: int, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await read_fifo(journal, fifo)
        finally:
            os.close(fifo)

    @property
    def _is_vendor(self) -> bool:
        return self.dispatcher.settings.backend == "vendor"

    def _file(self, server: str, namespace: str) -> str:
        return "/".join(filter(None, (server, namespace, files.CONTROL)))

    def _path(self, server: str, namespace: str) -> str:
        return os.path.join(self.dispatcher.pipe_directory, self._file(server, namespace))
