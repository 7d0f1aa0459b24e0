"""The keeper: real daemons that are killed, and what the next one is given."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
from attrs import define, field
from processes import SECONDS, adopt_orphans, alive, children_of, kill_after, suspend, wait_until

from pympsd.service.files.pipe_directory import PipeDirectory
from pympsd.takeover.keeper import packets as packets
from pympsd.takeover.keeper.link import KeeperLink
from pympsd.takeover.keeper.process import Entry
from pympsd.vocabulary import files

PROGRAM = str(Path(__file__).parents[1] / "support" / "keeping_daemon.py")
OTHER_USER = 10002
SHORT = 0.05
"""A waiting time that tests wait out."""
OWN_DESCRIPTORS = 5
"""A keeper's own: standard streams, the listening socket, and the link if there is a daemon."""
WATCHING_DESCRIPTORS = 2
"""Those by which it sees that files are removed, while there is no daemon."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")


@define
class Log:
    """Collects events."""

    events: list[str] = field(factory=list)

    def error(self, event: str, **_: object) -> None:
        """Collect an event."""
        self.events.append(event)


@define
class Daemon:
    """A running keeping_daemon.py, and what it was given when it started."""

    process: subprocess.Popen[str]
    given: list[list[str]]

    def call(self, verb: str, name: str = "", text: str = "") -> str:
        """Have it do one thing; return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{verb}/{name}/{text}\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        assert readable, "the daemon says nothing"
        return self.process.stdout.readline().rstrip("\n")

    def event(self) -> str:
        """Return the next line that it logs."""
        assert self.process.stderr is not None
        readable, _, _ = select.select([self.process.stderr], [], [], SECONDS)
        assert readable, "the daemon logs nothing"
        return self.process.stderr.readline()

    def keeper(self) -> int:
        """Return the PID of its keeper."""
        wait_until(lambda: self._keepers(), "the start of a keeper")
        return self._keepers()[0]

    def _keepers(self) -> list[int]:
        return [pid for pid in children_of(self.process.pid) if alive(pid) and _comm(pid) == "pympsd-keeper"]

    def kill(self) -> None:
        """Kill it with -9."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill it, and close its pipes."""
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _open_inodes(pid: int) -> set[int]:
    inodes = set()
    with contextlib.suppress(OSError):  # a descriptor, or the process, has gone meanwhile
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            inodes.add(descriptor.stat().st_ino)
    return inodes


def _comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    return ""


