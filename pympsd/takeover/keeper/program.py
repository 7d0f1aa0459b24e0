"""The keeper: a small process that holds copies of its daemon's sockets, and gives them to the next daemon.

If the daemon is killed its sockets stay open here: connections wait in the backlog, packets in the socket, and no
peer sees an end of file. The daemon sends its requests over a link (``packets.py``): hold this descriptor, drop that
one. A link that ends without END means that the daemon was killed. The next daemon connects to ``pympsd.keeper`` in
the pipe directory and receives every entry in the order of the requests. Its connection is the link from then on.

``takeover/state/entries.py`` lists the descriptors that a daemon has held here, by the names of their entries.

It is run by path, isolated and without site (``-I -S``), and imports ``packets.py`` and what is built in:

    program.py LISTENER-FD LINK-FD WAITING-SECONDS

The daemon's side is ``link.py``; ``process.py`` starts and finds this process. The reasons are in
``docs/decisions/012-keeper.md``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself imports enum, which takes longer than all of this
import _socket
import errno
import fcntl
import os
import resource
import select
import sys
import time

if not __package__:
    sys.path.insert(0, __file__.rpartition("/pympsd/")[0])
from pympsd.takeover.keeper import packets as packets

COMM = "pympsd-keeper"
"""The name of the process in ps, pgrep and pidof."""
SERVER_PREFIX = "server "
"""The prefix of the names of connections to servers: while one lives the keeper waits for a daemon.

The note of such an entry is the message that asks the server to end with its last client."""
CLIENT_PREFIX = "client "
"""The prefix of entries that are the processes (pidfds) of clients whose servers cannot be asked often."""
LONG_WAITS = 10
"""Servers are asked to end with their last clients each time this number of waits for a daemon has passed."""
BACKLOG = 16
FD_BYTES = 4
SPARE_FDS = 16
"""The number of descriptors that are never used for entries: the next daemon's connection needs one."""
CROWDED_SECONDS = 0.01
"""The seconds to pause when the user has too many descriptors on their way in sockets (ETOOMANYREFS, unix(7))."""


