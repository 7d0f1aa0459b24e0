"""The listener with real sockets: callers of every kind, and it continues to answer."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from attrs import define, evolve
from time_limit import with_limit

from pympsd.service import listeners, user_budgets
from pympsd.service.processes.peers import credentials
from pympsd.service.sessions import conversation
from pympsd.takeover.keeper.link import KeeperLink
from pympsd.vocabulary.shares import Shares
from pympsd.wire import frames, messages
from pympsd.wire.framing import Frame
from pympsd.wire.link_messages import ServerReturn, ShutDown
from pympsd.wire.messages import Versions
from tests.service.conftest import Caller

if TYPE_CHECKING:
    from tests.service.conftest import RunningDaemon

OUT_OF_DESCRIPTORS = (
    "Refusing a connection: Too many open files: "
    "raise the limit of open file descriptors to 16384 or more (ulimit -n)"
)
UNREADABLE = "Unable to read new connection type information"
HELLO = messages.ClientHello(Versions(), 1, "reported", 2, {})


@with_limit
async def test_an_operator_is_answered_and_logged(daemon: RunningDaemon) -> None:
    operator = await daemon.operator()
    assert await operator.ask(b"ps") == [
        (frames.OPERATOR_STDOUT, b"Server not found\n"),
        (frames.OPERATOR_DONE, b"\1"),
    ]
    kinds = [kind for kind, _ in await operator.ask(b"foo \xff")]
    assert kinds == [frames.OPERATOR_STDOUT, frames.OPERATOR_STDERR, frames.OPERATOR_DONE]
    operator.sock.shutdown(socket.SHUT_WR)
    assert await operator.receive() is None
    assert daemon.sentences() == [
        "Accepting connection...",
        "NEW UI",
        "Cmd:ps",
        "Server not found",
        "Cmd:foo \udcff",
        'Unknown command "foo"',
        "UI closed",
    ]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100,
        b"\0" * 8,
        frames.encode(999, b"x"),
        frames.encode(frames.OPERATOR_LINE, b"ps"),
        frames.encode(frames.OPERATOR_HELLO, b"", 1),
        frames.encode(frames.FIRST_MESSAGE_KIND, b"\xc1"),
        frames.encode(frames.FIRST_MESSAGE_KIND, b"\x81\xa1x" + b"\x91" * 500_000),
        messages.encode(ShutDown(True)),
        messages.encode(ServerReturn(Versions(), os.getpid(), "ACTIVE", False, 0)),
        (frames.MAX_BODY + 1).to_bytes(4, "little") + bytes(4),
    ],
    ids=[
        "http", "ones", "zeros", "unknown", "no hello", "fds", "no body", "nested", "not for a client",
        "a server", "too long",
    ],
)  # fmt: skip
@with_limit
async def test_garbage_is_logged_and_closed(daemon: RunningDaemon, garbage: bytes) -> None:
    caller = await daemon.connect()
    await caller.send(garbage)
    assert await caller.receive() is None
    assert daemon.sentences() == ["Accepting connection...", UNREADABLE]
    assert await daemon.still_answers()


@with_limit
async def test_half_a_frame_then_disconnect(daemon: RunningDaemon) -> None:
    caller = await daemon.connect()
    await caller.send(frames.encode(frames.OPERATOR_HELLO)[:5])
    caller.sock.shutdown(socket.SHUT_WR)
    assert await caller.receive() is None
    assert daemon.sentences()[-1] == UNREADABLE
    assert await daemon.still_answers()


@with_limit
async def test_a_connection_closed_without_a_hello_is_not_an_error(daemon: RunningDaemon) -> None:
    caller = await daemon.connect()
    caller.sock.shutdown(socket.SHUT_WR)
    assert await caller.receive() is None
    assert daemon.sentences() == ["Accepting connection..."]


@with_limit
async def test_a_silent_connection_is_closed_at_the_deadline(daemon: RunningDaemon, autojump_clock: object) -> None:
    caller = await daemon.connect()
    await caller.send(b"\1")
    assert await caller.receive() is None
    assert daemon.sentences()[-1] == UNREADABLE


@with_limit
async def test_silent_callers_do_not_block_others(daemon: RunningDaemon, autojump_clock: object) -> None:
    for _ in range(200):
        await daemon.connect()
    with trio.fail_after(5):
        assert await daemon.still_answers()
    assert daemon.sentences().count("Accepting connection...") == 201


@with_limit
async def test_200_simultaneous_operators_are_all_answered(daemon: RunningDaemon) -> None:
    answers = []

    async def ask() -> None:
        operator = await daemon.operator()
        answers.append(await operator.ask(b"get_server_status 7"))

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(ask)
    assert answers == [[(frames.OPERATOR_STDOUT, b"Server 7 not found\n"), (frames.OPERATOR_DONE, b"\1")]] * 200


@define(eq=False, kw_only=True)
class CountingKeeper(KeeperLink):
    """Accepts when everything has been requested, as a keeper on a busy machine; counts pending requests."""

    listening: socket.socket
    pending: int = 0
    most_pending: int = 0

    async def accept(self, listener: str, name: str, greeting: bytes, late: Callable[[int], None]) -> int:
        """Accept a connection; return its descriptor, or -1 if there was none."""
        self.pending += 1
        self.most_pending = max(self.most_pending, self.pending)
        await trio.testing.wait_all_tasks_blocked()
        self.pending -= 1
        try:
            sock, _ = self.listening.accept()
        except BlockingIOError:
            return -1
        return sock.detach()


@with_limit
async def test_a_long_queue_is_accepted_several_at_a_time_and_a_short_one_is_not(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "kept")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(100)
        listening.setblocking(False)
        callers = []
        for _ in range(100):
            callers.append(Caller(trio.socket.socket(socket.AF_UNIX)))
            await callers[-1].sock.connect(path)
            await callers[-1].send(frames.encode(frames.OPERATOR_HELLO))
        keeper = CountingKeeper(daemon.dispatcher.keeper.directory, daemon.dispatcher.log, listening=listening)
        monkeypatch.setattr(daemon.dispatcher, "keeper", keeper)
        converse = conversation.OwnConversation(daemon.dispatcher, True).run
        listener = trio.socket.from_stdlib_socket(listening.dup())
        daemon.dispatcher.nursery.start_soon(listeners.Listener(daemon.dispatcher, "kept", listener, converse).run)
        for caller in callers:
            assert (await caller.ask(b"get_server_list"))[-1][0] == frames.OPERATOR_DONE
            caller.sock.close()
        assert 1 < keeper.most_pending <= listeners.MAX_AT_A_TIME
        keeper.most_pending = 0
        late = Caller(trio.socket.socket(socket.AF_UNIX))
        await late.sock.connect(path)
        await late.send(frames.encode(frames.OPERATOR_HELLO))
        assert (await late.ask(b"get_server_list"))[-1][0] == frames.OPERATOR_DONE
        assert keeper.most_pending == 1
        late.sock.close()


@with_limit
async def test_a_users_connections_over_the_share_are_refused_until_one_closes(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=10001))
    daemon.dispatcher.state.usage.shares = Shares({"connections": 1})
    operator = await daemon.operator()
    await operator.ask(b"get_server_list")
    assert await (await daemon.connect()).receive() is None
    assert daemon.sentences()[-1] == (
        "Refusing a connection: user 10001 has 1 of at most 1 connections: ask an administrator for a larger share "
        "(--user-share connections=2, or connections in [shares] of the configuration file)"
    )
    shown = await operator.ask(b"share list --uid=10001 --format=csv,noheader")
    assert shown[0][1].splitlines()[0] == b"10001,connections,1,1,1"
    operator.sock.shutdown(socket.SHUT_WR)
    assert await operator.receive() is None
    assert await daemon.still_answers()


@with_limit
async def test_users_together_leave_connections_for_the_daemons_own_user(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = iter((10001, 10002, 10003, *3 * (os.geteuid(),)))
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=next(uids)))
    daemon.dispatcher.state.usage.shares = Shares(
        descriptors=28
    )  # everybody may have 7 connections, and users 6 of them
    daemon.dispatcher.state.usage.taken["connections"][10000] = 3
    for _ in range(2):
        operator = await daemon.operator()
        await operator.ask(b"get_server_list")
    assert await (await daemon.connect()).receive() is None
    assert daemon.sentences()[-1].startswith(
        "Refusing a connection: user 10003 has 0 connections, and 1 more would leave others less than that"
    )
    assert await daemon.still_answers()
    assert await daemon.still_answers()
    assert await (await daemon.connect()).receive() is None
    assert daemon.sentences()[-1].startswith(
        "Refusing a connection: everybody together has 7 of at most 7 connections; an administrator can start the "
    )


@with_limit
async def test_a_user_cannot_fill_the_log(daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=10001))
    monkeypatch.setattr(user_budgets, "LINES_PER_SECOND", 30)
    now = 1000.0
    monkeypatch.setattr("trio.current_time", lambda: now)
    operator = await daemon.operator()
    for _ in range(50):
        # Still answered: two log lines each, the second a long one.
        kinds = [kind for kind, _ in await operator.ask(b"x" * 300)]
        assert kinds == [frames.OPERATOR_STDOUT, frames.OPERATOR_STDERR, frames.OPERATOR_DONE]
    for garbage in [frames.encode(999)] * 5:
        caller = await daemon.connect()
        await caller.send(garbage)
        assert await caller.receive() is None
    lines = daemon.sentences()
    assert lines[:2] == ["Accepting connection...", "NEW UI"]
    assert (len(lines), lines.count("Cmd:" + 300 * "x")) == (16, 7)
    now += 2
    await (await daemon.operator()).ask(b"get_server_list")
    assert daemon.sentences()[16:18] == [
        "Dropped 96 log lines caused by user 10001: too many in a short time",
        "Accepting connection...",
    ]


@with_limit
async def test_descriptors_sent_by_a_caller_are_closed(daemon: RunningDaemon) -> None:
    caller = await daemon.connect()
    reader, writer = os.pipe()
    with socket.socket(fileno=os.dup(caller.sock.fileno())) as plain:
        socket.send_fds(plain, [frames.encode(frames.OPERATOR_HELLO)], [writer] * 100)
    os.close(writer)
    assert (await caller.ask(b"get_server_list"))[-1] == (frames.OPERATOR_DONE, b"\0")
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize("bad", [frames.encode(999), b"\xff" * 8, frames.encode(frames.OPERATOR_LINE, b"x", 1)])
@with_limit
async def test_an_operator_that_violates_the_protocol_is_disconnected(daemon: RunningDaemon, bad: bytes) -> None:
    operator = await daemon.operator()
    await operator.ask(b"get_server_list")
    await operator.send(bad)
    assert await operator.receive() is None
    assert daemon.dispatcher.sessions.operators == {}
    assert daemon.sentences()[-2:] == ["UI closed", UNREADABLE]
    assert await daemon.still_answers()


@with_limit
async def test_an_operators_line_of_any_length_is_answered(daemon: RunningDaemon) -> None:
    operator = await daemon.operator()
    answer = await operator.ask(b"x" * frames.MAX_BODY)
    assert [kind for kind, _ in answer] == [frames.OPERATOR_STDOUT, frames.OPERATOR_STDERR, frames.OPERATOR_DONE]
    assert await daemon.still_answers()


@pytest.mark.long
@with_limit
async def test_an_operator_that_does_not_read_does_not_block_others(daemon: RunningDaemon) -> None:
    operator = await daemon.operator()
    lines = frames.encode(frames.OPERATOR_LINE, b"x" * 60_000) * 1000
    # One line is read per answer, and the queue of answers is bounded: at its limit the operator is cut off.
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        await operator.send(lines)
    assert await daemon.still_answers()


@with_limit
async def test_a_waiting_client_is_identified_by_the_kernel(daemon: RunningDaemon) -> None:
    caller = await daemon.connect()
    await caller.send(messages.encode(HELLO))
    await trio.testing.wait_all_tasks_blocked(0.01)
    while not daemon.spawned:
        await trio.lowlevel.checkpoint()
    (spawn,) = daemon.spawned
    assert spawn.peer is not None
    assert (spawn.uid, spawn.peer.pid) == (os.geteuid(), os.getpid())
    (waiting,) = daemon.dispatcher.state.queue
    assert waiting.process is not None
    assert waiting.process.command.startswith(Path("/proc/self/cmdline").read_bytes().partition(b"\0")[0].decode())
    assert daemon.sentences()[-1].endswith("Server is not ready, push client to pending list")


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, frames.encode(999), messages.encode(HELLO)])
@with_limit
async def test_a_waiting_client_that_disconnects_or_sends_is_removed(daemon: RunningDaemon, data: bytes) -> None:
    caller = await daemon.connect()
    await caller.send(messages.encode(HELLO))
    while not daemon.dispatcher.state.queue:
        await trio.lowlevel.checkpoint()
    await caller.send(data)
    caller.sock.shutdown(socket.SHUT_WR)
    assert await caller.receive() is None
    assert daemon.dispatcher.state.queue.entries == []
    assert daemon.dispatcher.sessions.clients == {}
    assert await daemon.still_answers()


@with_limit
async def test_a_client_of_another_version_is_refused_with_both_versions(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    caller = await daemon.connect()
    await caller.send(messages.encode(messages.ClientHello(Versions(7, 9), 1, "c", 2, {})))
    frame = await caller.receive()
    assert isinstance(frame, Frame)
    refused = messages.decode(frame)
    reason = f"this client speaks versions 7 to 9, the daemon {messages.OLDEST} to {messages.NEWEST}"
    assert refused == messages.Refused(805, reason)
    logged = (tmp_path / "control.log").read_text()
    assert f"Refusing client {os.getpid()} from user {os.getuid()}: {reason}\n" in logged
    assert await caller.receive() is None


@contextlib.contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Let this process open no further descriptor."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), [os.open(os.devnull, os.O_RDONLY)]
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(taken[0]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)


@with_limit
async def test_a_caller_is_refused_without_descriptors_and_the_listener_continues(daemon: RunningDaemon) -> None:
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with sock, no_more_descriptors():
        await sock.connect(daemon.path)
        assert await sock.recv(1) == b""
    assert daemon.sentences()[-1] == OUT_OF_DESCRIPTORS
    assert await daemon.still_answers()


@with_limit
async def test_a_conversation_without_descriptors_is_refused_and_the_listener_continues(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(conversation, "MessageChannel", no_more)
        assert await (await daemon.connect()).receive() is None
    assert daemon.sentences()[-1] == OUT_OF_DESCRIPTORS
    assert await daemon.still_answers()
