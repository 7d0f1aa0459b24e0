"""Anything that anybody may say at the sockets of a daemon that manages the driver's server: no harm, no leak."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from fake_mps.client import ask, be_greeted
from fake_mps.peer import CLIENT, CONTEXT, CREDENTIALS, HELLO, SERVER
from fake_mps.programs import DriverClient
from fake_mps.visitor import TOOL, Visitor, visitor
from processes import SECONDS, DaemonProcess, wait_until

USER, OTHER = 65534, 1000
SILENT_CONNECTIONS = 1000
SUCCESS = "CUDA_SUCCESS"
PIDFD = "anon_inode:[pidfd]"
SILENT = 3
MANY_SILENT = 40
FIRST_ANSWER_SECONDS = 1.0
"""How long a client that does not answer its server holds up later ones (service/sessions/driver/handoffs.py)."""
HELLO_SECONDS = 10.0
"""When a connection that does not speak is closed (pympsd/service/sessions/driver/conversation.py)."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")


@pytest.fixture
def daemon(start_driver_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon that manages the fake server."""
    return start_driver_daemon()


def control(daemon: DaemonProcess, name: str = "control") -> Path:
    """Return the path of a socket."""
    return daemon.directory / "pipe" / name


def descriptors(daemon: DaemonProcess) -> list[str]:
    """Return what descriptors the daemon has open, without those of processes (see the last test)."""
    targets = []
    for name in os.listdir(f"/proc/{daemon.pid}/fd"):
        with suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/{daemon.pid}/fd/{name}"))
    return sorted(target for target in targets if target != PIDFD)


def count_watched(daemon: DaemonProcess) -> int:
    """Return how many processes the daemon has descriptors of."""
    folder = f"/proc/{daemon.pid}/fd"
    return sum(os.readlink(f"{folder}/{name}") == PIDFD for name in os.listdir(folder))


@pytest.fixture(autouse=True)
def _nothing_leaks_in_the_daemon(daemon: DaemonProcess) -> Iterator[None]:
    """The daemon has no more descriptors after the test than before, no internal error, and serves."""
    daemon.run_command("get_server_list")
    wait_until(lambda: daemon.log()[-1] == "UI closed")
    before = descriptors(daemon)
    yield

    def is_as_before() -> bool:
        # Both at the same time: a server that is being started has no PID yet, and is in no list.
        return _has_no_servers(daemon) and len(descriptors(daemon)) <= len(before)

    try:
        wait_until(is_as_before, f"the end of all servers, and {len(before)} descriptors of the daemon")
    except AssertionError as error:
        raise AssertionError(f"{error}: {before}, then {descriptors(daemon)}: {daemon.log()[-20:]}") from None
    # In bytes: a command is logged as it came.
    assert b"internal error" not in (daemon.directory / "log" / "control.log").read_bytes()
    with DriverClient.start(daemon.directory / "pipe", uid=OTHER) as client:
        client.connect()


def _has_no_servers(daemon: DaemonProcess) -> bool:
    """End its servers; return whether there were none. The end of one may start that of users who waited for it."""
    servers = daemon.servers()
    for server in servers:
        daemon.run_command(f"shutdown_server {server} -f")
    return not servers


def check_service(daemon: DaemonProcess, uid: int = USER) -> None:
    """Check that a program of the user and an operator are served, within SECONDS each."""
    with DriverClient.start(daemon.directory / "pipe", uid=uid) as client:
        client.connect()
        assert str(client.pid) in daemon.run_command("ps")


def has_logged(daemon: DaemonProcess, text: str) -> Callable[[], bool]:
    """Return a condition: control.log has a line with a text."""
    return lambda: any(text in line for line in daemon.log())


# --- who it is


@pytest.mark.parametrize("name", ["control", "control_privileged"])
def test_a_silent_connection_does_not_delay_others(daemon: DaemonProcess, name: str) -> None:
    with visitor(control(daemon, name)) as silent:
        check_service(daemon)
        assert silent.is_silent()


@pytest.mark.long
@pytest.mark.parametrize("count", [0, 1])
def test_a_connection_that_falls_silent_is_closed_after_a_time(daemon: DaemonProcess, count: int) -> None:
    with visitor(control(daemon)) as silent:
        if count:
            silent.introduce()
        began = time.monotonic()
        assert silent.is_closed()
        assert HELLO_SECONDS / 2 < time.monotonic() - began < 2 * HELLO_SECONDS


def test_what_is_sent_without_credentials_before_the_daemon_asks(daemon: DaemonProcess) -> None:
    """The kernel adds them once the daemon has asked for that; before, they are those of nobody."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        stack = ExitStack()
        early = stack.enter_context(visitor(control(daemon), greeted=False))
        early.send(CREDENTIALS, CLIENT)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    with stack:
        assert early.hear() == HELLO
        check_service(daemon)


@pytest.mark.long(but=["text5"])
@pytest.mark.parametrize("text", [b"OUTBCRE2\0", b"OUTBCRED", b"\0", b"OUTBCRED\0\0", b"x" * 4096, b"x" * 100_000])
def test_a_wrong_first_packet(daemon: DaemonProcess, text: bytes) -> None:
    with visitor(control(daemon)) as wrong:
        wrong.introduce(text)
        assert wrong.is_closed()
    wait_until(has_logged(daemon, "User did not send valid credentials"))


@pytest.mark.long(but=["control-role5", "control_privileged-role5"])
@pytest.mark.parametrize(
    "role",
    [struct.pack("<i", 3), struct.pack("<i", 0), struct.pack("<i", -1), struct.pack("<q", 2), b"\2", b"\2" * 9999],
)
@pytest.mark.parametrize("name", ["control", "control_privileged"])
def test_a_number_that_is_not_a_role_is_refused(daemon: DaemonProcess, role: bytes, name: str) -> None:
    with visitor(control(daemon, name)) as wrong:
        wrong.introduce()
        wrong.send(role)
        assert wrong.is_closed()
    wait_until(has_logged(daemon, "Unable to read new connection type information"))


@pytest.mark.parametrize("role", [CLIENT, SERVER])
def test_only_operators_at_the_operators_socket(daemon: DaemonProcess, role: int) -> None:
    with visitor(control(daemon, "control_privileged")) as wrong:
        wrong.introduce()
        wrong.send(role)
        assert wrong.is_closed()
    wait_until(has_logged(daemon, "Unable to read new connection type information"))


def test_a_server_that_is_none_of_ours(daemon: DaemonProcess) -> None:
    with visitor(control(daemon)) as wrong:
        wrong.introduce()
        with suppress(BrokenPipeError, ConnectionResetError):  # it may close at the role
            wrong.send(SERVER, bytes(256) + b"mps.shm.0.1".ljust(260, b"\0"))
        assert wrong.is_closed()
    text = (
        f"Refusing process {os.getpid()} of user 0, which claims to be a server: this daemon started no such server"
    )
    assert has_logged(daemon, text)()


def test_a_false_server_while_a_true_one_starts(daemon: DaemonProcess) -> None:
    with DriverClient.start(daemon.directory / "pipe", uid=USER) as client, visitor(control(daemon)) as wrong:
        wrong.introduce()
        client.send("init")
        wrong.send(SERVER)
        assert wrong.is_closed()
        assert client.answer() == f"init {SUCCESS}"


# --- descriptors


@pytest.mark.long(but=["250-control", "250-control_privileged"])
@pytest.mark.parametrize("name", ["control", "control_privileged"])
@pytest.mark.parametrize("count", [1, 4, 250])
def test_descriptors_that_are_sent_along_are_closed(daemon: DaemonProcess, name: str, count: int) -> None:
    """With every packet of an operator's session, each with as many; the kernel allows 253."""
    read, write = os.pipe()
    before = len(descriptors(daemon))
    try:
        with visitor(control(daemon, name)) as here:
            here.introduce(fds=[write] * count)
            here.send(TOOL, fds=[write] * count)
            for line in (b"get_server_list", b"foo"):
                here.send(struct.pack("<q", len(line) + 2), line + b"\n\0", fds=[write] * count)
            wait_until(has_logged(daemon, "Cmd:foo"))
            assert len(descriptors(daemon)) <= before + 1, "they are closed before the session ends"
            here.send(bytes(8), fds=[write] * count)
            assert here.answers() == [b'Unknown command "foo"']
        os.close(write)
        write = -1
        assert os.read(read, 1) == b"", "nobody else has it any more"
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def test_descriptors_with_a_clients_packets(daemon: DaemonProcess) -> None:
    read, write = os.pipe()
    with visitor(control(daemon)) as here:
        here.introduce(fds=[write])
        here.send(CLIENT, fds=[write])
        here.take_connection().close()
        here.send(0, fds=[write] * 9)
        assert here.is_closed()
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)


