"""A front door with a real listening socket, a real mind, and no server processes."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from pathlib import Path

import pytest
import structlog
import trio
from attrs import define, field

from pympsd.devices.machine import describe
from pympsd.journal.files import LogFile
from pympsd.journal.setup import Journal, control_logger
from pympsd.service.dispatcher import Hub
from pympsd.service.listeners import FrontDoor
from pympsd.state_machine.daemon_state import Daemon as Mind
from pympsd.state_machine.instructions import SpawnServer
from pympsd.vocabulary.settings import Settings
from pympsd.wire import frames
from pympsd.wire.framing import Frame, FrameReader

SECONDS = 60


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Give a test an absolute limit of time."""

    @wraps(test)
    async def run(*arguments: object, **keywords: object) -> None:
        with trio.fail_after(SECONDS):
            await test(*arguments, **keywords)

    return run


@define
class Caller:
    """Somebody who has connected."""

    sock: trio.socket.SocketType
    _reader: FrameReader = field(factory=lambda: FrameReader(fds_allowed=4), init=False)
    _frames: list[Frame] = field(factory=list, init=False)

    async def say(self, data: bytes) -> None:
        """Send bytes."""
        while data:
            data = data[await self.sock.send(data) :]

    async def hear(self) -> Frame | None:
        """Return the next frame, None at the end."""
        while not self._frames:
            try:
                data = await self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames.extend(self._reader.feed(data))
        return self._frames.pop(0)

    async def ask(self, line: bytes) -> list[tuple[int, bytes]]:
        """Give a command; return the frames of its answer."""
        await self.say(frames.encode(frames.OPERATOR_LINE, line))
        answer: list[tuple[int, bytes]] = []
        while not answer or answer[-1][0] != frames.OPERATOR_DONE:
            frame = await self.hear()
            assert frame is not None, answer
            answer.append((frame.kind, frame.body))
        return answer


@define
class House:
    """A hub behind one front door, and everyone who came."""

    hub: Hub
    path: str
    log: Path
    spawned: list[SpawnServer]
    callers: list[Caller] = field(factory=list)

    async def connect(self) -> Caller:
        """Come to the door."""
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await sock.connect(self.path)
        self.callers.append(Caller(sock))
        return self.callers[-1]

    async def operator(self) -> Caller:
        """Come as an operator."""
        caller = await self.connect()
        await caller.say(frames.encode(frames.OPERATOR_HELLO))
        return caller

    async def still_answers(self) -> bool:
        """Whether the daemon answers an operator."""
        operator = await self.operator()
        return await operator.ask(b"get_server_list") == [(frames.OPERATOR_DONE, b"\0")]

    def sentences(self) -> list[str]:
        """Return what control.log says, without times."""
        return [line.partition("] ")[2] for line in self.log.read_text(errors="surrogateescape").splitlines()]


@pytest.fixture
async def house(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[House]:
    """A daemon without its servers."""
    journal = Journal(LogFile(str(tmp_path / "control.log")), LogFile(str(tmp_path / "server.log")))
    spawned: list[SpawnServer] = []

    async def spawn(_: Hub, instruction: SpawnServer) -> None:
        spawned.append(instruction)

    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(str(tmp_path / "control"))
    listener.listen(4096)
    scope = trio.CancelScope()
    ended = trio.Event()
    mind = Mind(os.geteuid(), describe("H200"))
    settings = Settings.from_environment({})
    made: list[House] = []

    async def run(task_status: trio.TaskStatus[None]) -> None:
        try:
            with scope:
                async with trio.open_nursery() as inner:
                    hub = Hub(
                        mind, settings, str(tmp_path / "control"), "pympsd-server", journal,
                        control_logger(journal), inner, spawn,
                    )  # fmt: skip
                    made.append(House(hub, str(tmp_path / "control"), tmp_path / "control.log", spawned))
                    inner.start_soon(FrontDoor(hub, listener, True).run)
                    task_status.started()
        finally:
            ended.set()

    await nursery.start(run)
    yield made[0]
    for caller in made[0].callers:
        caller.sock.close()
    scope.cancel()
    await ended.wait()
    listener.close()
    for file in (journal.control, journal.server):
        assert file is not None
        file.close()
    structlog.reset_defaults()
