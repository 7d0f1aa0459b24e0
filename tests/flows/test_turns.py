"""Users take turns: real processes of three users through root's daemon, and the daemon of an ordinary user."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import PYMPSD, SECONDS, ClientProcess, DaemonProcess, alive, children_of, kill_after, wait_until

from pympsd.cli.options import MULTIUSER
from pympsd.wire.framing import FrameReader
from pympsd.wire.messages import ClientHello, Refused, Versions, decode, encode

NOBODY = pwd.getpwnam("nobody").pw_uid
OTHER = 12345
REFUSED = "CUDA_ERROR_MPS_CONNECTION_FAILED"
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
MakeDaemon = Callable[..., DaemonProcess]


class Users:
    """A daemon and the clients of several users."""

    def __init__(self, daemon: DaemonProcess, ends: ExitStack) -> None:
        self.daemon = daemon
        self._ends = ends

    def client(self, uid: int) -> ClientProcess:
        """Start a client of a user."""
        client = self.daemon.client(uid)
        self._ends.callback(_end, client)
        return client

    def waiting(self, uid: int, after: str) -> ClientProcess:
        """Start a client and return when the log reports that it waits after those users."""
        client = self.client(uid)
        client.send("init")
        line = f"Client {client.pid} of user {uid} is waiting for its turn, behind {after}"
        wait_until(lambda: line in self.daemon.log(), f"the log line {line!r}")
        assert not client.has_result()
        return client

    def server_of(self, uid: int) -> int:
        """Return the one server, which is that user's."""
        (server,) = self.daemon.servers()
        assert {os.stat(f"/proc/{pid}").st_uid for pid in (server, *children_of(server))} == {uid}
        return server

    def becomes_closed(self, server: int, waiting: int) -> None:
        """Return when a server takes no new clients, for a user's sake."""
        line = f"s; server {server} no longer accepts new clients from user "
        wait_until(
            lambda: any(line in text and text.startswith(f"User {waiting} has waited") for text in self.daemon.log()),
            "the end of patience",
        )


def _end(client: ClientProcess) -> None:
    if client.process.poll() is None:
        client.process.kill()
    client.process.communicate()


@pytest.fixture
def start(make_daemon: MakeDaemon) -> Iterator[Callable[..., Users]]:
    """Start a daemon with a patience, in seconds, as the option or (with ``environment``) as the variable."""
    with ExitStack() as ends:

        def begin(overtaking_limit: str = "600", **environment: str) -> Users:
            daemon = make_daemon(**environment)
            done = daemon.start("-d", *(["--turn-patience", overtaking_limit] if overtaking_limit else []))
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            return Users(daemon, ends)

        yield begin


Start = Callable[..., Users]


def test_three_users_take_turns_in_order_of_arrival(start: Start) -> None:
    users = start()
    first = users.client(0).connect()
    second = users.waiting(NOBODY, after="user 0")
    third = users.waiting(OTHER, after=f"user 0, user {NOBODY}")
    # Served with the second, though it comes after the third.
    fourth = users.waiting(NOBODY, after="user 0")
    server = users.server_of(0)
    first.end()
    assert (second.result(), fourth.result()) == ("CUDA_SUCCESS", "CUDA_SUCCESS")
    assert not alive(server)
    for client in (second, fourth):
        assert client.call("ctx 0") == "CUDA_SUCCESS"
        assert client.call("add") == RIGHT
    users.server_of(NOBODY)
    second.end()
    assert fourth.call("add") == RIGHT
    assert not third.has_result()
    fourth.end()
    assert third.result() == "CUDA_SUCCESS"
    assert third.call("ctx 0") == "CUDA_SUCCESS"
    users.server_of(OTHER)
    started = [line.rpartition(" ")[2] for line in users.daemon.log() if line.startswith("Starting new server")]
    assert started == ["0", str(NOBODY), str(OTHER)]


def test_a_new_client_of_the_active_user_overtakes_within_the_overtaking_limit(start: Start) -> None:
    users = start("600")
    users.client(0).connect()
    waiting = users.waiting(NOBODY, after="user 0")
    assert users.client(0).connect().call("add") == RIGHT
    assert not waiting.has_result()


def test_a_new_client_of_the_active_user_waits_after_the_overtaking_limit(start: Start) -> None:
    users = start("0.05")
    first = users.client(0).connect()
    server = users.server_of(0)
    waiting = users.waiting(NOBODY, after="user 0")
    users.becomes_closed(server, waiting=NOBODY)
    new_client = users.waiting(0, after=f"user {NOBODY}")
    # Admitted clients continue, and make more contexts.
    assert first.call("add") == RIGHT
    assert first.call("newctx 0") == "CUDA_SUCCESS"
    first.end()
    assert waiting.result() == "CUDA_SUCCESS"
    assert not new_client.has_result()
    waiting.end()
    assert new_client.result() == "CUDA_SUCCESS"
    users.server_of(0)