@define
class Daemons:
    """Starts daemons, one after another, in one pipe directory."""

    folder: Path
    started: list[Daemon] = field(factory=list)

    def start(
        self, waiting: float = 60, stalled: float = 60, open_files: int | None = None, **held: socket.socket
    ) -> Daemon:
        """Start a daemon that holds sockets; they are closed here. An underscore in a name stands for a blank."""
        names = [f"{name.replace('_', ' ')}={sock.fileno()}" for name, sock in held.items()]

        def limit() -> None:
            if open_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

        process = subprocess.Popen(
            [sys.executable, PROGRAM, str(self.folder), str(waiting), str(stalled), *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[sock.fileno() for sock in held.values()],
            preexec_fn=limit,
        )
        self.started.append(Daemon(process, []))
        self.started[-1].given = json.loads(self.started[-1]._line() or self.started[-1].event())
        for sock in held.values():
            sock.close()
        return self.started[-1]

    @contextlib.asynccontextmanager
    async def fetched(self, seconds: float = SECONDS) -> AsyncIterator[tuple[dict[str, Entry], list[str]]]:
        """Fetch what the keeper holds, as the next daemon, and end the keeper when the block is left."""
        directory = PipeDirectory.claim(str(self.folder))
        log = Log()
        entries = await KeeperLink.fetch(directory, log, seconds)  # type: ignore[arg-type]
        keeper, held = entries or (None, {})
        try:
            yield held, log.events
        finally:
            for entry in held.values():
                os.close(entry.fd)
            if keeper is not None:
                keeper.end()
                assert keeper._process is not None
                keeper._process.close()
            directory.release()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    """Daemons in a directory of their own; at the end none runs, and no keeper."""
    adopt_orphans()
    daemons = Daemons(tmp_path / "pipe")
    yield daemons
    for daemon in daemons.started:
        with contextlib.suppress(FileNotFoundError):
            for pid in children_of(daemon.process.pid):
                os.kill(pid, signal.SIGKILL)
        daemon.close()
    for pid in children_of(os.getpid()):
        if _comm(pid) == "pympsd-keeper":
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    adopt_orphans(False)


def _pair(kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> tuple[socket.socket, socket.socket]:
    peer, peer_end = socket.socketpair(socket.AF_UNIX, kind)
    peer.settimeout(SECONDS)
    return peer, peer_end


def _connect(daemons: Daemons) -> socket.socket:
    """Connect to the keeper as a next daemon would."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(SECONDS)
    sock.connect(str(daemons.folder / files.KEEPER))
    return sock


def _open(sock: socket.socket) -> bool:
    """Return whether a socket's peer is open and has sent nothing."""
    return not select.select([sock], [], [], 0)[0]


def test_a_client_that_connects_while_no_daemon_runs_is_served_by_the_next(daemons: Daemons, tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "control"))
    listener.listen()
    daemons.start(control=listener).kill()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        client.connect(str(tmp_path / "control"))
        second = daemons.start()
        assert second.given == [["control", ""]]
        second.call("accept", "control", "served")
        assert client.recv(100) == b"served"


def test_a_connection_sees_no_end_and_its_packets_are_there_for_the_next(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        first = daemons.start(server_1=ours)
        peer.send(b"before")
        first.kill()
        assert _open(peer)
        peer.send(b"while no daemon ran")
        second = daemons.start()
        assert second.call("receive", "server 1") == "before"
        assert second.call("receive", "server 1") == "while no daemon ran"
        second.call("send", "server 1", "answer")
        assert peer.recv(100) == b"answer"
        second.kill()
        assert _open(peer)
        assert daemons.start().given == [["server 1", ""]]


def test_notes_and_drops_are_kept_and_the_order_is_that_of_holding(daemons: Daemons) -> None:
    pairs = [_pair() for _ in range(3)]
    first = daemons.start(b=pairs[0][1], a=pairs[1][1], c=pairs[2][1])
    for line in (("note", "a", "first"), ("note", "a", "second"), ("drop", "b", ""), ("hold", "c", "2")):
        first.call(*line)
    first.call("note", "c 1", "last")
    first.kill()
    assert daemons.start().given == [["a", "second"], ["c", ""], ["c 0", "x" * 100], ["c 1", "last"]]
    assert [_open(peer) for peer, _ in pairs] == [False, True, True]
    for peer, _ in pairs:
        peer.close()


def test_a_daemon_that_ends_in_order_ends_the_keeper_and_its_socket(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        daemon = daemons.start(server_1=ours)
        keeper = daemon.keeper()
        daemon.call("end")
        wait_until(lambda: not alive(keeper), "the keeper's end")
        assert not (daemons.folder / files.KEEPER).exists()
        daemon.kill()
        assert peer.recv(1) == b""
        assert daemons.start().given == []


def test_both_killed_means_an_end_for_everybody_and_a_clean_start(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        daemon = daemons.start(server_1=ours)
        keeper = daemon.keeper()
        daemon.process.send_signal(signal.SIGSTOP)  # or it would start another
        os.kill(keeper, signal.SIGKILL)
        daemon.kill()
        assert peer.recv(1) == b""
        assert daemons.start().given == []


def test_a_killed_keeper_is_replaced_by_one_that_holds_the_same(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        socket_number = os.fstat(ours.fileno()).st_ino
        daemon = daemons.start(server_1=ours)
        daemon.call("note", "server 1", "its note")
        keeper = daemon.keeper()
        os.kill(keeper, signal.SIGKILL)
        assert "its process has ended" in daemon.event()
        assert daemon.keeper() != keeper
        # The daemon has nothing to catch up with before it knows that the keeper was started.
        wait_until(lambda: socket_number in _open_inodes(daemon.keeper()), "the socket in the new keeper")
        daemon.call("catch up")
        daemon.kill()
        assert daemons.start().given == [["server 1", "its note"]]


def test_a_stopped_keeper_does_not_delay_the_daemon_and_is_replaced(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        daemon = daemons.start(stalled=1, server_1=ours)
        keeper = daemon.keeper()
        suspend(keeper)
        for _ in range(10):  # more than the link takes
            daemon.call("hold", "server 1", "2000")
        assert "it has taken nothing for 1 s" in daemon.event()
        wait_until(lambda: not alive(keeper), "the end of the stopped keeper")
        assert daemon.keeper() != keeper
        wait_until(lambda: _descriptors(daemon.keeper()) > 2000, "everything to be held")
        daemon.kill()
        assert len(daemons.start().given) == 2001


def _state(pid: int) -> str:
    """Return the state of a process: S if it sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _next_daemon(daemons: Daemons) -> tuple[socket.socket, dict[str, bytes]]:
    """Connect as a next daemon, and receive everything."""
    sock, entries = _connect(daemons), {}
    while True:
        packet, fds, _, _ = socket.recv_fds(sock, packets.PACKET_BYTES, 1)
        kind, name, note = packets.decode(packet)
        for fd in fds:
            os.close(fd)
        if kind == packets.COMPLETE:
            return sock, entries
        entries[name] = note


def test_a_next_daemon_that_dies_halfway_costs_nothing(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        daemon = daemons.start(server_1=ours)
        daemon.call("hold", "server 1", "3000")
        daemon.call("catch up")
        keeper = daemon.keeper()
        daemon.kill()
        with _connect(daemons) as halfway:
            packet, (fd, *_), _, _ = socket.recv_fds(halfway, packets.PACKET_BYTES, 1)
            assert packets.decode(packet) == (packets.HOLD, "server 1", b"")
            wait_until(lambda: _state(keeper) == "S" and not _open(halfway), "a link that takes no more")
            # It dies with packets unread; what it reported itself counts, even if the keeper sees both together.
            suspend(keeper)
            socket.send_fds(halfway, [packets.encode(packets.HOLD, "client 1", b"new")], [fd])
            os.close(fd)
        os.kill(keeper, signal.SIGCONT)
        sock, entries = _next_daemon(daemons)
        sock.close()
        assert len(entries) == 3002
        assert entries["client 1"] == b"new"


def test_the_newest_daemon_wins_and_the_one_before_leaves_the_keeper_alone(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        daemon = daemons.start(server_1=ours)
        keeper = daemon.keeper()
        sock, entries = _next_daemon(daemons)
        assert entries == {"server 1": b""}
        daemon.call("note", "server 1", "too late")
        another, entries = _next_daemon(daemons)
        assert packets.decode(sock.recv(100))[0] == packets.REPLACED
        assert sock.recv(100) == b""
        assert entries == {"server 1": b""}
        assert daemon.keeper() == keeper
        sock.close()
        another.close()


def test_malformed_packets_change_nothing(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        daemon = daemons.start(server_1=ours)
        keeper = daemon.keeper()
        daemon.kill()
        sock, _ = _next_daemon(daemons)
        with sock:
            for packet in (
                b"\1",
                b"\0\0",
                b"\x63\1a",
                b"\1\xffab",
                b"\1\1\xff",
                b"\2\1zz",
                b"\1\1a" + b"x" * packets.PACKET_BYTES,
                b"\1\xff" + b"a" * packets.NAME_BYTES + b"x" * (packets.NOTE_BYTES + 1),
            ):
                sock.send(packet)
                socket.send_fds(sock, [packet], [sock.fileno()])
                socket.send_fds(sock, [packet], [sock.fileno()] * 5)
            socket.send_fds(sock, [packets.encode(packets.DROP, "unknown")], [sock.fileno()])
            sock.send(packets.encode(packets.HOLD, "without a descriptor"))
            socket.send_fds(sock, [packets.encode(packets.HOLD, "with two")], [peer.fileno()] * 2)
            for note in (b"", b"note"):  # the later one replaces the earlier
                socket.send_fds(sock, [packets.encode(packets.HOLD, "right", note)], [peer.fileno()])
            refused = [packets.decode(sock.recv(1000)) for _ in range(2)]
            assert [(kind, name) for kind, name, _ in refused] == [
                (packets.REFUSED, "without a descriptor"),
                (packets.REFUSED, "with two"),
            ]
        again, entries = _next_daemon(daemons)
        assert entries == {"server 1": b"", "right": b"note"}
        wait_until(
            lambda: _descriptors(keeper) == OWN_DESCRIPTORS + len(entries), "the closing of what came with them"
        )
        again.close()


def test_a_daemon_that_does_not_read_does_not_stop_the_keeper(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        daemons.start(server_1=ours).kill()
        silent = _connect(daemons)
        with silent:
            for number in range(5000):
                silent.send(packets.encode(packets.HOLD, f"without a descriptor {number}"))
            another, entries = _next_daemon(daemons)
            another.close()
            assert entries == {"server 1": b""}


def test_a_keeper_out_of_descriptors_reports_it_and_continues(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        daemon = daemons.start(open_files=64, server_1=ours)
        daemon.call("hold", "server 1", "100")
        daemon.call("catch up")
        assert daemon.event().startswith("keeper_lacks")
        sock, entries = _next_daemon(daemons)  # while it has a daemon, and a link to it
        sock.close()
        assert 30 < len(entries) < 64 - 3
        assert list(entries)[:3] == ["server 1", "server 1 0", "server 1 1"]


def test_the_keeper_waits_as_long_as_a_server_lives_and_then_ends(daemons: Daemons, tmp_path: Path) -> None:
    others = Daemons(tmp_path / "other")
    server, ours = _pair()
    client, theirs = _pair()
    with server, client:
        first, second = daemons.start(SHORT, server_1=ours), others.start(SHORT, client_1=theirs)
        with_server, without = first.keeper(), second.keeper()
        first.kill()
        second.kill()
        wait_until(lambda: not alive(without), "the end of the keeper without servers")
        second.close()
        assert client.recv(1) == b""
        # That one waited as long, and began later.
        assert alive(with_server)
        assert _open(server)
        server.close()
        wait_until(lambda: not alive(with_server), "the end of the keeper whose server ended")


def test_after_a_long_time_without_a_daemon_servers_without_clients_have_to_end(daemons: Daemons) -> None:
    """They are not asked while a client lives. Then they are asked again and again, and may answer each time."""
    server, ours = _pair()
    client = subprocess.Popen(["sleep", "1000"])
    try:
        with server, kill_after(client):
            daemon = daemons.start(SHORT / 10, server_1=ours)
            daemon.call("note", "server 1", "end if you are alone")
            daemon.call("watch", "client 1", str(client.pid))
            keeper = daemon.keeper()
            daemon.kill()
            assert not select.select([server], [], [], 2 * SHORT)[0], "it has a client"
            client.kill()
            for _ in range(30):
                assert server.recv(100) == b"end if you are alone"
                server.send(bytes(4))
            assert alive(keeper)
    finally:
        client.wait()


def test_the_socket_of_a_keeper_without_a_daemon_is_removed_and_it_ends(daemons: Daemons) -> None:
    server, ours = _pair()
    with server:
        daemon = daemons.start(SHORT, server_1=ours)
        keeper = daemon.keeper()
        sock, _ = _next_daemon(daemons)  # it serves, and so has read what its socket is
        (daemons.folder / files.KEEPER).unlink()
        sock.close()
        wait_until(lambda: not alive(keeper), "the end of a keeper that no daemon can find")
        daemon.kill()
        assert server.recv(1) == b""


def test_when_its_socket_is_removed_idle_servers_end_and_waiting_connections_are_closed(daemons: Daemons) -> None:
    """At that moment: the waiting time is a minute. The server that has been asked stays as long as it needs."""
    server, ours = _pair()
    connection, theirs = _pair()
    with server, connection:
        daemon = daemons.start(server_1=ours, connection_1_control=theirs)
        daemon.call("note", "server 1", "end with your last client")
        keeper = daemon.keeper()
        daemon.kill()
        wait_until(lambda: _descriptors(keeper) == OWN_DESCRIPTORS - 1 + 2 + WATCHING_DESCRIPTORS, "the watch")
        (daemons.folder / files.KEEPER).unlink()
        assert server.recv(100) == b"end with your last client"
        assert connection.recv(1) == b""
        assert alive(keeper)
        server.close()
        wait_until(lambda: not alive(keeper), "the end of the keeper")


async def test_closed_peers_are_dropped_while_no_daemon_runs_unless_they_left_words(daemons: Daemons) -> None:
    client, ours = _pair()
    wordy, theirs = _pair()
    stays, third = _pair()
    daemon = daemons.start(client_1=ours, server_1=theirs, client_2=third)
    keeper = daemon.keeper()
    wait_until(lambda: _descriptors(keeper) == OWN_DESCRIPTORS + 3, "everything to be held")
    daemon.kill()
    # The number of descriptors alone does not show the last step: it is the same before the daemon was killed.
    alone = OWN_DESCRIPTORS - 1 + WATCHING_DESCRIPTORS
    wait_until(lambda: _descriptors(keeper) == alone + 3, "the watch")
    with stays:
        wordy.send(b"last words")
        wordy.close()
        client.close()
        wait_until(lambda: _descriptors(keeper) == alone + 2, "the closing of what has ended")
        async with daemons.fetched() as (held, _):
            assert list(held) == ["server 1", "client 2"]
            assert os.read(held["server 1"].fd, 100) == b"last words"


@pytest.mark.long(but=["64"])
@pytest.mark.parametrize("open_files", [64, 115])
def test_a_next_daemon_out_of_descriptors_refuses_to_start_and_nothing_is_lost(
    daemons: Daemons, open_files: int
) -> None:
    """It has room for half of what is held, or for that and nothing else."""
    peer, ours = _pair()
    with peer:
        first = daemons.start(server_1=ours)
        first.call("hold", "server 1", "100")
        first.call("catch up")
        first.kill()
        refused = str(daemons.start(open_files=open_files).given)
        assert refused.startswith("101 sockets of the daemon before are more than this one may open: raise the limit")
        assert _open(peer)
        assert len(daemons.start().given) == 101


async def test_nonsense_from_a_keeper_is_refused(daemons: Daemons) -> None:
    daemons.folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", NONSENSE, str(daemons.folder / files.KEEPER)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "listening\n"
        async with daemons.fetched() as (held, events):
            assert (held, events) == ({}, ["keeper_unusable"])
        assert other.wait(SECONDS) == -signal.SIGKILL


async def test_a_stopped_keeper_costs_the_next_daemon_its_limit_only(daemons: Daemons) -> None:
    peer, ours = _pair()
    with peer:
        daemon = daemons.start(server_1=ours)
        keeper = daemon.keeper()
        sock, _ = _next_daemon(daemons)
        daemon.kill()
        suspend(keeper)
        async with daemons.fetched(SHORT) as (held, events):
            assert (held, events) == ({}, ["keeper_unusable"])
        wait_until(lambda: not alive(keeper), "the end of the stopped keeper")
        assert peer.recv(1) == b""
        sock.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_signals_to_all_do_not_end_the_keeper_of_a_running_daemon(daemons: Daemons, number: int) -> None:
    peer, ours = _pair()
    with peer:
        daemon = daemons.start(server_1=ours)
        keeper = daemon.keeper()
        sock, _ = _next_daemon(daemons)
        assert os.getsid(keeper) == keeper
        os.kill(keeper, number)
        again, entries = _next_daemon(daemons)
        assert entries == {"server 1": b""}
        sock.close()
        daemon.kill()
        again.close()
        if number == signal.SIGTERM:
            wait_until(lambda: _signal(keeper, number), "its end")


def _signal(pid: int, number: signal.Signals) -> bool:
    """Signal a process that has not noticed yet that its daemon is gone; return whether it has ended."""
    if not alive(pid):
        return True
    os.kill(pid, number)
    return False


CONNECT = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.settimeout(30)
try:
    sock.connect(sys.argv[1])
except PermissionError:
    print("refused")
else:
    print(socket.recv_fds(sock, 100, 1)[:2])
"""
NONSENSE = """
import signal, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.bind(sys.argv[1])
sock.listen()
print("listening", flush=True)
connection, _ = sock.accept()
socket.send_fds(connection, [b"nonsense"], [1])
signal.pause()
"""
LISTEN = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.bind(sys.argv[1])
sock.listen()
print("listening", flush=True)
sys.stdin.read()
"""


def _as_other_user(program: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )


@pytest.fixture
def open_daemons(daemons: Daemons) -> Iterator[Daemons]:
    """Daemons in a directory that every user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        daemons.folder = Path(folder) / "pipe"
        yield daemons


@as_root
async def test_another_user_gets_nothing(open_daemons: Daemons) -> None:
    path = open_daemons.folder / files.KEEPER
    peer, ours = _pair()
    with peer:
        open_daemons.start(server_1=ours).kill()
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        with _as_other_user(CONNECT, path) as other:
            assert other.communicate(timeout=SECONDS)[0] == "refused\n"
        path.chmod(0o666)
        with _as_other_user(CONNECT, path) as other:
            assert other.communicate(timeout=SECONDS)[0] == "(b'', [])\n"
        async with open_daemons.fetched() as (held, _):
            assert list(held) == ["server 1"]


@as_root
async def test_another_users_keeper_is_not_believed(open_daemons: Daemons) -> None:
    open_daemons.folder.mkdir()
    open_daemons.folder.chmod(0o777)
    with _as_other_user(LISTEN, open_daemons.folder / files.KEEPER) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "listening\n"
        async with open_daemons.fetched() as (held, events):
            assert (held, events) == ({}, [])
        assert other.poll() is None
        other.communicate(timeout=SECONDS)


# --- connections that the keeper accepts


@contextlib.asynccontextmanager
async def _keeper(folder: Path, log: Log) -> AsyncIterator[tuple[KeeperLink, str]]:
    """A keeper with a listening socket; the second value is its address. This process stands for the daemon."""
    directory = PipeDirectory.claim(str(folder / "pipe"))
    keeper = KeeperLink(directory, log, answer_seconds=SECONDS)  # type: ignore[arg-type]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "control"))
        listener.listen()
        listener.setblocking(False)
        keeper.hold("listener control", listener.fileno())
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(keeper.run)
                yield keeper, str(folder / "control")
                keeper.end()
        finally:
            directory.release()


def _client(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(SECONDS)
    sock.connect(address)
    return sock


def _fail_unexpected(fd: int) -> None:
    pytest.fail(f"descriptor {fd} came late")


async def test_a_connection_is_accepted_greeted_and_held_immediately(tmp_path: Path) -> None:
    async with _keeper(tmp_path, Log()) as (keeper, address):
        with _client(address) as client:
            fd = await keeper.accept("listener control", "connection 7", b"hello", _fail_unexpected)
            assert fd is not None
            with socket.socket(fileno=fd) as connection:
                assert client.recv(100) == b"hello"
                client.send(b"a question")
                assert connection.recv(100) == b"a question"
            client.send(b"another one")  # nobody has closed it: the keeper has it
            keeper.drop("connection 7")
            with pytest.raises(ConnectionResetError):
                await trio.to_thread.run_sync(client.recv, 100)


async def test_the_keeper_reports_a_missing_connection_or_listening_socket(tmp_path: Path) -> None:
    async with _keeper(tmp_path, Log()) as (keeper, _):
        assert await keeper.accept("listener control", "connection 1", b"", _fail_unexpected) == -1
        assert await keeper.accept("listener log", "connection 2", b"", _fail_unexpected) is None


async def test_a_stopped_keeper_gets_one_request_and_its_late_answer_counts(tmp_path: Path) -> None:
    late, arrived = [], trio.Event()

    def take(fd: int) -> None:
        late.append(fd)
        arrived.set()

    async with _keeper(tmp_path, Log()) as (keeper, address):
        assert await keeper.accept("listener control", "connection 0", b"", _fail_unexpected) == -1
        (pid,) = [pid for pid in children_of(os.getpid()) if _comm(pid) == "pympsd-keeper"]
        suspend(pid)
        keeper.answer_seconds = SHORT
        with _client(address) as client:
            assert await keeper.accept("listener control", "connection 1", b"", take) is None
            assert await keeper.accept("listener control", "connection 2", b"", _fail_unexpected) is None
            os.kill(pid, signal.SIGCONT)
            with trio.fail_after(SECONDS):
                await arrived.wait()
            with socket.socket(fileno=late[0]) as connection:
                connection.send(b"served")
                assert client.recv(100) == b"served"
            keeper.answer_seconds = SECONDS
            with _client(address):
                fd = await keeper.accept("listener control", "connection 3", b"", _fail_unexpected)
                assert fd is not None
                os.close(fd)


async def test_what_changes_while_a_killed_keeper_is_reaped_is_held_by_the_next(tmp_path: Path) -> None:
    """Its link is closed by then: nothing may be lost, and nothing fail, for it takes no more."""
    log = Log()
    async with _keeper(tmp_path, log) as (keeper, address):
        assert await keeper.accept("listener control", "connection 0", b"", _fail_unexpected) == -1
        (pid,) = [pid for pid in children_of(os.getpid()) if _comm(pid) == "pympsd-keeper"]
        with socket.socket() as held, trio.fail_after(SECONDS):
            os.kill(pid, signal.SIGKILL)
            while not (
                new := [
                    child for child in children_of(os.getpid()) if _comm(child) == "pympsd-keeper" and child != pid
                ]
            ):
                keeper.hold("server 1", held.fileno())
                keeper.drop("server 2")
                await trio.lowlevel.checkpoint()
            with _client(address):
                while (fd := await keeper.accept("listener control", "connection 1", b"", _fail_unexpected)) is None:
                    await trio.lowlevel.checkpoint()
                os.close(fd)
        assert len(new) == 1
        assert "keeper_lacks" not in log.events


def test_a_connection_that_a_killed_daemon_requested_goes_to_the_next_one(daemons: Daemons, tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "control"))
    listener.listen()
    listener.setblocking(False)
    first = daemons.start(listener=listener)
    with _client(str(tmp_path / "control")) as client:
        suspend(first.keeper())
        assert first.call("ask", "listener", "connection 1") == "done"
        keeper = first.keeper()
        first.kill()
        os.kill(keeper, signal.SIGCONT)
        second = daemons.start()
        assert [name for name, _ in second.given] == ["listener", "connection 1"]
        assert second.call("send", "connection 1", "served") == "done"
        assert client.recv(100) == b"served"


def test_a_connection_takes_none_of_the_descriptors_that_the_next_daemon_needs(
    daemons: Daemons, tmp_path: Path
) -> None:
    listener, (peer, ours) = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), _pair()
    listener.bind(str(tmp_path / "control"))
    listener.listen()
    listener.setblocking(False)
    with peer, _client(str(tmp_path / "control")):
        daemon = daemons.start(open_files=64, server_1=ours, listener=listener)
        daemon.call("hold", "server 1", "100")
        daemon.call("catch up")
        assert daemon.event().startswith("keeper_lacks")
        assert daemon.call("ask", "listener", "connection 1") == "done"
        daemon.call("catch up")
        sock, entries = _next_daemon(daemons)
        sock.close()
        assert "server 1 0" in entries
        assert "connection 1" not in entries
