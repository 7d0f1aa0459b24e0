"""The history in the logs, read line by line: which processes began and ended, and whether that is consistent.

Lines are those of the documented dialect or of r580 (docs/log-lines.md), which has fewer. Nothing here reads files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from attrs import define, field, frozen

from tests.chaos.identity import ProcessKey

_LINE: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (\w+) +(\d+)\] ?(.*)")
_STARTS: Final = re.compile(r"Starting new server (\d+) for user (\d+)")
_READY: Final = re.compile(r"NEW SERVER (\d+): Ready")
_EXITED: Final = re.compile(r"Server (\d+) exited with status (-?\d+)")
_CONTEXT: Final = r"\{(?:PID: )?(\d+), (?:Context ID: )?(\d+)\}"
_MET: Final = re.compile(r"New client (\d+) connected|Client \{PID: (\d+), Context ID: 0\} connected")
_LEFT: Final = re.compile(r"Client (?:process )?(\d+) disconnected")
_ACTIVE: Final = re.compile(rf"(?:Volta MPS: s|S)tatus of client {_CONTEXT} is ACTIVE")
_EXIT: Final = re.compile(rf"Client {_CONTEXT} exit(?:ing\. .*)?")
_RUN_BY: Final = re.compile(r"Started executor (\d+) for device (\d+)")
_ENDED: Final = re.compile(r"Executor (\d+) of device (\d+) ended with status (-?\d+)")
_ENDED_BY_FAULT: Final = "A fatal GPU error on a pre-Volta device ends the server"
_FAULT_STATUS: Final = 1
_DROPPED: Final = re.compile(r"Dropped \d+ log lines")
_DEFECT: Final = re.compile(r"hit an internal error|Protocol violation")
"""Not "Unable to read new connection type information": the hostile users send unreadable messages."""
_HUNG_UP: Final = "User did not send valid credentials"


@frozen
class Line:
    """A line of a log: its stamp's parts and its text."""

    time: str
    source: str
    pid: int
    text: str


def read(text: str) -> Iterator[Line]:
    """Yield the lines of a log; a line without a stamp is its own text, of no process."""
    for row in text.splitlines():
        matched = _LINE.fullmatch(row)
        yield Line(matched[1], matched[2], int(matched[3]), matched[4]) if matched else Line("", "", 0, row)


@define
class ServerHistory:
    """A server: its user, how it ended, and its clients."""

    process: ProcessKey
    uid: int
    ready: bool = False
    status: int | None = None
    """The exit status; None: the log has no end of the server."""
    clients: dict[int, int] = field(factory=dict)
    """PID -> how often the client connected minus how often it left."""
    contexts: dict[tuple[int, int], int] = field(factory=dict)
    executors: dict[ProcessKey, int] = field(factory=dict)
    """Process -> device, of the executors that run. (If they end with the server, their end is not logged.)"""
    met: set[int] = field(factory=set)
    complete: bool = True
    """Whether no line of its log was dropped."""
    gone_on: bool = False
    """Whether its daemon was killed. The next daemon may take it over, and log lines in between may be lost."""
    lost: bool = False
    """Whether it ended while no daemon could report that. Another process may get its PID."""
    by_fault: bool = False
    """Whether it reported that a fatal fault ends it (before Volta)."""

    @property
    def pid(self) -> int:
        """Return the server's PID in the log."""
        return self.process.pid