# --- an operator's lines


def tool(daemon: DaemonProcess, stack: ExitStack) -> Visitor:
    """Return an operator at the privileged socket."""
    here = stack.enter_context(visitor(control(daemon, "control_privileged")))
    here.as_tool()
    return here


def test_a_length_that_is_not_that_of_the_line(daemon: DaemonProcess) -> None:
    with ExitStack() as stack:
        here = tool(daemon, stack)
        for length in (1, 4, 1000, 2**63 - 1):
            here.send(struct.pack("<q", length), b"get_server_list\n\0")
        here.send(bytes(8))
        assert here.answers() == []
        assert daemon.log().count("Cmd:get_server_list") >= 5


@pytest.mark.parametrize("length", [struct.pack("<q", -1), struct.pack("<q", -(2**63)), b"\0" * 4, b"\1" * 7])
def test_an_invalid_length_closes_the_connection(daemon: DaemonProcess, length: bytes) -> None:
    with ExitStack() as stack:
        here = tool(daemon, stack)
        here.send(length)
        assert here.is_closed()


def test_a_length_of_too_many_bytes(daemon: DaemonProcess) -> None:
    with ExitStack() as stack:
        here = tool(daemon, stack)
        with suppress(BrokenPipeError, ConnectionResetError):  # it may close immediately
            here.send(struct.pack("<q", 17) + b"junk", b"get_server_list\n\0", bytes(8))
        output = here.hear()
        assert output in (b"", struct.pack("<ii", 1, 0))


