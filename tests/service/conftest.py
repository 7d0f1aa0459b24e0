"""A running daemon with a real listening socket and a real state machine, and no server processes."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
import trio
from attrs import define, field

from pympsd.devices.machine import describe
from pympsd.journal.files import LogFile
from pympsd.journal.setup import Journal, control_logger
from pympsd.service.dispatcher import Dispatcher, Sessions
from pympsd.service.files.pipe_directory import PipeDirectory
from pympsd.service.listeners import Listener
from pympsd.service.sessions.conversation import OwnConversation
from pympsd.state_machine.instructions import SpawnServer
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.takeover.keeper.entries import KeptEntries
from pympsd.takeover.keeper.link import KeeperLink
from pympsd.takeover.servers import PendingServer, take_over
from pympsd.takeover.state.entries import KeptFd
from pympsd.takeover.state.records import PersistentServer, PersistentState
from pympsd.takeover.state_file import StateFile, device_keys
from pympsd.vocabulary import files
from pympsd.vocabulary.settings import Settings
from pympsd.wire import frames, messages
from pympsd.wire import link_messages as link
from pympsd.wire.framing import Frame, FrameReader
from pympsd.wire.messages import Versions


@define
class Caller:
    """A connection to the daemon."""

    sock: trio.socket.SocketType
    _reader: FrameReader = field(factory=lambda: FrameReader(fds_allowed=4), init=False)
    _frames: list[Frame] = field(factory=list, init=False)

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        while data:
            data = data[await self.sock.send(data) :]

    async def receive(self) -> Frame | None:
        """Return the next frame; None at the end."""
        while not self._frames:
            try:
                data = await self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames.extend(self._reader.feed(data))
        return self._frames.pop(0)

    async def message(self) -> object:
        """Return the next message; None at the end."""
        frame = await self.receive()
        return None if frame is None else messages.decode(frame)

    async def report(
        self,
        pid: int,
        *clients: link.ReturningClient,
        count: int | None = None,
        versions: Versions | None = None,
        status: str = "ACTIVE",
    ) -> None:
        """As a server, await the next daemon's request, and report ``count`` clients (None: those that follow)."""
        request = await self.message()
        assert isinstance(request, link.ReportRequest)
        assert request.versions == Versions()
        number = len(clients) if count is None else count
        hello = link.ServerReturn(versions or Versions(), pid, status, False, number, request.token)
        for message in (hello, *clients):
            await self.send(messages.encode(message))

    async def ask(self, line: bytes) -> list[tuple[int, bytes]]:
        """Send a command; return the frames of its answer."""
        await self.send(frames.encode(frames.OPERATOR_LINE, line))
        answer: list[tuple[int, bytes]] = []
        while not answer or answer[-1][0] != frames.OPERATOR_DONE:
            frame = await self.receive()
            assert frame is not None, answer
            answer.append((frame.kind, frame.body))
        return answer


@define
class RunningDaemon:
    """A dispatcher behind one listener, and the connections to it."""

    dispatcher: Dispatcher
    path: str
    log: Path
    spawned: list[SpawnServer]
    pending: list[PendingServer]
    callers: list[Caller] = field(factory=list)

    async def connect(self) -> Caller:
        """Connect."""
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await sock.connect(self.path)
        self.callers.append(Caller(sock))
        return self.callers[-1]

    async def operator(self) -> Caller:
        """Connect as an operator."""
        caller = await self.connect()
        await caller.send(frames.encode(frames.OPERATOR_HELLO))
        return caller

    async def still_answers(self) -> bool:
        """Return whether the daemon answers an operator."""
        operator = await self.operator()
        return await operator.ask(b"get_server_list") == [(frames.OPERATOR_DONE, b"\0")]

    def save_predecessor(self, server: PersistentServer, backend: str = "") -> Path:
        """Write the state file of an earlier daemon that had one server, of this backend (empty: this daemon's)."""
        folder = self.log.parent
        devices, same = device_keys(self.dispatcher.state.devices), self.dispatcher.settings.backend
        file = StateFile(str(folder), lambda: devices, self.dispatcher.log, backend=backend or same)
        file.save(PersistentState(servers=(server,)))
        return folder / files.STATE

    def take_over(self, *links: int, full: bool = False) -> list[Caller]:
        """Restore the state of the earlier daemon, as at the start; return the servers' ends of these links.

        ``full``: the earlier daemon sent them as much as they hold.
        """
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in links]
        for ours, _ in pairs if full else ():
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(messages.encode(link.ShutDown(False)))
        kept_entries = KeptEntries(
            links={server_id: ours.detach() for server_id, (ours, _) in zip(links, pairs, strict=True)}
        )
        ends = [Caller(trio.socket.from_stdlib_socket(theirs)) for _, theirs in pairs]
        self.callers += ends
        self.pending += take_over(self.dispatcher, str(self.log.parent), kept_entries)
        kept_entries.close()
        return ends

    async def go_on_with(self, *connections: KeptFd[bytes], keeper: KeeperLink | None = None) -> None:
        """Serve connections that an earlier daemon accepted, on a listener that nobody else connects to."""
        self.dispatcher.keeper = keeper or self.dispatcher.keeper
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await listener.bind(f"{self.path}.next")
        listener.listen()
        converse = OwnConversation(self.dispatcher, True).run
        self.dispatcher.nursery.start_soon(Listener(self.dispatcher, "control", listener, converse, connections).run)

    def sentences(self) -> list[str]:
        """Return the sentences of control.log, without times."""
        return [line.partition("] ")[2] for line in self.log.read_text(errors="surrogateescape").splitlines()]


@pytest.fixture
async def daemon(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[RunningDaemon]:
    """A daemon without server processes."""
    journal = Journal(LogFile(str(tmp_path / "control.log")), LogFile(str(tmp_path / "server.log")))
    spawned: list[SpawnServer] = []
    pending: list[PendingServer] = []

    async def spawn(_: Dispatcher, instruction: SpawnServer) -> None:
        spawned.append(instruction)

    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(str(tmp_path / "control"))
    listener.listen(4096)
    scope = trio.CancelScope()
    ended = trio.Event()
    state = Daemon(DaemonOptions(os.geteuid()), describe("H200"))
    settings = Settings.from_environment({})
    daemons: list[RunningDaemon] = []

    async def run(task_status: trio.TaskStatus[None]) -> None:
        try:
            with scope:
                async with trio.open_nursery() as inner:
                    log = control_logger(journal)
                    keeper = KeeperLink(PipeDirectory(str(tmp_path), str(tmp_path), -1), log)
                    dispatcher = Dispatcher(state, settings, journal, log, inner, keeper, Sessions(spawn))
                    daemons.append(
                        RunningDaemon(
                            dispatcher, str(tmp_path / "control"), tmp_path / "control.log", spawned, pending
                        )
                    )
                    inner.start_soon(
                        Listener(dispatcher, "control", listener, OwnConversation(dispatcher, True).run).run
                    )
                    task_status.started()
        finally:
            ended.set()

    await nursery.start(run)
    yield daemons[0]
    for caller in daemons[0].callers:
        caller.sock.close()
    scope.cancel()
    await ended.wait()
    listener.close()
    for file in (journal.control, journal.server):
        assert file is not None
        file.close()
    structlog.reset_defaults()