class Keeper:
    """The entries, the listening socket, and the link to the daemon (None without a daemon)."""

    def __init__(self, listener: _socket.socket, link: _socket.socket, waiting_seconds: float) -> None:
        self._listener = listener
        self._link: _socket.socket | None = link
        self._waiting_seconds = waiting_seconds
        self._held: dict[str, tuple[bytes, int]] = {}
        self._to_send: list[str | None] = []
        """The names that the daemon on the link has not been sent yet, the next one last; None is the end."""
        self._fd_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FDS
        self._path = str(listener.getsockname())
        self._inode = _inode(self._path)

    def run(self) -> None:
        """Serve daemon after daemon; return when one has quit, or no other is expected."""
        _signal.signal(_signal.SIGTERM, self._handle_sigterm)
        while self._serve() and self._await_daemon():
            pass

    def _handle_sigterm(self, *_: object) -> None:
        """Exit if there is no daemon. A daemon, which may have received the same signal, decides itself."""
        if self._link is None:
            os._exit(0)

    def _serve(self) -> bool:
        """Serve the daemon on the link until it is gone and return True; return False if it quit."""
        while self._link is not None:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            poll.register(self._link, select.POLLIN | (select.POLLOUT if self._to_send else 0))
            ready = dict(poll.poll())
            if self._link.fileno() in ready:
                if not self._take_packets():
                    return False
                self._send_entries()
            if self._listener.fileno() in ready and not self._accept():
                return False
        return True

    def _await_daemon(self) -> bool:
        """Wait for the next daemon and return True; return False if none is expected.

        None is expected when the time is over and no server is left, or if no daemon can find this keeper.
        """
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        with _Changes(os.path.dirname(self._path)) as changes:
            if changes.fileno() >= 0:
                poll.register(changes, select.POLLIN)
            return self._await_daemon_by(poll, changes)

    def _await_daemon_by(self, poll: select.poll, changes: _Changes) -> bool:
        """Poll for the next daemon, and drop entries whose peers have ended; return False if none is expected."""
        give_up, waits = time.monotonic() + self._waiting_seconds, 0
        watched = {fd: name for name, (_, fd) in self._held.items()}
        for fd in watched:
            # The end of a peer is always reported, of a process (pidfd) as input.
            poll.register(fd, select.POLLIN if watched[fd].startswith(CLIENT_PREFIX) else 0)
        while self._link is None:
            # Whether the next daemon would find this keeper: its socket was not removed or replaced.
            is_reachable = self._inode is not None and _inode(self._path) == self._inode
            has_servers = any(name.startswith(SERVER_PREFIX) for name in watched.values())
            if not is_reachable:
                if not has_servers:
                    return False
                self._end_idle_servers()
                self._drop_client_sockets(poll, watched)
            remaining = give_up - time.monotonic()
            if remaining <= 0:
                if not has_servers or not (is_reachable or self._can_ask_servers()):
                    return False
                remaining, waits = self._waiting_seconds, waits + 1
                give_up = time.monotonic() + remaining
                if waits % LONG_WAITS == 0:
                    self._end_idle_servers()
            for fd, events in poll.poll(remaining * 1000 + 1):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == changes.fileno():
                    changes.clear()
                elif events:
                    poll.unregister(fd)
                    name = watched.pop(fd)
                    if not _has_unread(fd):  # what a server sent before its end is for the next daemon
                        self._drop(name)
        return True

    def _end_idle_servers(self) -> None:
        """Ask the servers to end with their last clients; the driver's server refuses if it has clients."""
        if not any(name.startswith(CLIENT_PREFIX) for name in self._held):
            for name, (note, fd) in self._held.items():
                if name.startswith(SERVER_PREFIX) and note:
                    _ask(fd, note)

    def _can_ask_servers(self) -> bool:
        """Return whether each server can be asked to end with its last client."""
        return all(note for name, (note, _) in self._held.items() if name.startswith(SERVER_PREFIX))

    def _drop_client_sockets(self, poll: select.poll, watched: dict[int, str]) -> None:
        """Close the listening sockets and the connections that no daemon will serve: clients then see an end."""
        for fd, name in list(watched.items()):
            if not name.startswith((SERVER_PREFIX, CLIENT_PREFIX)):
                poll.unregister(fd)
                del watched[fd]
                self._drop(name)

    def _accept(self) -> bool:
        """Take the next daemon's connection as the link; return False if the one before it quit."""
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return True
        connection = _socket.socket(fileno=fd)
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        if int.from_bytes(credentials[4:8], sys.byteorder) != os.geteuid():
            connection.close()
            return True
        # Packets that the previous daemon sent before it was killed count.
        if not self._take_packets():
            return False
        self._send(packets.REPLACED)
        self._close_link()
        connection.setblocking(False)
        self._link = connection
        self._to_send = [None, *reversed(self._held)]
        self._send_entries()
        return True

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._to_send.clear()

    def _take_packets(self) -> bool:
        """Handle the packets in the link, and close the link at its end; return False if the daemon quit."""
        while self._link is not None:
            try:
                # Room for one descriptor: the kernel closes others.
                data, controls, flags, _ = self._link.recvmsg(packets.PACKET_BYTES, _socket.CMSG_LEN(FD_BYTES))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.ECONNRESET:  # it has not read all packets; its own follow this error
                    continue
                self._close_link()
                break
            fd = _descriptor(controls)
            if not data:
                _close(fd)
                self._close_link()
            elif not self._handle(data, fd, flags):
                return False
        return True

    def _handle(self, data: bytes, fd: int, flags: int) -> bool:
        """Handle one packet, and ignore a malformed one; return False for END."""
        try:
            if flags & _socket.MSG_TRUNC:
                raise packets.Malformed("too long")
            kind, name, note = packets.decode(data)
        except packets.Malformed:
            _close(fd)
            return True
        if kind == packets.HOLD:
            self._hold(name, note, fd, flags)
            return True
        _close(fd)
        if kind == packets.NOTE and name in self._held:
            self._held[name] = note, self._held[name][1]
        elif kind == packets.DROP:
            self._drop(name)
        elif kind == packets.ACCEPT:
            self._accept_connection(name, note)
        return kind != packets.END

    def _accept_connection(self, listener: str, note: bytes) -> None:
        """Accept a connection for the daemon, which could be killed between its own accept and HOLD."""
        packed, _, greeting = note.partition(b"\0")
        name = packed.decode(errors="replace")
        try:
            fd = _accept_below(self._held[listener][1], self._fd_limit)
        except BlockingIOError:
            self._send(packets.REFUSED, name)
            return
        except (KeyError, OSError) as error:
            self._send(packets.REFUSED, name, f"no connection could be accepted: {error}".encode())
            return
        if greeting:
            _greet(fd, greeting)
        self._drop(name)
        self._held[name] = b"", fd
        self._to_send.insert(0, name)  # the last one

    def _hold(self, name: str, note: bytes, fd: int, flags: int) -> None:
        self._drop(name)
        if fd < 0 or fd >= self._fd_limit or flags & _socket.MSG_CTRUNC:
            _close(fd)
            self._send(packets.REFUSED, name, b"no descriptor came, or the limit of open files is reached")
        else:
            self._held[name] = note, fd

    def _drop(self, name: str) -> None:
        if name in self._held:
            _close(self._held.pop(name)[1])

    def _send(self, kind: int, name: str = "", note: bytes = b"") -> None:
        """Send a packet if there is space in the link: a daemon that does not read must not stop the keeper."""
        if self._link is not None:
            try:
                self._link.send(packets.encode(kind, name, note))
            except OSError:
                return

    def _send_entries(self) -> None:
        """Send as many of the entries as the link takes now."""
        while self._link is not None and self._to_send:
            name = self._to_send[-1]
            try:
                if name is None:
                    self._link.send(packets.encode(packets.COMPLETE))
                elif name in self._held:
                    note, fd = self._held[name]
                    right = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(FD_BYTES, sys.byteorder))
                    self._link.sendmsg([packets.encode(packets.HOLD, name, note)], [right])
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    self._to_send.clear()  # it is gone: the link's end will be read
                    return
                time.sleep(CROWDED_SECONDS)
                return
            self._to_send.pop()