@pytest.mark.long(but=["a\\nb\\nc\\n\\x00"])
@pytest.mark.parametrize(
    "line", [b"", b"\n", b"\0\0\0", b"get_server_list\0junk\n\0", b"foo\0\0\0\n\0\0", b"\xff\xfe\n\0", b"a\nb\nc\n\0"]
)
def test_odd_lines_of_tools_do_no_harm(daemon: DaemonProcess, line: bytes) -> None:
    with ExitStack() as stack:
        here = tool(daemon, stack)
        here.send(struct.pack("<q", max(1, len(line))))
        if line:
            here.send(line)
            here.give(b"get_default_client_priority", b"get_default_active_thread_percentage")
            assert here.answers()[-1] == b"100.0"
    log = (daemon.directory / "log" / "control.log").read_bytes()
    assert all(b"] " in entry for entry in log.splitlines()), "no line begins a line of the log by itself"


def test_a_line_of_a_megabyte(daemon: DaemonProcess) -> None:
    with ExitStack() as stack:
        here = tool(daemon, stack)
        here.connection.setsockopt(socket.SOL_SOCKET, 32, 4 << 20)  # SO_SNDBUFFORCE
        here.send(struct.pack("<q", 1 << 20), b"x" * ((1 << 20) - 2) + b"\n\0")
        here.give(b"get_default_active_thread_percentage")
        assert here.answers()[-1] == b"100.0"
    assert max(map(len, daemon.log())) < (1 << 17) + 100


def test_an_operator_who_does_not_read(daemon: DaemonProcess) -> None:
    with ExitStack() as stack:
        here = tool(daemon, stack)
        here.connection.settimeout(0)
        try:
            for _ in range(10_000):
                here.give(b"device_query", b"x" * 1000, ends=False)
        except BlockingIOError:
            pass
        else:
            raise AssertionError("the daemon reads without end what it cannot answer")
        check_service(daemon)