@pytest.mark.long
def test_with_an_overtaking_limit_of_0_new_clients_wait_from_the_start(start: Start) -> None:
    users = start("", PYMPSD_TURN_PATIENCE="0")
    users.client(0).connect()
    users.waiting(NOBODY, after="user 0")
    users.waiting(0, after=f"user {NOBODY}")


@pytest.mark.long
def test_the_option_wins_over_the_variable(start: Start) -> None:
    users = start("600", PYMPSD_TURN_PATIENCE="0")
    users.client(0).connect()
    users.waiting(NOBODY, after="user 0")
    users.client(0).connect()


def test_an_invalid_overtaking_limit_keeps_the_daemon_from_starting(make_daemon: MakeDaemon) -> None:
    done = make_daemon().start("-d", "--turn-patience=soon")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "--turn-patience must be a number of seconds, 0 or more, not 'soon'\n"
    done = make_daemon(PYMPSD_TURN_PATIENCE="-1").start()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "PYMPSD_TURN_PATIENCE must be a number of seconds, 0 or more, not '-1'\n"


@pytest.mark.long
def test_start_server_is_a_request_in_the_same_queue(start: Start) -> None:
    users = start()
    first = users.client(0).connect()
    server = users.server_of(0)
    assert users.daemon.run_command("start_server -uid 0") == ""
    assert users.daemon.run_command(f"start_server -uid {OTHER}") == ""
    queued = f"A server for user {OTHER} is waiting for its turn, behind user 0"
    wait_until(lambda: queued in users.daemon.log(), "the request in the queue")
    behind = users.waiting(NOBODY, after=f"user 0, user {OTHER}")
    assert users.daemon.servers() == [server]
    first.end()
    # The request is granted in its turn; its server has no clients, so the turn passes on immediately.
    assert behind.result() == "CUDA_SUCCESS"
    started = [line.rpartition(" ")[2] for line in users.daemon.log() if line.startswith("Starting new server")]
    assert started == ["0", str(OTHER), str(NOBODY)]


@pytest.mark.long
def test_a_start_with_nothing_queued_behind_it_keeps_its_server(start: Start) -> None:
    users = start()
    first = users.client(0).connect()
    users.daemon.run_command(f"start_server -uid {OTHER}")
    first.end()
    ready = f"for user {OTHER}"
    wait_until(lambda: any(line.endswith(ready) and "Starting" in line for line in users.daemon.log()), "the start")
    users.server_of(OTHER)


@pytest.mark.long
def test_a_waiting_client_that_dies_no_longer_holds_up_new_clients(start: Start) -> None:
    users = start("0")
    first = users.client(0).connect()
    server = users.server_of(0)
    dying = users.waiting(NOBODY, after="user 0")
    new_client = users.waiting(0, after=f"user {NOBODY}")
    dying.end(signal.SIGKILL)
    assert new_client.result() == "CUDA_SUCCESS"
    first.end()
    new_client.end()
    wait_until(lambda: users.daemon.run_command("ps") == "", "the end of both")
    assert users.daemon.servers() == [server]


@pytest.mark.long
def test_quit_refuses_the_queue_and_waits_for_those_served(start: Start) -> None:
    users = start("0")
    first = users.client(0).connect()
    line = [users.waiting(NOBODY, after="user 0"), users.waiting(OTHER, after=f"user 0, user {NOBODY}")]
    line.append(users.waiting(0, after=f"user {NOBODY}, user {OTHER}"))
    users.daemon.run_command(f"start_server -uid {OTHER}")
    command = subprocess.Popen([PYMPSD], env=users.daemon.environment, stdin=subprocess.PIPE)
    with kill_after(command) as quitting:
        assert quitting.stdin is not None
        quitting.stdin.write(b"quit\n")
        quitting.stdin.close()
        assert [client.result() for client in line] == [REFUSED] * 3
        assert all("quitting" in client.call("error") for client in line)
        assert first.call("add") == RIGHT
        assert quitting.poll() is None
        first.end()
        assert quitting.wait(SECONDS) == 0
    assert not alive(users.daemon.pid)
    assert users.daemon.log()[-1] == "Exit with status 0"


