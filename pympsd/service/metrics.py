"""Serve OpenMetrics text in HTTP responses at the socket of --metrics.

Any user of the machine may connect, so nothing that a scraper does may cost the daemon much: at most CONNECTIONS are
open, each for at most SECONDS; a request has to be complete within REQUEST_SECONDS; the text is cached for
FRESH_SECONDS; and the text that is being sent counts against the user's share of buffers. If another scraper connects
while all connections are taken, one connection of the user that has most of them is closed: the oldest without a
request, or else the oldest. `metrics_text` writes the text.
"""

import contextlib
import errno
import os
import re
import socket
import stat
from collections import Counter
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.descriptors import explain
from pympsd.errors import LimitExceeded
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.listeners import OUT_OF_FDS
from pympsd.service.metrics_text import CONTENT_TYPE, metrics_text
from pympsd.service.processes.peers import user_of
from pympsd.vocabulary import files
from pympsd.vocabulary.identities import NO_USER

LOOPBACK: Final = re.compile(r"(?:(127\.\d+\.\d+\.\d+|localhost|\[::1\]):)?(\d{1,5})")
CONNECTIONS: Final = 16
"""The maximum number of open connections; a further one replaces another."""
REQUEST_SECONDS: Final = 1.0
"""The time in seconds within which a request must be complete; otherwise the connection is closed."""
SECONDS: Final = 5.0
"""The maximum duration of a connection, in seconds."""
REQUEST_BYTES: Final = 8192
FRESH_SECONDS: Final = 0.25
"""The number of seconds for which a text is cached, because any user of the machine may request it any number of
times.
"""
PAUSE_SECONDS: Final = 1.0
"""The pause in seconds after no descriptor was left for a connection."""


def listen(address: str, pipe_directory: str) -> socket.socket:
    """Return a socket that listens at a path, which begins with /, or at a port of the loopback. Raise OSError.

    Only the daemon's user and root can connect to a path; every user of the machine can connect to a port.
    """
    if address.startswith("/"):
        folder, name = os.path.split(address)
        if name in files.OF_THE_DAEMON and os.path.realpath(folder) == os.path.realpath(pipe_directory):
            raise OSError("the daemon itself has a file of that name in its pipe directory; choose another name")
        return _listen_at(address)
    match = LOOPBACK.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise OSError("an address is PORT, 127.0.0.1:PORT, [::1]:PORT (no other machine is served), or /PATH")
    host = "127.0.0.1" if match[1] in (None, "localhost") else match[1].strip("[]")
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, int(match[2])))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def _listen_at(path: str) -> socket.socket:
    """Return a socket that listens at a path, after removing the socket of a killed daemon. Raise OSError."""
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise FileExistsError(
                    errno.EEXIST,
                    "the file at this path is not a socket: remove the file, or choose another path",
                )
            if _is_abandoned(path):
                os.unlink(path)
        sock.bind(path)
        sock.listen()
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def end(listening: socket.socket, handed_over: bool) -> None:
    """Close a listening socket, and remove its path unless another daemon or another file may have the
    path by now.
    """
    path = listening.getsockname()
    listening.close()
    if isinstance(path, str) and not handed_over:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.lstat(path).st_mode) and _is_abandoned(path):
                os.unlink(path)


def _is_abandoned(path: str) -> bool:
    """Return whether no process listens at a socket's path, because its daemon was killed."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


@define(eq=False)
class _Scraper:
    """A scraper's connection."""

    user: int | None
    """The peer's uid; None or a number that is not a uid if the peer connected to a port."""
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    is_requested: bool = field(default=False, init=False)
    """Whether the request has been received."""


@define
class MetricsServer:
    """Answers scrapers; the caller closes the socket."""

    dispatcher: Dispatcher
    listening: socket.socket
    _open: list[_Scraper] = field(factory=list, init=False)
    """The open connections, the oldest first."""
    _text: bytes = field(default=b"", init=False)
    _made_at: float = field(default=float("-inf"), init=False)

    async def run(self) -> None:
        """Answer until it is cancelled."""
        sock = trio.socket.from_stdlib_socket(self.listening)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    peer, _ = await sock.accept()
                except OSError as error:
                    if error.errno in OUT_OF_FDS:
                        self.dispatcher.log.error("connection_refused", reason=explain(error))
                        await trio.sleep(PAUSE_SECONDS)
                    continue
                self._make_room()
                self._open.append(scraper := _Scraper(user_of(peer)))
                nursery.start_soon(self._serve, trio.SocketStream(peer), scraper)

    def _make_room(self) -> None:
        """Close a connection if CONNECTIONS are open: of the user who has most, the oldest without a request, or else
        the oldest.
        """
        if len(self._open) < CONNECTIONS:
            return
        ((user, _),) = Counter(scraper.user for scraper in self._open).most_common(1)
        of_user = [scraper for scraper in self._open if scraper.user == user]
        closed = next((scraper for scraper in of_user if not scraper.is_requested), of_user[0])
        self._open.remove(closed)
        closed.scope.cancel()

    async def _serve(self, peer: trio.SocketStream, scraper: _Scraper) -> None:
        """Answer one scraper's request within the time limits, and close the connection."""
        user = NO_USER if scraper.user is None else scraper.user
        try:
            with contextlib.suppress(trio.BrokenResourceError), scraper.scope, trio.move_on_after(SECONDS):
                with trio.move_on_after(REQUEST_SECONDS) as waiting:
                    request = await _request(peer)
                if not waiting.cancelled_caught:
                    scraper.is_requested = True
                    answer = await self._answer(request)
                    with self.dispatcher.budgets.buffers.allowance(user).keep(len(answer)):
                        await peer.send_all(answer)
                    await peer.send_eof()
        except LimitExceeded as error:
            self.dispatcher.budgets.log_closed(user, error)
        finally:
            with contextlib.suppress(ValueError):  # closed to make room for another connection
                self._open.remove(scraper)
            peer.socket.close()

    async def _answer(self, request: bytes) -> bytes:
        method, _, target = request.partition(b" ")
        path = target.partition(b" ")[0].partition(b"?")[0]
        if not request.endswith(b"\r\n\r\n"):
            return _response("400 Bad Request", b"a request of HTTP is expected\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"GET and HEAD are served\n", more="Allow: GET, HEAD\r\n")
        if path not in (b"/", b"/metrics"):
            return _response("404 Not Found", b"the metrics are at /metrics\n")
        response = _response("200 OK", await self._current(), CONTENT_TYPE)
        return response if method == b"GET" else response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    async def _current(self) -> bytes:
        """Return the text; write it again if it is older than FRESH_SECONDS."""
        if trio.current_time() - self._made_at > FRESH_SECONDS:
            self._made_at = trio.current_time()  # until it is written, other scrapers get the previous text
            with trio.move_on_after(SECONDS / 2):
                for server in list(self.dispatcher.sessions.servers.values()):
                    await server.refresh()
            self._text = metrics_text(self.dispatcher.state, self.dispatcher.settings.backend).encode()
        return self._text or metrics_text(self.dispatcher.state, self.dispatcher.settings.backend).encode()


async def _request(peer: trio.SocketStream) -> bytes:
    """Return the head of a request. The head is incomplete if the connection ends early or the head is too long."""
    request = b""
    while not request.endswith(b"\r\n\r\n") and len(request) < REQUEST_BYTES:
        more = await peer.receive_some(REQUEST_BYTES - len(request))
        if not more:
            break
        request += more
    return request


def _response(status: str, body: bytes, kind: str = "text/plain; charset=utf-8", more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body