def test_a_user_may_not_do_what_an_operator_may(daemon: DaemonProcess) -> None:
    """At control any user may be a tool; the uid is the kernel's."""
    program = "import sys; sys.path.insert(0, sys.argv[1])\n" + _FOREIGN_TOOL
    support = Path(__file__).parents[1] / "support"
    done = _as_user(program, str(support), str(control(daemon)))
    first, second = done
    assert first == "100.0"
    assert second.startswith(f"Insufficient privileges for UID {USER}.")
    assert daemon.run_command("get_default_active_thread_percentage") == "100.0\n"


_FOREIGN_TOOL = """
from pathlib import Path
from fake_mps.visitor import visitor
with visitor(Path(sys.argv[2])) as here:
    here.as_tool()
    here.give(b"get_default_active_thread_percentage", b"set_default_active_thread_percentage 10")
    for line in here.answers():
        print(line.decode())
"""


def _as_user(program: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=30, user=USER
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# --- many


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, SILENT_CONNECTIONS + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_descriptors")
def test_a_thousand_who_never_speak_while_others_are_served(daemon: DaemonProcess) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(visitor(control(daemon), greeted=False)) for _ in range(SILENT_CONNECTIONS)]
        check_service(daemon)
        # The daemon closes those beyond its limit of a user's connections.
        words = [client.hear() for client in silent]
        assert set(words) <= {HELLO, b""}
        # The others were served while these are connected, not after they have been closed.
        assert any(client.is_silent() for client, word in zip(silent, words, strict=True) if word == HELLO)


@pytest.mark.long
@pytest.mark.usefixtures("_many_descriptors")
def test_a_thousand_clients_that_accept_no_connection_do_not_delay_others(daemon: DaemonProcess) -> None:
    """Nor does one that is stopped or busy, in whatever container: its server hears of it when it continues."""
    with DriverClient.start(control(daemon).parent, uid=0) as client, ExitStack() as stack:
        client.connect()
        silent = []
        for _ in range(SILENT_CONNECTIONS):
            silent.append(stack.enter_context(visitor(control(daemon))))
            silent[-1].as_client()
        wait_until(lambda: not silent[-1].is_silent(), "the connection of the last one")
        check_service(daemon, uid=0)
        assert client.call("sync") == f"sync {SUCCESS}"
        with silent[0].take_connection() as connection:
            be_greeted(connection, CONTEXT)
            assert ask(connection, device=0)["result"] == SUCCESS
        client.kill()
        check_service(daemon, uid=USER)
    assert not has_logged(daemon, "did not respond to server")()


def test_clients_who_took_their_connection_and_never_speak_do_not_block_their_user(daemon: DaemonProcess) -> None:
    """The server hears nothing while it waits for one of them: the daemon answers for each that sleeps."""
    with ExitStack() as stack:
        for _ in range(MANY_SILENT):
            here = stack.enter_context(visitor(control(daemon)))
            here.as_client()
            stack.enter_context(here.take_connection())
        wait_until(has_logged(daemon, "did not respond to server"))
        check_service(daemon, uid=0)
        check_service(daemon, uid=USER)


def test_a_client_that_is_stopped_for_a_moment_while_its_server_speaks_is_not_cut_off(daemon: DaemonProcess) -> None:
    with DriverClient.start(control(daemon).parent, uid=0) as client:
        client.connect()
        os.kill(daemon.servers()[0], signal.SIGSTOP)
        client.send("ctx 0")
        wait_until(lambda: daemon.log().count(f"NEW CLIENT {client.pid} from user 0: Server already exists") > 0)
        os.kill(client.pid, signal.SIGSTOP)
        os.kill(daemon.servers()[0], signal.SIGCONT)
        time.sleep(FIRST_ANSWER_SECONDS / 2)  # how long it is stopped
        os.kill(client.pid, signal.SIGCONT)
        assert client.answer() == f"ctx {SUCCESS}"


