"""User namespaces: daemons that are root of one with a single user, and clients in one whose daemon is outside."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import define
from processes import BIN, CLIENT, PYMPSD, SECONDS, ClientProcess, DaemonProcess, kill_after, wait_until

from pympsd.wire import frames

USER, OTHER, NOBODY = 4711, 4712, 65534
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
REFUSED = "CUDA_ERROR_MPS_CONNECTION_FAILED"
AS_ROOT, AS_SELF, WITHOUT_NUMBER = ("unshare", "-Ur"), ("unshare", "-Uc"), ("unshare", "-U")
WHO = "a user without a number in this user namespace"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

pytestmark = pytest.mark.long
RELAY = """
import os, socket, struct, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen()
print("ready", flush=True)
sock, _ = listener.accept()
pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
request = sock.recv(8)
relayed = socket.socket(socket.AF_UNIX)
relayed.connect(sys.argv[2])
relayed.sendall(request)
answer = relayed.recv(8)
denied = 0
for claim in ((pid, os.getuid(), os.getgid()), (os.getpid(), uid, os.getgid())):
    try:
        sock.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", *claim))])
    except PermissionError:
        denied += 1
sock.sendall(answer)
print(denied, sock.recv(1) or "gone")
"""
"""Another user's daemon, which asks root's for the answer and claims to be its client; prints what came of that."""


@define
class DaemonInside:
    """A daemon that is root of a user namespace with one user, in the foreground."""

    daemon: DaemonProcess
    process: subprocess.Popen[bytes]

    def tool(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command line tool in the daemon's namespace."""
        enter = ("nsenter", "--user", "--preserve-credentials", "--target", str(self.process.pid))
        environment = _environment(self.daemon)
        command = [*enter, PYMPSD, *words]
        return subprocess.run(command, env=environment, input=text, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture
def inside(make_daemon: Callable[..., DaemonProcess]) -> Iterator[Callable[..., DaemonInside]]:
    """Start daemons that are root of a user namespace with one user; they are ended after the test."""
    with contextlib.ExitStack() as ends:

        def start(*options: str) -> DaemonInside:
            daemon = make_daemon()
            with (daemon.directory / "log" / "control.log").open("wb") as log:
                process = subprocess.Popen([*AS_ROOT, PYMPSD, *options, "-f"], env=_environment(daemon), stdout=log)
            ends.enter_context(kill_after(process))
            wait_until(lambda: daemon.run([], "ps\n").returncode == 0, "the daemon's sockets")
            running = DaemonInside(daemon, process)
            ends.callback(process.wait, SECONDS)
            ends.callback(running.tool, text="quit -t 0\n")
            return running

        yield start


@pytest.fixture
def daemon_of(make_daemon: Callable[..., DaemonProcess]) -> Callable[[int], DaemonProcess]:
    """Start a user's daemon."""

    def start(uid: int) -> DaemonProcess:
        daemon = make_daemon()
        daemon.uid = uid
        for name in ("pipe", "log"):
            os.chown(daemon.directory / name, uid, uid)
        assert daemon.start().returncode == 0
        return daemon

    return start


def _environment(daemon: DaemonProcess, **more: str) -> dict[str, str]:
    return {**daemon.environment, "PATH": os.environ["PATH"], "PYMPSD_REQUIRE_MPS": "1", **more}


def _first_steps(daemon: DaemonProcess, uid: int, under: tuple[str, ...], **more: str) -> tuple[str, str]:
    """Start a client; return the result of cuInit and the error in words."""
    with _client(daemon, uid, under, **more) as client:
        return client.call("init"), client.call("error")


@contextlib.contextmanager
def _client(daemon: DaemonProcess, uid: int, under: tuple[str, ...] = (), **more: str) -> Iterator[ClientProcess]:
    client = ClientProcess.start(_environment(daemon, **more), uid, CLIENT, under)
    with kill_after(client.process):
        yield client


def _run_inside(daemon: DaemonProcess, *words: str, uid: int = USER) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AS_SELF, *words],
        env=_environment(daemon),
        user=uid or None,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


# --- the daemon is inside


@pytest.mark.parametrize("options", [(), ("-p", "3"), ("-multiuser-server",)])
def test_a_daemon_of_a_single_user_serves_that_user(
    inside: Callable[..., DaemonInside], options: tuple[str, ...]
) -> None:
    daemon = inside(*options).daemon
    with _client(daemon, 0) as client:
        assert client.connect().call("add") == RIGHT
    assert not any(line.startswith("Failed") for line in daemon.log())


def test_a_server_of_a_user_that_does_not_exist_names_the_call(inside: Callable[..., DaemonInside]) -> None:
    running = inside()
    daemon = running.daemon
    running.tool(text="start_server -uid 5\n")
    wait_until(lambda: any(line.startswith("Failed to start a server for user 5") for line in daemon.log()))
    (line,) = (line for line in daemon.log() if line.startswith("Failed"))
    assert "setuid is denied: user 5 does not exist in the daemon's user namespace (/proc/self/uid_map)" in line


def test_a_directory_for_a_user_that_does_not_exist_names_the_call(inside: Callable[..., DaemonInside]) -> None:
    done = inside("-p", "3").tool("server", "create", "other", "--uid", "5")
    assert done.returncode == 1
    assert "chown to user 5 is denied (Invalid argument): that user does not exist" in done.stdout


# --- the client is inside


