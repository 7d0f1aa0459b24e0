"""What an earlier daemon left with its keeper: the next one continues with it, or has it dropped."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve, frozen
from processes import SECONDS, adopt_orphans, wait_until
from time_limit import with_limit

import pympsd
from pympsd.service import listeners
from pympsd.service.files.pipe_directory import PipeDirectory
from pympsd.service.processes.peers import credentials
from pympsd.service.sessions.server import ServerSession
from pympsd.takeover.keeper import packets as packets
from pympsd.takeover.keeper.entries import KeptEntries, file_note
from pympsd.takeover.keeper.link import KeeperLink
from pympsd.takeover.keeper.process import Entry
from pympsd.takeover.state.entries import FIFO, ClientNote, KeptFd, connection_name, link_name, listener_name
from pympsd.vocabulary import files
from pympsd.vocabulary.shares import Shares
from pympsd.wire import frames, messages
from pympsd.wire.framing import FrameReader
from pympsd.wire.messages import Versions
from tests.service.conftest import Caller, RunningDaemon

HELLO = messages.encode(messages.ClientHello(Versions(), 1, "reported", 2, {}))
NAME = connection_name(7, "control")
CLIENT_PROGRAM = """
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(bytes.fromhex(sys.argv[2]))
print(flush=True)
answer = b""
while data := client.recv(65536):
    answer += data
print(answer.hex(), flush=True)
"""


@frozen
class EarlierDaemon:
    """A daemon that has nothing but a real keeper."""

    folder: Path
    link: socket.socket

    def hold(self, name: str, fd: int, note: bytes = b"") -> None:
        """Have a descriptor held; it stays the caller's."""
        socket.send_fds(self.link, [packets.encode(packets.HOLD, name, note)], [fd])

    def die(self) -> None:
        """End without a word."""
        self.link.close()

    def left(self) -> dict[str, bytes]:
        """Return the names and notes of what the keeper holds by now, as a later daemon would be given them."""
        entries = {}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as later:
            later.settimeout(SECONDS)
            later.connect(str(self.folder / files.KEEPER))
            while True:
                packet, fds, _, _ = socket.recv_fds(later, packets.PACKET_BYTES, 1)
                kind, name, note = packets.decode(packet)
                for fd in fds:
                    os.close(fd)
                if kind == packets.COMPLETE:
                    return entries
                entries[name] = note


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[EarlierDaemon]:
    """A daemon with a keeper that holds nothing."""
    folder = tmp_path / "pipe"
    folder.mkdir()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / files.KEEPER))
    listener.listen()
    own_end, peer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    main = str(Path(pympsd.__file__).parent / "takeover" / "keeper" / "program.py")
    with listener, peer_end:
        fds = (listener.fileno(), peer_end.fileno())
        process = subprocess.Popen([sys.executable, "-I", "-S", main, *map(str, fds), "60"], pass_fds=fds)
    with process, own_end:
        yield EarlierDaemon(folder, own_end)
        process.kill()


@contextlib.asynccontextmanager
async def next_daemon(daemon: RunningDaemon, earlier: EarlierDaemon) -> AsyncIterator[KeptEntries]:
    """Let the earlier daemon die, and the next one have what it left, and its keeper."""
    earlier.die()
    directory = PipeDirectory.claim(str(earlier.folder))
    fetched = await KeeperLink.fetch(directory, daemon.dispatcher.log)
    assert fetched is not None
    keeper, held = fetched
    daemon.dispatcher.keeper = keeper
    daemon.dispatcher.nursery.start_soon(keeper.run)
    kept = KeptEntries.of(keeper, held)
    try:
        yield kept
    finally:
        kept.close()
        directory.release()


async def go_on(daemon: RunningDaemon, kept: KeptEntries) -> None:
    """Serve the connections that are left."""
    connections, kept.connections = kept.connections, []
    await daemon.go_on_with(*connections, keeper=kept.keeper)