@pytest.mark.long(but=["words2"])
@pytest.mark.parametrize("words", [(), (b"\0",), (CREDENTIALS,), (b"\0", b"\0", b"\0", b"\0")])
def test_a_client_that_disconnects_immediately_does_not_block_the_server(
    daemon: DaemonProcess, words: tuple[bytes, ...]
) -> None:
    """The server waits for ever for such a client, unless the daemon answers in the client's place."""
    with DriverClient.start(daemon.directory / "pipe", uid=0) as client:
        client.connect()
        for _ in range(SILENT):
            with visitor(control(daemon)) as here:
                here.as_client()
                with here.take_connection() as connection:
                    for word in words:
                        connection.send(word)
        assert client.call("sync") == f"sync {SUCCESS}"
        check_service(daemon, uid=0)


def test_a_client_that_is_stopped_before_it_answers_its_server_loses_its_connection_alone(
    daemon: DaemonProcess,
) -> None:
    with DriverClient.start(daemon.directory / "pipe", uid=0) as client:
        client.connect()
        with visitor(control(daemon)) as here:
            here.as_client()
            with here.take_connection() as connection:
                connection.settimeout(SECONDS)
                while connection.recv(64):
                    pass  # its server's first words, then the end
        assert client.call("sync") == f"sync {SUCCESS}"
        check_service(daemon, uid=0)
    wait_until(has_logged(daemon, "did not respond to server"))


def test_clients_who_took_their_connection_and_never_speak_do_not_block_another_user(daemon: DaemonProcess) -> None:
    """They have no work that could be lost: the turn passes on as if they had left."""
    with ExitStack() as stack:
        for _ in range(50):
            here = stack.enter_context(visitor(control(daemon)))
            here.as_client()
            stack.enter_context(here.take_connection())
        check_service(daemon, uid=USER)


def test_clients_are_watched_no_longer_than_their_server_lives(daemon: DaemonProcess) -> None:
    """A program may outlive many servers."""
    before = count_watched(daemon)
    for _ in range(3):
        with visitor(control(daemon)) as here:
            here.as_client()
            here.take_connection().close()
            here.send(0)
            assert here.is_closed()
        (server,) = daemon.servers()
        daemon.run_command(f"shutdown_server {server} -f")
        wait_until(lambda: not daemon.servers())
    wait_until(lambda: count_watched(daemon) <= before, seconds=5)


@pytest.mark.long
@pytest.mark.parametrize("_time", range(4))
def test_a_daemon_that_is_stopped_while_a_client_answers_its_server_does_not_drop_it(
    daemon: DaemonProcess, _time: int
) -> None:
    """It sees the answer and the end of the time for it at the same moment."""
    with visitor(control(daemon)) as here:
        here.as_client()
        with here.take_connection() as connection:
            here.send(0)
            assert connection.recv(64, socket.MSG_PEEK), "its server's first words"
            os.kill(daemon.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                be_greeted(connection, CONTEXT)
                ask(connection, device=0)
                while time.monotonic() - began < 1.5 * FIRST_ANSWER_SECONDS:
                    ask(connection, ask="sync")
            finally:
                os.kill(daemon.pid, signal.SIGCONT)
            check_service(daemon, uid=0)
            assert ask(connection, ask="sync")["result"] == SUCCESS
    assert not has_logged(daemon, "did not respond to server")()


def test_a_server_that_is_stopped_while_a_client_does_not_answer_is_freed_later(daemon: DaemonProcess) -> None:
    with DriverClient.start(control(daemon).parent, uid=0) as client:
        client.connect()
        (server,) = daemon.servers()
        os.kill(server, signal.SIGSTOP)
        try:
            with visitor(control(daemon)) as here:
                here.as_client()
                stack = ExitStack()
                stack.enter_context(here.take_connection())
            for _ in range(2):
                assert "did not respond" in daemon.run([], "ps\n").stderr
        finally:
            os.kill(server, signal.SIGCONT)
        with stack:
            check_service(daemon, uid=0)
