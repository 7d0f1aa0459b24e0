"""What the connections of one user may cost the daemon, and that others are served."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from attrs import define, evolve
from time_limit import with_limit

from pympsd.channel.allowance import FRAME_SECONDS, UNREAD_SECONDS
from pympsd.service import listeners
from pympsd.service.processes.peers import credentials
from pympsd.service.sessions.client import MAX_VARIABLES
from pympsd.vocabulary.shares import Shares
from pympsd.wire import frames, messages
from pympsd.wire.messages import Versions

if TYPE_CHECKING:
    from tests.service.conftest import Caller, RunningDaemon

HOSTILE, HONEST = 10001, 10002
MIB = 1 << 20
HELLO = frames.encode(frames.OPERATOR_HELLO)
HALF_LINE = frames.encode(frames.OPERATOR_LINE, bytes(frames.MAX_BODY))[:-1]


@define
class Users:
    """Who connects, for the daemon under test: the user is the one who is set when a connection is accepted."""

    uid: int = HOSTILE


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Users:
    """Let connections be those of the hostile user."""
    connecting = Users()
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=connecting.uid))
    return connecting


@pytest.fixture
def share(daemon: RunningDaemon) -> Iterator[int]:
    """Let each user have 4 MiB of buffers."""
    daemon.dispatcher.state.usage.shares = Shares({"buffers": 4 * MIB})
    yield 4 * MIB
    assert daemon.dispatcher.budgets.buffers.held[HOSTILE] <= 4 * MIB


def make_closed_line(uid: int, reason: str) -> str:
    """Return the line of a connection that is closed."""
    return f"Closing a connection from user {uid}: {reason}"


async def send(caller: Caller, data: bytes) -> None:
    """Send all of it, or until the daemon closes the connection."""
    with suppress(OSError):
        await caller.send(data)
    await trio.testing.wait_all_tasks_blocked()


async def is_open(caller: Caller) -> bool:
    """Return whether the daemon has not closed a connection."""
    with trio.move_on_after(0.05):
        return await caller.receive() is not None
    return True


@with_limit
async def test_half_frames_of_one_user_end_at_the_share_and_others_are_served(
    daemon: RunningDaemon, users: Users, share: int
) -> None:
    hostile = [await daemon.connect() for _ in range(8)]
    for caller in hostile:
        await send(caller, HELLO + HALF_LINE)
    assert [await is_open(caller) for caller in hostile] == [True] * 3 + [False] * 5
    lines = [line for line in daemon.sentences() if line.startswith(make_closed_line(HOSTILE, ""))]
    assert len(lines) == 5
    # A further connection would have no room for a frame, and is not read at all.
    assert await (await daemon.connect()).receive() is None
    assert daemon.sentences()[-1].startswith(f"Refusing a connection: user {HOSTILE} has ")
    users.uid = HONEST
    operator = await daemon.operator()
    await operator.ask(bytes(3 * MIB // 4))


@with_limit
async def test_lines_about_closed_connections_are_limited(
    daemon: RunningDaemon, users: Users, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pympsd.service.user_budgets.LINES_PER_SECOND", 30)
    monkeypatch.setattr("trio.current_time", lambda: 1000.0)
    for _ in range(40):
        await send(await daemon.connect(), HELLO + HALF_LINE)
    assert len(daemon.sentences()) <= 30


@with_limit
async def test_a_frame_that_has_begun_has_a_deadline_and_a_connection_without_one_has_none(
    daemon: RunningDaemon, users: Users, autojump_clock: object
) -> None:
    idle = await daemon.operator()
    drips = await daemon.operator()
    await drips.send(HALF_LINE[:-100])
    began = trio.current_time()

    async with trio.open_nursery() as nursery:

        async def drip() -> None:
            while True:
                await trio.sleep(0.5)
                await drips.send(b"\0")

        nursery.start_soon(drip)
        assert await drips.receive() is None
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(FRAME_SECONDS, abs=0.1)
    assert daemon.sentences()[-1] == make_closed_line(HOSTILE, "the rest of a message did not arrive within 10 s")
    assert await idle.ask(b"get_server_list") == [(frames.OPERATOR_DONE, b"\0")]


@with_limit
async def test_a_file_without_its_command_has_a_deadline(
    daemon: RunningDaemon, users: Users, autojump_clock: object
) -> None:
    operator = await daemon.operator()
    await operator.send(frames.encode(frames.OPERATOR_FILE, b"x" * 1000))
    await trio.testing.wait_all_tasks_blocked()
    assert daemon.dispatcher.budgets.buffers.held[HOSTILE] == 1008
    assert await operator.receive() is None
    assert daemon.sentences()[-1] == make_closed_line(HOSTILE, "the rest of a message did not arrive within 10 s")
    assert daemon.dispatcher.budgets.buffers.held[HOSTILE] == 0


@with_limit
async def test_half_a_message_of_a_waiting_client_has_a_deadline(
    daemon: RunningDaemon, users: Users, autojump_clock: object
) -> None:
    client = await daemon.connect()
    await client.send(messages.encode(messages.ClientHello(Versions(), 1, "reported", 2, {})))
    await client.send(HALF_LINE[:50])
    assert await client.receive() is None
    assert daemon.sentences()[-1] == make_closed_line(HOSTILE, "the rest of a message did not arrive within 10 s")
    assert daemon.dispatcher.state.queue.entries == []


@with_limit
async def test_one_answer_waits_for_its_reader_and_only_for_a_time(
    daemon: RunningDaemon, users: Users, autojump_clock: object
) -> None:
    operator = await daemon.operator()
    line = frames.encode(frames.OPERATOR_LINE, b"x" * 60_000)
    began = trio.current_time()
    # Lines that follow stay in the operator's own socket: the send never ends.
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        await operator.send(1000 * line)
    assert trio.current_time() - began == pytest.approx(UNREAD_SECONDS)
    await trio.testing.wait_all_tasks_blocked()
    assert daemon.dispatcher.budgets.buffers.held[HOSTILE] == 0
    assert daemon.sentences()[-1] == make_closed_line(
        HOSTILE, "the data sent to this connection was not read within 30 s"
    )


@pytest.mark.long
@with_limit
async def test_answers_that_nobody_reads_come_out_of_the_share(
    daemon: RunningDaemon, users: Users, share: int
) -> None:
    hostile = [await daemon.operator() for _ in range(40)]
    for caller in hostile:
        plain = caller.sock
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # The answer repeats the line, and is complained about: each line is answered with twice its length.
        with suppress(OSError), trio.move_on_after(0.2):
            await caller.send(10 * frames.encode(frames.OPERATOR_LINE, b"x" * 60_000))
    assert 0 < daemon.dispatcher.budgets.buffers.held[HOSTILE] <= share
    users.uid = HONEST
    assert await daemon.still_answers()


@with_limit
async def test_the_hello_of_a_waiting_client_counts_while_it_waits(daemon: RunningDaemon, users: Users) -> None:
    hello = messages.encode(messages.ClientHello(Versions(), 1, "c", 2, {"CUDA_VISIBLE_DEVICES": "0" * 10_000}))
    client = await daemon.connect()
    await send(client, hello)
    assert daemon.dispatcher.budgets.buffers.held[HOSTILE] >= 6 * 10_000
    client.sock.shutdown(socket.SHUT_WR)
    assert await client.receive() is None
    assert daemon.dispatcher.budgets.buffers.held[HOSTILE] == 0


@with_limit
async def test_a_hello_with_too_many_variables_is_refused(daemon: RunningDaemon, users: Users) -> None:
    environment = {f"CUDA_MPS_{number}": "" for number in range(MAX_VARIABLES + 1)}
    client = await daemon.connect()
    await client.send(messages.encode(messages.ClientHello(Versions(), 1, "c", 2, environment)))
    reason = "the client's environment has 257 variables for MPS; at most 256 are allowed"
    assert await client.message() == messages.Refused(805, reason)
    assert daemon.sentences()[-1] == f"Refusing client {os.getpid()} from user {HOSTILE}: {reason}"


@with_limit
async def test_connections_to_several_sockets_count_together(daemon: RunningDaemon, users: Users) -> None:
    daemon.dispatcher.state.usage.shares = Shares({"connections": 1})
    await daemon.go_on_with()
    await (await daemon.operator()).ask(b"get_server_list")
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with sock:
        await sock.connect(f"{daemon.path}.next")
        assert await sock.recv(1) == b""
