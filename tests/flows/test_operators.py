"""Operators: answers, privileges, servers of users, and hostile peers (recorded: start-up, multiuser)."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from processes import BIN, PYMPSD, SECONDS, DaemonProcess, alive, children_of, wait_until

from pympsd.control import RunningDaemon
from pympsd.wire import frames

NOBODY = pwd.getpwnam("nobody").pw_uid
OTHER = 12345
"""A uid without an entry in the user database."""


def ready(daemon: DaemonProcess) -> int:
    """Wait until the one server is ready; return its PID."""
    wait_until(lambda: any(line.endswith(": Ready") for line in daemon.log()), "a ready server")
    (server,) = daemon.servers()
    return server


def uid_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


def test_answers_of_several_commands_in_one_session(daemon: DaemonProcess) -> None:
    text = "get_server_list\nps\nfoo bar\nget_server_status 99\n\nps -p 7"
    assert daemon.run_command(text) == (
        'Server not found\nUnknown command "foo"\nServer 99 not found\nUnknown command ""\n'
        "Server 7 not found\nServer 7 not found\n\n"
    )
    wait_until(lambda: daemon.log()[-1] == "UI closed", "the end of the session")
    assert daemon.log()[5:] == [
        "Accepting connection...",
        "NEW UI",
        "Cmd:get_server_list",
        "Cmd:ps",
        "Server not found",
        "Cmd:foo bar",
        'Unknown command "foo"',
        "Cmd:get_server_status 99",
        "Server 99 not found",
        "Cmd:",
        'Unknown command ""',
        "Cmd:ps -p 7",
        "Server 7 not found",
        "Server 7 not found",
        "UI closed",
    ]


def test_a_refused_command_reports_what_is_allowed_on_stderr_only(daemon: DaemonProcess) -> None:
    done = daemon.run([], "frobnicate\n")
    assert (done.returncode, done.stdout) == (0, 'Unknown command "frobnicate"\n')
    assert "get_server_list" in done.stderr


def test_a_command_as_arguments(daemon: DaemonProcess) -> None:
    assert daemon.run(["get_server_list"]).returncode == 0
    done = daemon.run(["get_server_status", "5"])
    assert (done.returncode, done.stdout) == (1, "Server 5 not found\n")


def test_start_server_for_three_users_in_turn(daemon: DaemonProcess) -> None:
    for uid in (0, NOBODY, OTHER):
        assert daemon.run_command(f"start_server -uid {uid}\n") == ""
    # The first two have no client: each leaves as soon as it is ready, for the next user waits.
    wait_until(lambda: sum(line.endswith(": Ready") for line in daemon.log()) == 3, "three servers in turn")
    (server,) = daemon.servers()
    assert uid_of(server) == OTHER
    assert daemon.run_command(f"get_server_status {server}") == "ACTIVE\n"
    starts = [line.rpartition(" ")[2] for line in daemon.log() if line.startswith("Starting new server")]
    assert starts == ["0", str(NOBODY), str(OTHER)]


def test_start_server_for_the_active_user_changes_nothing(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0\n")
    server = ready(daemon)
    daemon.run_command("start_server -uid 0\n")
    assert daemon.servers() == [server]


def test_log_of_a_server(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0\n")
    server = ready(daemon)
    daemon.run_command("quit")
    assert [line for line in daemon.log() if str(server) in line] == [
        f"Starting new server {server} for user 0",
        f"NEW SERVER {server}: Ready",
        str(server),
        f"Try shutting down server {server}, backoff is disabled",
        f"Server {server} exited with status 0",
    ]
    lines = (daemon.directory / "log" / "server.log").read_text().splitlines()
    stamps = {line.split("]")[0].split(None, 2)[2] for line in lines}
    assert stamps == {f"{who} {server:>5}" for who in ("Server", "Other")}
    assert daemon.log("server.log")[-3:] == [
        "Server has been notified to shutdown",
        "Waiting for current clients to finish",
        "Exiting",
    ]


def test_quit_right_after_start_server(daemon: DaemonProcess) -> None:
    assert daemon.run_command("start_server -uid 0\nquit\n") == ""
    assert not alive(daemon.pid)
    assert daemon.log()[-2].endswith("exited with status 0")


def test_a_server_whose_daemon_dies_while_it_starts_is_the_next_ones(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0\n")
    (server,) = daemon.servers()
    daemon.kill()
    assert daemon.start().returncode == 0
    assert ready(daemon) == server


@pytest.mark.long
def test_a_server_its_user_has_stopped_gives_up_its_turn(daemon: DaemonProcess) -> None:
    daemon.run_command(f"start_server -uid {OTHER}\n")
    stopped = ready(daemon)
    os.kill(stopped, signal.SIGSTOP)
    daemon.run_command("start_server -uid 0\n")
    wait_until(lambda: f"Server {stopped} exited with status -9" in daemon.log(), "the stopped server's end")
    assert f"Server {stopped} does not respond; killing it" in daemon.log()
    wait_until(lambda: daemon.servers() != [], "the next server")
    assert uid_of(daemon.servers()[0]) == 0


def test_privileges_of_another_user(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0\n")
    server = ready(daemon)
    assert daemon.run_command("get_server_list", uid=NOBODY) == f"{server}\n"
    assert daemon.run_command("quit", uid=NOBODY) == "Not enough privilege to execute quit command\n"
    assert daemon.run_command("start_server -uid 0", uid=NOBODY) == (
        f"Insufficient privileges for UID {NOBODY}. Control deamon settings can only be modified by the user who "
        "started it or by the root user.\n"
    )
    assert alive(daemon.pid)


def test_a_users_own_daemon_serves_that_user_only(directory: Path) -> None:
    for name in ("pipe", "log"):
        os.chown(directory / name, OTHER, OTHER)
    daemon = DaemonProcess(directory, uid=OTHER)
    assert daemon.start().returncode == 0
    try:
        assert uid_of(daemon.pid) == OTHER
        refused = daemon.run(["--trust-daemon"], "start_server -uid 0\n", uid=0)
        assert (refused.returncode, refused.stdout) == (0, "")
        warning, reason = refused.stderr.splitlines()
        assert warning == (
            f"The MPS control daemon at {directory}/pipe/control is run by user {OTHER}, neither root nor you"
        )
        assert f"run by user {OTHER} and can serve only that user" in reason
        with pytest.warns(RuntimeWarning, match=f"^{warning}$"):
            assert RunningDaemon(f"{directory}/pipe").servers() == ()
        for option in ("--once", "--json"):
            assert daemon.run(["top", option], uid=0).stderr == f"{warning}\n"
        assert daemon.run([], "get_server_list\n").stderr == "", "it is that user's own"
        daemon.run_command(f"start_server -uid {OTHER}\n")
        assert uid_of(ready(daemon)) == OTHER
        # No privilege is needed for the exact words.
        assert (get_shown(daemon.pid)[1], get_shown(ready(daemon))[1]) == ([b"pympsd", b"-d"], [b"pympsd-server"])
        assert daemon.run_command("quit", uid=OTHER) == ""
        assert not alive(daemon.pid)
    finally:
        daemon.stop()


def test_server_environment_is_by_allow_list(make_daemon) -> None:  # type: ignore[no-untyped-def]
    daemon = make_daemon(SECRET_TOKEN="hush", PATH="/usr/bin:/bin")
    daemon.start()
    daemon.run_command(f"start_server -uid {NOBODY}\n")
    names = {entry.partition(b"=")[0] for entry in Path(f"/proc/{ready(daemon)}/environ").read_bytes().split(b"\0")}
    directories = {b"CUDA_MPS_PIPE_DIRECTORY", b"CUDA_MPS_LOG_DIRECTORY"}
    assert names == {b"", b"PATH", b"PYMPSD_KERNEL_CACHE", *directories}


def test_groups_of_a_server_started_by_command(daemon: DaemonProcess) -> None:
    daemon.run_command(f"start_server -uid {NOBODY}\n")
    status = Path(f"/proc/{ready(daemon)}/status").read_text()
    entry = pwd.getpwuid(NOBODY)
    expected = sorted(os.getgrouplist(entry.pw_name, entry.pw_gid))
    groups = status.partition("Groups:")[2].partition("\n")[0].split()
    assert sorted(map(int, groups)) == expected


def test_a_server_that_is_killed_is_noticed(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0\n")
    server = ready(daemon)
    os.kill(server, 9)
    wait_until(lambda: f"Server {server} exited with status -9" in daemon.log(), "the log line")
    assert daemon.run_command("get_server_list") == ""


# --- the names that processes show (C9)


def get_shown(pid: int) -> tuple[str, list[bytes]]:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n"), words


def test_c9_processes_show_as_pympsd(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0\n")
    assert get_shown(daemon.pid) == ("pympsd", [b"pympsd", b"-d"])
    assert get_shown(ready(daemon)) == ("pympsd-server", [b"pympsd-server"])


@pytest.fixture
def vendor_named(directory: Path):  # type: ignore[no-untyped-def]
    """A daemon started under the vendor's name, through the links that --link-nvidia-names makes."""
    links = directory / "bin"
    links.mkdir()
    subprocess.run([BIN / "pympsd", "--link-nvidia-names", links], check=True)
    daemon = DaemonProcess(directory, command=str(links / "nvidia-cuda-mps-control"))
    assert daemon.start().returncode == 0
    yield daemon
    daemon.stop()