@contextlib.contextmanager
def connect_process(folder: Path, sends: bytes) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A process that has connected to a daemon and sent something; yield it and the daemon's end."""
    path = str(folder / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(SECONDS)
        words = [sys.executable, "-I", "-S", "-c", CLIENT_PROGRAM, path, sends.hex()]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            ours, _ = listener.accept()
            try:
                assert read_line(process) == ""
                with ours:
                    yield process, ours
            finally:
                process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], SECONDS)
    assert readable, "it says nothing"
    return process.stdout.readline().rstrip("\n")


def caller(daemon: RunningDaemon) -> tuple[Caller, socket.socket]:
    """Return a connection to an earlier daemon, and that daemon's end."""
    own_end, peer_end = socket.socketpair()
    daemon.callers.append(Caller(trio.socket.from_stdlib_socket(own_end)))
    return daemon.callers[-1], peer_end


# --- connections


@with_limit
@pytest.mark.parametrize("noted", [True, False], ids=["its hello was received", "its hello is in the socket"])
async def test_a_client_that_waits_is_served_by_the_next_daemon(
    daemon: RunningDaemon, earlier: EarlierDaemon, tmp_path: Path, noted: bool
) -> None:
    with connect_process(tmp_path, b"" if noted else HELLO) as (process, ours):
        earlier.hold(NAME, ours.fileno(), HELLO if noted else b"")
        ours.close()
        async with next_daemon(daemon, earlier) as kept:
            await go_on(daemon, kept)
            while not daemon.dispatcher.state.queue:
                await trio.lowlevel.checkpoint()
            ((id_, session),) = daemon.dispatcher.sessions.clients.items()
            assert (session.peer.pid, session.peer.uid) == (process.pid, os.geteuid())
            assert daemon.dispatcher.state.queue.entries[0].process.command.startswith(sys.executable), (
                "of that process"
            )
            assert "Accepting connection..." not in daemon.sentences(), "the earlier daemon has"
            daemon.dispatcher._refuse(id_, 805, "a reason")
            answer = await trio.to_thread.run_sync(read_line, process)
            (frame,) = FrameReader().feed(bytes.fromhex(answer))
            assert messages.decode(frame) == messages.Refused(805, "a reason")
            await trio.testing.wait_all_tasks_blocked()
            assert earlier.left() == {}


@with_limit
@pytest.mark.parametrize("noted", [True, False], ids=["its hello was received", "its hello is in the socket"])
async def test_a_client_that_still_waits_is_held_under_its_name_with_its_hello(
    daemon: RunningDaemon, earlier: EarlierDaemon, noted: bool
) -> None:
    client, ours = caller(daemon)
    if not noted:
        await client.send(HELLO)
    earlier.hold(NAME, ours.fileno(), HELLO if noted else b"")
    ours.close()
    async with next_daemon(daemon, earlier) as kept:
        await go_on(daemon, kept)
        while not daemon.dispatcher.state.queue:
            await trio.lowlevel.checkpoint()
        assert earlier.left() == {NAME: HELLO}


@with_limit
async def test_a_client_that_left_before_the_next_daemon_came_is_forgotten(
    daemon: RunningDaemon, earlier: EarlierDaemon
) -> None:
    client, ours = caller(daemon)
    await client.send(HELLO)
    earlier.hold(NAME, ours.fileno())
    ours.close()
    client.sock.close()
    async with next_daemon(daemon, earlier) as kept:
        await go_on(daemon, kept)
        await trio.testing.wait_all_tasks_blocked()
        assert daemon.dispatcher.sessions.clients == {}
        assert daemon.dispatcher.state.queue.entries == []
        assert earlier.left() == {}


@with_limit
async def test_an_operator_is_answered_by_the_next_daemon_and_dropped_from_the_keeper(
    daemon: RunningDaemon, earlier: EarlierDaemon
) -> None:
    operator, ours = caller(daemon)
    await operator.send(frames.encode(frames.OPERATOR_HELLO))
    earlier.hold(NAME, ours.fileno())
    ours.close()
    async with next_daemon(daemon, earlier) as kept:
        await go_on(daemon, kept)
        assert await operator.ask(b"get_server_list") == [(frames.OPERATOR_DONE, b"\0")]
        # What it was answered, and was not, only this daemon knows: the next one could not continue with it.
        assert earlier.left() == {}