@define
class LogHistory:
    """Follows both logs. ``identify``, called when a PID is logged, returns the process that has the PID then."""

    identify: Callable[[int], ProcessKey] = ProcessKey
    servers: list[ServerHistory] = field(factory=list)
    problems: list[str] = field(factory=list)
    daemons: list[int] = field(factory=list)
    peers_hang_up: bool = False
    """Whether peers may disconnect without a message: libcuda does, to test whether a daemon runs."""
    _open: bool = False
    """Whether the last daemon has not logged its exit."""

    def hear_control(self, line: Line) -> None:
        """Record a line of control.log."""
        text = line.text
        if text.startswith("Starting control daemon"):
            self._daemon_starts(line.pid)
        elif text.startswith("Exit with status"):
            self._daemon_exits(text)
        elif matched := _STARTS.fullmatch(text):
            self._server_starts(int(matched[1]), int(matched[2]))
        elif matched := _READY.fullmatch(text):
            self._server_ready(int(matched[1]))
        elif matched := _EXITED.fullmatch(text):
            self._server_exited(int(matched[1]), int(matched[2]))
        elif _DEFECT.search(text) or (text == _HUNG_UP and not self.peers_hang_up):
            self.problems.append(f"control.log: {text}")

    def hear_server(self, line: Line) -> None:
        """Record a line of server.log."""
        server, text = self.server(line.pid), line.text
        if _DEFECT.search(text) or (text == _HUNG_UP and not self.peers_hang_up):
            self.problems.append(f"server.log: {text}")
        if server is None:
            return
        if matched := _MET.fullmatch(text):
            pid = int(matched[1] or matched[2])
            server.met.add(pid)
            _count(server.clients, pid, 1)
        elif matched := _LEFT.fullmatch(text):
            _count(server.clients, int(matched[1]), -1)
        elif matched := _ACTIVE.fullmatch(text):
            _count(server.contexts, (int(matched[1]), int(matched[2])), 1)
        elif matched := _EXIT.fullmatch(text):
            _count(server.contexts, (int(matched[1]), int(matched[2])), -1)
        elif matched := _RUN_BY.fullmatch(text):
            server.executors[self.identify(int(matched[1]))] = int(matched[2])
        elif matched := _ENDED.fullmatch(text):
            for executor in [executor for executor in server.executors if executor.pid == int(matched[1])]:
                del server.executors[executor]
        elif text == _ENDED_BY_FAULT:
            server.by_fault = True
        elif _DROPPED.match(text):
            server.complete = False

    def server(self, pid: int) -> ServerHistory | None:
        """Return the latest server of a PID."""
        return next((server for server in reversed(self.servers) if server.pid == pid), None)

    def running(self) -> list[ServerHistory]:
        """Return the servers that have not ended."""
        return [server for server in self.servers if server.status is None and not server.lost]

    # --- control.log

    def _daemon_starts(self, pid: int) -> None:
        if self._open:
            for server in self.running():
                server.gone_on = True
        self.daemons.append(pid)
        self._open = True

    def _daemon_exits(self, text: str) -> None:
        self._open = False
        if text != "Exit with status 0":
            self.problems.append(f"control.log: {text}")
        for server in self.running():
            if not server.gone_on:
                self.problems.append(f"the daemon has left and server {server.pid} has not ended")

    def _server_starts(self, pid: int, uid: int) -> None:
        others = [process.pid for process in self.running() if not process.gone_on]
        if others:
            self.problems.append(f"server {pid} is started while {others} have not ended")
        self.servers.append(ServerHistory(self.identify(pid), uid))

    def _server_ready(self, pid: int) -> None:
        server = self.server(pid)
        if server is None or server.ready or server.status is not None:
            self.problems.append(f"server {pid} is ready, and was never started, was ready already or has ended")
        else:
            server.ready = True

    def _server_exited(self, pid: int, status: int) -> None:
        server = self.server(pid)
        if server is None or server.status is not None:
            self.problems.append(f"server {pid} has ended, and was never started or had ended already")
        else:
            server.status = status


def _count(counts: dict[object, int], key: object, more: int) -> None:
    counts[key] = counts.get(key, 0) + more


def judge(
    logs: LogHistory, killed: Collection[ProcessKey], forced: Collection[ProcessKey], attached: Iterable[int]
) -> list[str]:
    """Return what is inconsistent at the end, when the last daemon has quit.

    ``killed``: processes that this tool killed, or made the daemon kill. ``forced``: servers forced to end,
    which report no more. ``attached``: PIDs of clients that have had a server; the logs must have each.
    """
    problems = list(logs.problems)
    met: set[int] = set()
    for server in logs.servers:
        met |= server.met
        cut_short = server.process in killed or server.process in forced or server.by_fault
        problems += _ends(server, cut_short)
        if server.complete and not server.gone_on:
            problems += _books(server, cut_short)
    if all(server.complete and not server.gone_on for server in logs.servers):
        problems += [f"client {pid} had a server, and no server met it" for pid in attached if pid not in met]
    return problems


def _ends(server: ServerHistory, cut_short: bool) -> Iterator[str]:
    if server.status is None and not server.gone_on:
        yield f"server {server.pid} was started and never ended"
    elif server.by_fault and server.status not in (None, _FAULT_STATUS) and not server.gone_on:
        yield f"server {server.pid} ended with status {server.status} where a fault was to end it"
    elif server.status and not cut_short:
        yield f"server {server.pid} ended with status {server.status}, and was not killed"


def _books(server: ServerHistory, cut_short: bool) -> Iterator[str]:
    for kind, counts in (("client", server.clients), ("context", server.contexts)):
        for name, count in counts.items():
            if count < 0 or (count and not cut_short):
                yield f"server {server.pid}: {kind} {name} came {count:+d} times more often than it left"