@as_root
@pytest.mark.parametrize("under", [AS_ROOT, AS_SELF, WITHOUT_NUMBER])
@pytest.mark.parametrize("uid", [USER, NOBODY])
def test_roots_daemon_serves_clients_in_user_namespaces(
    daemon: DaemonProcess, uid: int, under: tuple[str, ...]
) -> None:
    with _client(daemon, uid, under) as client:
        assert client.connect().call("add") == RIGHT
        (server,) = daemon.servers()
        assert Path(f"/proc/{server}").stat().st_uid == uid


@as_root
@pytest.mark.parametrize("under", [AS_ROOT, AS_SELF, WITHOUT_NUMBER])
@pytest.mark.parametrize("uid", [USER, NOBODY])
def test_a_users_own_daemon_serves_their_clients_in_user_namespaces(
    daemon_of: Callable[[int], DaemonProcess], uid: int, under: tuple[str, ...]
) -> None:
    assert _first_steps(daemon_of(uid), uid, under)[0] == "CUDA_SUCCESS"


@as_root
@pytest.mark.parametrize("under", [AS_ROOT, AS_SELF, WITHOUT_NUMBER])
@pytest.mark.parametrize("uid", [USER, NOBODY, 0])
def test_another_users_daemon_is_trusted_in_no_user_namespace(
    daemon_of: Callable[[int], DaemonProcess], uid: int, under: tuple[str, ...]
) -> None:
    result, error = _first_steps(daemon_of(OTHER), uid, under)
    assert result == REFUSED
    assert f"the MPS control daemon runs as {WHO}" in error
    assert "is trusted: check CUDA_MPS_PIPE_DIRECTORY, or set PYMPSD_UNMAPPED_DAEMON=trust" in error


@as_root
def test_a_daemon_that_proves_nothing_can_be_trusted_by_name(daemon_of: Callable[[int], DaemonProcess]) -> None:
    daemon = daemon_of(OTHER)
    # It answers: the hello has reached it.
    refused = f"this MPS control daemon is run by user {OTHER} and serves that user only, not {USER}"
    assert refused in _first_steps(daemon, USER, AS_SELF, PYMPSD_UNMAPPED_DAEMON="trust")[1]
    assert refused not in _first_steps(daemon, USER, AS_SELF, PYMPSD_UNMAPPED_DAEMON="refuse")[1]
    assert _first_steps(daemon, USER, AS_SELF, PYMPSD_UNMAPPED_DAEMON="yes")[0] == "CUDA_ERROR_INVALID_VALUE"


@as_root
@pytest.mark.parametrize("under", [AS_ROOT, AS_SELF, WITHOUT_NUMBER])
def test_a_daemon_that_relays_roots_answer_is_not_trusted(daemon: DaemonProcess, under: tuple[str, ...]) -> None:
    folder = daemon.directory / "relay"
    folder.mkdir()
    os.chown(folder, OTHER, OTHER)
    relay = subprocess.Popen(
        [sys.executable, "-c", RELAY, str(folder / "control"), str(daemon.directory / "pipe" / "control")],
        stdout=subprocess.PIPE,
        text=True,
        user=OTHER,
        group=OTHER,
        extra_groups=[],
        cwd="/",
    )
    with kill_after(relay):
        assert relay.stdout is not None
        assert relay.stdout.readline() == "ready\n"
        assert _first_steps(daemon, USER, under, CUDA_MPS_PIPE_DIRECTORY=str(folder))[0] == REFUSED
        assert relay.stdout.readline() == "2 gone\n"


@as_root
def test_the_tools_find_roots_daemon_from_inside(daemon: DaemonProcess) -> None:
    done = _run_inside(daemon, PYMPSD, "get_server_list")
    assert (done.returncode, done.stderr) == (0, "")
    doctor = _run_inside(daemon, sys.executable, "-m", "pympsd_client")
    assert "devices by:    a server of the daemon" in doctor.stdout, doctor.stdout
    program = daemon.directory / "program.py"
    program.write_text("from cuda.bindings import driver\nprint(driver.cuInit(0)[0].name)\n")
    assert _run_inside(daemon, str(BIN / "pympsd-run"), str(program)).stdout == "CUDA_SUCCESS\n"


@as_root
def test_the_command_line_warns_of_a_daemon_that_proves_nothing(daemon_of: Callable[[int], DaemonProcess]) -> None:
    daemon = daemon_of(OTHER)
    done = _run_inside(daemon, PYMPSD, "get_server_list")
    assert done.returncode == 0
    assert "is run by a user without a number in this user namespace, and has not proved" in done.stderr
    assert "runs as a user without a number" in _run_inside(daemon, sys.executable, "-m", "pympsd_client").stdout


@as_root
def test_a_daemon_too_old_to_prove_anything_gets_the_commands_after_the_warning(directory: Path) -> None:
    """It closes the connection on which it is asked; here the test is the daemon."""
    command = [*AS_SELF, PYMPSD, "get_server_list"]
    environment = {"PATH": os.environ["PATH"], "CUDA_MPS_PIPE_DIRECTORY": str(directory / "pipe")}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/pipe/control")
        os.chmod(f"{directory}/pipe/control", 0o666)
        listener.listen()
        listener.settimeout(SECONDS)
        tool = subprocess.Popen(command, env=environment, user=USER, cwd="/", stderr=subprocess.PIPE, text=True)
        with kill_after(tool):
            with listener.accept()[0] as connection:
                assert connection.recv(100) == frames.encode(frames.CREDENTIALS_REQUEST)
            with listener.accept()[0] as connection:
                assert connection.recv(100).startswith(frames.encode(frames.OPERATOR_HELLO))
            assert tool.stderr is not None
            assert "has not proved that it is root's or yours" in tool.stderr.readline()