@with_limit
async def test_an_earlier_connection_that_is_refused_sees_its_end(
    daemon: RunningDaemon, earlier: EarlierDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=10001))
    daemon.dispatcher.state.usage.shares = Shares({"connections": 0})
    client, ours = caller(daemon)
    earlier.hold(NAME, ours.fileno(), HELLO)
    ours.close()
    async with next_daemon(daemon, earlier) as kept:
        await go_on(daemon, kept)
        assert await client.receive() is None, "the keeper has no copy either"
        assert daemon.sentences()[-1].startswith("Refusing a connection: ")


@with_limit
async def test_a_client_whose_hello_is_too_long_for_a_note_is_not_held(
    daemon: RunningDaemon, earlier: EarlierDaemon
) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0" * packets.NOTE_BYTES}
    client, ours = caller(daemon)
    earlier.hold(NAME, ours.fileno())
    ours.close()
    async with next_daemon(daemon, earlier) as kept:
        await go_on(daemon, kept)
        await client.send(messages.encode(messages.ClientHello(Versions(), 1, "reported", 2, environment)))
        while not daemon.dispatcher.state.queue:
            await trio.lowlevel.checkpoint()
        # Without its hello, which is out of the socket, no later daemon could continue with it.
        assert earlier.left() == {}


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ([], 1),
        (["connection 3 control", "connection 12 control_privileged"], 13),
        ([f"connection {2 << 40} control"], (2 << 40) + 1),
    ],
)
def test_no_new_connection_has_the_name_of_an_earlier_one(names: list[str], first: int) -> None:
    kept_entries = KeptEntries(connections=[KeptFd(name, -1, b"") for name in names])
    assert kept_entries.next_connection() == first


def test_each_listening_socket_continues_with_its_own_connections() -> None:
    names = [connection_name(3, "control"), connection_name(4, "control_privileged"), connection_name(5, "control")]
    kept_entries = KeptEntries(connections=[KeptFd(name, -1, b"") for name in names])
    assert [entry.name for entry in kept_entries.take_connections("control")] == [names[0], names[2]]
    assert [entry.name for entry in kept_entries.take_connections("pympsd.control")] == []
    assert [entry.name for entry in kept_entries.take_connections("control_privileged")] == [names[1]]
    assert kept_entries.connections == []


def test_a_killed_daemons_connections_and_those_of_the_next_are_held_side_by_side(tmp_path: Path) -> None:
    adopt_orphans()
    folder = tmp_path / "pipe"
    folder.mkdir()
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}
    environment = {**variables, "PYMPSD_EMULATED_DEVICES": "H200"}
    program = (
        "from pympsd.cli.daemonize import start_daemon; from pympsd.cli.options import Options; "
        "start_daemon(Options(['-f']))"
    )
    with contextlib.ExitStack() as opened:
        for _ in range(2):
            daemon = opened.enter_context(
                subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.DEVNULL)
            )
            opened.callback(daemon.kill)
            wait_until((folder / files.CONTROL).exists, "the daemon's socket")
            silent = opened.enter_context(socket.socket(socket.AF_UNIX))
            wait_until(lambda silent=silent: silent.connect_ex(str(folder / files.CONTROL)) == 0, "the daemon")
            with socket.socket(socket.AF_UNIX) as operator:
                operator.settimeout(SECONDS)
                operator.connect(str(folder / files.CONTROL))
                line = frames.encode(frames.OPERATOR_LINE, b"get_server_list")
                operator.sendall(frames.encode(frames.OPERATOR_HELLO) + line)
                assert operator.recv(100) == frames.encode(frames.OPERATOR_DONE, b"\0"), "it accepted the other too"
            daemon.kill()
            daemon.wait()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as unused:
            connections = {name for name in EarlierDaemon(folder, unused).left() if name.startswith("connection ")}
        assert len(connections) == 2
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(str(folder / files.KEEPER))
            link.send(packets.encode(packets.END))
    adopt_orphans(False)


# --- held while a block runs