def test_c9_processes_show_under_the_vendors_names(vendor_named: DaemonProcess) -> None:
    daemon = vendor_named
    daemon.run_command("start_server -uid 0\n")
    server = ready(daemon)
    assert get_shown(daemon.pid) == ("nvidia-cuda-mps", [b"nvidia-cuda-mps-control", b"-d"])
    assert get_shown(server) == ("nvidia-cuda-mps", [b"nvidia-cuda-mps-server"])
    assert (daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").stat().st_mode & 0o777 == 0o666, "recorded"

    def find_pids(*words: str) -> list[int]:
        return [int(pid) for pid in subprocess.run(words, capture_output=True, text=True).stdout.split()]

    assert daemon.pid in find_pids("pgrep", "-fx", "nvidia-cuda-mps-control -d")
    assert daemon.pid in find_pids("pidof", "nvidia-cuda-mps-control")
    client = daemon.client().connect()
    assert find_pids("pgrep", "-P", str(server), "-fx", "pympsd-executor") == children_of(server)
    assert find_pids("pgrep", "-f", "-s", str(os.getsid(server)), "^nvidia-cuda-mps-server") == [server]
    client.end()
    assert server in find_pids("pidof", "nvidia-cuda-mps-server")
    ps = subprocess.run(["ps", "auxww"], capture_output=True, text=True, check=True).stdout.splitlines()
    eleventh = {int(fields[1]): fields[10] for fields in (line.split(None, 10) for line in ps[1:])}
    assert eleventh[daemon.pid].split() == ["nvidia-cuda-mps-control", "-d"]
    assert daemon.run_command("quit") == ""
    assert not alive(daemon.pid)


def test_servers_are_children_of_the_daemon(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0\n")
    server = ready(daemon)
    assert set(children_of(daemon.pid)) == {server, daemon.keeper()}


# --- hostile peers


def send(daemon: DaemonProcess, data: bytes, name: str = "control") -> bytes:
    """Connect, send bytes, and return the whole answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(SECONDS)
        sock.connect(str(daemon.directory / "pipe" / name))
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while more := sock.recv(65536):
            answer += more
        return answer


BAD_WORDS = {
    "garbage": b"GET / HTTP/1.1\r\n\r\n" * 10,
    "half a header": b"\x01\x00",
    "half a frame": frames.encode(frames.OPERATOR_HELLO, b"x" * 100)[:50],
    "over the maximum": (frames.MAX_BODY + 1).to_bytes(4, "little") + b"\x01\x00\x00\x00",
    "an unknown kind": frames.encode(9999, b"hello"),
    "a malformed hello": frames.encode(frames.FIRST_MESSAGE_KIND, b"\xc1"),
    "descriptors announced": frames.encode(frames.OPERATOR_HELLO, b"", 3),
}


@pytest.mark.long(but=["a malformed hello"])
@pytest.mark.parametrize("words", BAD_WORDS.values(), ids=BAD_WORDS.keys())
def test_a_peer_that_talks_nonsense_loses_its_connection_and_nothing_else(
    daemon: DaemonProcess, words: bytes
) -> None:
    assert send(daemon, words) == b""
    wait_until(lambda: "Unable to read new connection type information" in daemon.log(), "the log line")
    assert daemon.run_command("get_server_list") == ""


def test_silent_peers_delay_no_other(daemon: DaemonProcess) -> None:
    silent = []
    try:
        for _ in range(200):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(daemon.directory / "pipe" / "control"))
            silent.append(sock)
        silent[0].send(frames.encode(frames.OPERATOR_HELLO)[:3])
        assert daemon.run_command("ps") == "Server not found\n"
    finally:
        for sock in silent:
            sock.close()


def test_clients_are_refused_at_the_privileged_socket(daemon: DaemonProcess) -> None:
    from pympsd.wire.messages import ClientHello, Versions, encode

    hello = encode(ClientHello(Versions(), 1, "x", 1, {}))
    assert send(daemon, hello, "control_privileged") == b""
    assert daemon.servers() == []


def test_a_client_of_another_version_gets_the_reason(daemon: DaemonProcess) -> None:
    from pympsd.wire import messages
    from pympsd.wire.framing import FrameReader
    from pympsd.wire.messages import Versions

    hello = messages.encode(messages.ClientHello(Versions(oldest=90, newest=99), 1, "x", 1, {}))
    (frame,) = FrameReader().feed(send(daemon, hello))
    refused = messages.decode(frame)
    assert isinstance(refused, messages.Refused)
    assert "versions 90 to 99" in refused.reason


def test_long_and_odd_lines(daemon: DaemonProcess) -> None:
    odd = "é\udcff x\nget_server_list\0 junk\n" + "y" * 200_000 + "\n\tget_server_list  \r\n"
    done = subprocess.run(
        [PYMPSD],
        env=daemon.environment,
        input=odd.encode("utf-8", "surrogateescape"),
        capture_output=True,
        timeout=SECONDS,
    )
    lines = done.stdout.split(b"\n")
    assert done.returncode == 0
    assert lines[0] == b'Unknown command "\xc3\xa9\xff"'
    assert lines[1].startswith(b'Unknown command "yyyy')
    assert len(lines[1]) == len('Unknown command ""') + 64 * 1024
    assert lines[2:] == [b""]


def test_the_fifo_is_read_and_marked_other(daemon: DaemonProcess) -> None:
    with open(daemon.directory / "pipe" / "log", "wb", buffering=0) as fifo:
        fifo.write(b"hello \x1b[31m there\n")
    wait_until(lambda: any("hello" in line for line in daemon.log("server.log")), "the line")
    (line,) = (daemon.directory / "log" / "server.log").read_text().splitlines()
    assert " Other     0] hello  [31m there" in line