@pytest.mark.long
def test_shutdown_server_gives_the_turn_away_when_its_clients_have_left(start: Start) -> None:
    users = start()
    first = users.client(0).connect()
    waiting = users.waiting(NOBODY, after="user 0")
    assert users.daemon.run_command(f"shutdown_server {users.server_of(0)}") == ""
    new_client = users.waiting(0, after=f"user {NOBODY}")
    assert first.call("add") == RIGHT
    first.end()
    assert waiting.result() == "CUDA_SUCCESS"
    assert not new_client.has_result()


@pytest.mark.long
def test_a_forced_shutdown_gives_the_turn_away_immediately(start: Start) -> None:
    users = start()
    first = users.client(0).connect()
    waiting = users.waiting(NOBODY, after="user 0")
    users.daemon.run_command(f"shutdown_server {users.server_of(0)} -f")
    assert waiting.result() == "CUDA_SUCCESS"
    assert first.call("sync") == "CUDA_ERROR_MPS_RPC_FAILURE"
    users.server_of(NOBODY)


# --- the daemon of an ordinary user


@pytest.fixture
def own(directory: Path, request: pytest.FixtureRequest) -> Iterator[DaemonProcess]:
    """The directories of user OTHER, or of the parameter, with a daemon that is not started."""
    uid = getattr(request, "param", OTHER)
    for name in ("pipe", "log"):
        os.chown(directory / name, uid, uid)
    daemon = DaemonProcess(directory, uid=uid)
    yield daemon
    daemon.stop()


def test_an_ordinary_users_daemon_serves_its_own_user(own: DaemonProcess) -> None:
    assert own.start("-d", "--turn-patience", "0").returncode == 0
    client = own.client()
    try:
        assert client.connect().call("add") == RIGHT
        (server,) = own.servers()
        assert {os.stat(f"/proc/{pid}").st_uid for pid in (own.pid, server, *children_of(server))} == {OTHER}
        refused = own.run([], f"start_server -uid {NOBODY}")
        assert f"run by user {OTHER} and can serve only that user" in refused.stderr
        assert own.servers() == [server]
    finally:
        _end(client)


@pytest.mark.parametrize("own", [NOBODY], indirect=True)
def test_a_client_of_nobodys_daemon_learns_whose_it_may_be(own: DaemonProcess) -> None:
    assert own.start().returncode == 0
    client = ClientProcess.start({**own.environment, "PYMPSD_REQUIRE_MPS": "1"}, OTHER)
    try:
        assert client.call("init") == REFUSED
        assert f"runs as uid {NOBODY}; only root's and your own" in client.call("error")
    finally:
        _end(client)


@pytest.mark.parametrize("uid", [NOBODY, 0])
def test_an_ordinary_users_daemon_and_clients_of_others_refuse_each_other(own: DaemonProcess, uid: int) -> None:
    assert own.start().returncode == 0
    client = ClientProcess.start({**own.environment, "PYMPSD_REQUIRE_MPS": "1"}, uid)
    try:
        # The client: another user's daemon would see its work.
        assert client.call("init") == REFUSED
        assert f"runs as uid {OTHER}; only root's and your own (uid {uid}) is trusted" in client.call("error")
    finally:
        _end(client)
    # The daemon: a line that names both.
    wait_until(
        lambda: any(
            text.startswith(f"Refusing client {client.pid} from user {uid}: ")
            and f"this daemon is user {OTHER}'s" in text
            for text in own.log()
        ),
        "the line of the refusal",
    )
    assert own.servers() == []


def test_an_ordinary_users_daemon_refuses_every_other_user_all_the_same(own: DaemonProcess) -> None:
    assert own.start().returncode == 0
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        client.connect(str(own.directory / "pipe" / "control"))
        client.sendall(encode(ClientHello(Versions(), os.getpid(), "root's", 1, {})))
        reader = FrameReader(fds_allowed=0)
        frames = []
        while not frames:
            frames = list(reader.feed(client.recv(65536)))
    answer = decode(frames[0])
    assert isinstance(answer, Refused)
    assert f"run by user {OTHER} and serves that user only, not 0; start one as that user" in answer.reason
    assert any(line.startswith(f"Refusing client {os.getpid()} from user 0: this MPS") for line in own.log())


@pytest.mark.long(but=["-d--multiuser-server", "-f--M"])
@pytest.mark.parametrize("option", MULTIUSER)
@pytest.mark.parametrize("way", ["-d", "-f"])
def test_multiuser_server_is_refused_to_an_ordinary_user(own: DaemonProcess, option: str, way: str) -> None:
    done = own.run([way, option])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "-multiuser-server: only root can serve other users; start without it for your own\n"
    assert list((own.directory / "pipe").iterdir()) == []