@with_limit
@pytest.mark.parametrize(
    ("end", "is_held"), [("in order", False), ("by an exception", False), ("by the end of the daemon", True)]
)
async def test_a_descriptor_is_held_during_a_block(
    daemon: RunningDaemon, earlier: EarlierDaemon, end: str, is_held: bool
) -> None:
    async with next_daemon(daemon, earlier) as kept:
        assert kept == KeptEntries(daemon.dispatcher.keeper)
        with (
            socket.socket() as sock,
            trio.CancelScope() as scope,
            contextlib.suppress(KeyError),
            daemon.dispatcher.keeper.hold_during("some name", sock.fileno(), b"its note"),
        ):
            if end == "by an exception":
                raise KeyError
            if end == "by the end of the daemon":
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert earlier.left() == ({"some name": b"its note"} if is_held else {})


# --- what the names mean


def descriptors(count: int) -> list[int]:
    """Return new descriptors."""
    return [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]


def is_open(fd: int) -> bool:
    """Return whether a descriptor is open."""
    return os.path.exists(f"/proc/self/fd/{fd}")


CLIENT_NOTE = b'{"server":1,"pid":4105,"uid":0,"command":"train","namespace":9}'
LEFT = {
    listener_name("control"): b"1 2",
    FIFO: b"",
    link_name(1): b"",
    "client 5": CLIENT_NOTE,
    "newcomer 6": b"1",
    NAME: HELLO,
}
UNKNOWN = {
    "server x": b"",
    "client 6": b"{}",
    "client y": CLIENT_NOTE,
    "newcomer 8": b"\xff",
    "": b"",
    "something": b"",
}


@with_limit
async def test_kept_entries_are_sorted_by_name_and_closed_unless_taken(
    daemon: RunningDaemon, earlier: EarlierDaemon
) -> None:
    fds = descriptors(len(LEFT) + len(UNKNOWN))
    for (name, note), fd in zip({**LEFT, **UNKNOWN}.items(), fds, strict=True):
        earlier.hold(name, fd, note)
        os.close(fd)
    async with next_daemon(daemon, earlier) as kept:
        assert {file: listener.note for file, listener in kept.listeners.items()} == {"control": b"1 2"}
        assert list(kept.links) == [1]
        assert {id_: client.note for id_, client in kept.clients.items()} == {5: ClientNote(1, 4105, 0, "train", 9)}
        assert [(new_client.name, new_client.note) for new_client in kept.new_clients] == [("newcomer 6", 1)]
        (connection,) = kept.connections
        assert (connection.name, connection.note) == (NAME, HELLO)
        taken = kept.links.pop(1)
        mine = [kept.fifo, connection.fd, kept.clients[5].fd, kept.new_clients[0].fd, kept.listeners["control"].fd]
        assert all(map(is_open, mine))
        kept.close()
        assert not any(map(is_open, mine))
        assert is_open(taken)
        assert kept == KeptEntries(kept.keeper)
        assert earlier.left() == {link_name(1): b""}
        os.close(taken)


# --- files


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[tuple[str, KeptEntries]]:
    """The path of an earlier daemon's listening socket, and what it left."""
    path = str(tmp_path / "control")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        note = file_note(path)
        kept_entries = KeptEntries(listeners={"control": KeptFd("listener control", os.dup(listener.fileno()), note)})
    yield path, kept_entries
    kept_entries.close()


def test_a_listening_socket_is_taken_once(bound: tuple[str, KeptEntries]) -> None:
    path, kept = bound
    assert kept.take_listener("control_privileged", path, socket.SOCK_SEQPACKET) is None
    listener = kept.take_listener("control", path, socket.SOCK_SEQPACKET)
    assert listener is not None
    assert listener.getsockname() == path
    listener.close()
    assert kept.take_listener("control", path, socket.SOCK_SEQPACKET) is None


@pytest.mark.parametrize("change", ["removed", "replaced", "another kind", "no note"])
def test_a_listening_socket_that_nobody_would_reach_is_closed(bound: tuple[str, KeptEntries], change: str) -> None:
    path, kept = bound
    kind = socket.SOCK_STREAM if change == "another kind" else socket.SOCK_SEQPACKET
    fd = kept.listeners["control"].fd
    if change == "no note":
        kept.listeners["control"] = evolve(kept.listeners["control"], note=b"")
    if change in ("removed", "replaced", "no note"):
        os.unlink(path)
    other = socket.socket(socket.AF_UNIX, kind)
    if change == "replaced":
        other.bind(path)
    with other:
        assert kept.take_listener("control", path, kind) is None
        assert not is_open(fd)