class _Changes:
    """Becomes readable when a file is removed from a directory, or renamed there (F_NOTIFY, fcntl(2)).

    fileno() is -1 if the directory cannot be watched.
    """

    def __init__(self, folder: str) -> None:
        self._fds: list[int] = []
        _signal.signal(_signal.SIGIO, self._report)
        try:
            self._fds.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            self._fds.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            fcntl.fcntl(self._fds[1], fcntl.F_NOTIFY, fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_MULTISHOT)
        except OSError:
            self._close()

    def __enter__(self) -> _Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def fileno(self) -> int:
        return self._fds[0] if self._fds else -1

    def clear(self) -> None:
        """Make the descriptor unreadable until the next change."""
        os.eventfd_read(self._fds[0])

    def _report(self, *_: object) -> None:
        if self._fds:
            os.eventfd_write(self._fds[0], 1)

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def _descriptor(controls: list[tuple[int, int, bytes]]) -> int:
    """Return the descriptor in the control messages of a recvmsg, or -1."""
    for level, kind, payload in controls:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS) and len(payload) >= FD_BYTES:
            return int.from_bytes(payload[:FD_BYTES], sys.byteorder)
    return -1


def _accept_below(listener: int, fd_limit: int) -> int:
    """Accept a connection. Raise BlockingIOError if there is none, OSError if its descriptor would be too high."""
    if os.get_blocking(listener):
        raise OSError("the listening socket blocks")
    free = os.dup(listener)  # the lowest one that is free, as the connection's would be
    os.close(free)
    if free >= fd_limit:
        raise OSError("the limit of open files is reached")
    sock = _socket.socket(fileno=listener)
    try:
        fd: int = sock._accept()[0]  # type: ignore[attr-defined]
    finally:
        sock.detach()
    return fd


def _greet(fd: int, greeting: bytes) -> None:
    """Send the first packet of a connection. The daemon handles a peer that is gone."""
    sock = _socket.socket(fileno=fd)
    try:
        sock.send(greeting, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
    except OSError:
        pass
    finally:
        sock.detach()


def _ask(link: int, question: bytes) -> None:
    """Send a server a question, if its link has space; the next question waits for its answer."""
    sock = _socket.socket(fileno=link)
    try:
        if sock.type & 0xF == _socket.SOCK_SEQPACKET and _has_unread(link):
            sock.recv(4, _socket.MSG_DONTWAIT)
        sock.send(question, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
    except OSError:
        pass
    finally:
        sock.detach()


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _has_unread(fd: int) -> bool:
    """Return whether bytes can still be read from a socket whose peer has closed it; False if it is not a socket."""
    try:
        sock = _socket.socket(fileno=fd)
    except OSError:
        return False
    try:
        return bool(sock.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT))
    except OSError:
        return False
    finally:
        sock.detach()


def main(listener_fd: str, link_fd: str, waiting_seconds: str) -> None:
    """Run a keeper with the listening socket and the link that the daemon passed on."""
    for number in (_signal.SIGINT, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_IGN)
    with open("/proc/self/comm", "w") as comm:
        comm.write(COMM)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener, link = _socket.socket(fileno=int(listener_fd)), _socket.socket(fileno=int(link_fd))
    for sock in (listener, link):
        sock.setblocking(False)
    # Listen again, after the daemon did: clients then see this process's credentials (SO_PEERCRED), not the daemon's.
    listener.listen(BACKLOG)
    Keeper(listener, link, float(waiting_seconds)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