def test_a_file_that_is_not_there_has_no_note(tmp_path: Path) -> None:
    assert file_note(str(tmp_path / "control")) == b""


@pytest.mark.parametrize("change", ["", "removed", "replaced"])
def test_a_log_fifo_is_taken_unless_it_was_replaced(tmp_path: Path, change: str) -> None:
    path = str(tmp_path / "log")
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    if change:
        os.unlink(path)
    if change == "replaced":
        os.mkfifo(path)
    kept_entries = KeptEntries(fifo=fd)
    assert kept_entries.take_fifo(path) == (-1 if change else fd)
    assert is_open(fd) is not bool(change)
    assert kept_entries.take_fifo(path) == -1
    if not change:
        assert not os.get_blocking(fd)
        os.close(fd)


# --- internal errors


@with_limit
async def test_an_internal_error_is_reported_to_the_operator_and_the_daemon_continues(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(only_if_lost: bool) -> None:
        raise RuntimeError("not foreseen")

    operator = await daemon.operator()
    with monkeypatch.context() as patched:
        patched.setattr(daemon.dispatcher, "save", fail)
        answer = await operator.ask(b"set_default_active_thread_percentage 50")
    diagnostic = b"the daemon met an internal error: RuntimeError('not foreseen'); control.log has it too\n"
    assert answer == [(frames.OPERATOR_STDERR, diagnostic), (frames.OPERATOR_DONE, b"\1")]
    assert "not foreseen" in daemon.sentences()[-1]
    assert await operator.ask(b"get_server_list") == [(frames.OPERATOR_DONE, b"\0")]


@with_limit
async def test_after_an_internal_error_an_answered_operator_is_not_answered_again(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(ServerSession):
        def note_waiting(self) -> None:
            raise RuntimeError("not foreseen")

    await (await daemon.connect()).send(HELLO)
    await trio.testing.wait_all_tasks_blocked()
    assert daemon.dispatcher.state.queue
    daemon.dispatcher.sessions.servers[99] = Failing(99, 0, 847, lambda: None)
    operator = await daemon.operator()
    for line, output in ((b"get_server_status 7", b"Server 7 not found\n"), (b"ps", b"Server not found\n")):
        assert await operator.ask(line) == [(frames.OPERATOR_STDOUT, output), (frames.OPERATOR_DONE, b"\1")]
        assert "not foreseen" in daemon.sentences()[-1]
    del daemon.dispatcher.sessions.servers[99]


def test_a_client_continues_with_an_offered_connection_whose_ends_both_exist() -> None:
    """An earlier daemon may have been killed between any two of its packets to the keeper."""
    names = ["newcomer 1", "offer 1", "newcomer 2", "offer 3", "newcomer 4", "offer 4"]
    notes = {"newcomer 4": b"9"}
    names += [f"connection {id_} control" for id_ in range(1, 5)]
    fds = dict(zip(names, descriptors(len(names)), strict=True))
    kept = KeptEntries.of(None, {name: Entry(notes.get(name, b""), fd) for name, fd in fds.items()})
    # A server that may have the end that is still on offer is freed from it, too, if the client does not answer.
    ((name, end),) = kept.take_new_clients(9)
    assert (name, os.path.sameopenfile(end, fds["newcomer 4"]), end == fds["newcomer 4"]) == (
        "newcomer 4",
        True,
        False,
    )
    assert [entry.offered for entry in kept.take_connections("control")] == [
        (fds["offer 1"], fds["newcomer 1"]),
        None,
        None,
        (fds["offer 4"], fds["newcomer 4"]),
    ]
    assert kept.next_connection() == 4, "no name is used that is in use"
    kept.close()
    assert [is_open(fds[name]) for name in ("newcomer 2", "offer 3")] == [False, False]
    for name in ("newcomer 1", "offer 1", "newcomer 4", "offer 4", *names[6:]):
        os.close(fds[name])
    os.close(end)
