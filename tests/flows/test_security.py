"""What another user of the machine cannot do to a user's server, executors and clients (docs/security.md).

What a client can do to the others of its own server is fuzzed: tests/fuzz.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import SECONDS, ClientProcess, DaemonProcess, children_of, list_shared_memory, wait_until

from pympsd.wire import link_messages as link
from pympsd.wire import messages
from pympsd.wire.messages import ClientHello, Versions

EXECUTED = True
"""The processes that are attacked are what users have (see `prepared`)."""
OWNER, OTHER_USER = 10001, 10002
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")

TRIES = """
import ctypes, os, resource, signal, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def by_libc(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

room = ctypes.create_string_buffer(16)
here, there = Piece(ctypes.addressof(room), 16), Piece(0x400000, 16)
tries = {
    "mem": lambda: os.open(f"/proc/{pid}/mem", os.O_RDONLY),
    "mem to write": lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR),
    "maps": lambda: open(f"/proc/{pid}/maps").read(),
    "environ": lambda: open(f"/proc/{pid}/environ", "rb").read(),
    "fd": lambda: os.listdir(f"/proc/{pid}/fd"),
    "map_files": lambda: os.listdir(f"/proc/{pid}/map_files"),
    "root": lambda: os.listdir(f"/proc/{pid}/root"),
    "signal": lambda: os.kill(pid, signal.SIGSTOP),
    "pidfd signal": lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGTERM),
    "ptrace": lambda: by_libc("ptrace", 16, pid, None, None),
    "pidfd_getfd": lambda: by_libc("syscall", 438, os.pidfd_open(pid), 3, 0),
    "process_vm_readv": lambda: by_libc(
        "process_vm_readv", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0
    ),
    "prlimit": lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0)),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "affinity": lambda: os.sched_setaffinity(pid, [0]),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(f"{name}: done")
    except PermissionError:
        print(f"{name}: refused")
    except OSError as error:
        print(f"{name}: {error}")
"""
SAY = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(30)
sock.connect(sys.argv[1])
sock.sendall(bytes.fromhex(sys.argv[2]))
said = b""
while data := sock.recv(65536):
    said += data
print(said.hex())
"""
"""Send bytes to a socket; print the whole answer."""
TRIED = 15


@pytest.fixture
def owner(daemon: DaemonProcess) -> Iterator[ClientProcess]:
    """A client of user OWNER that computes."""
    client = daemon.client(OWNER).connect()
    assert client.call("add") == RIGHT
    yield client
    client.end()


def as_user(uid: int, program: str, *arguments: object) -> str:
    """Run a program as a user; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def processes_of(daemon: DaemonProcess, client: ClientProcess) -> dict[str, int]:
    """The processes that work for a client, by kind."""
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    return {"server": server, "executor": executor, "client": client.pid, "daemon": daemon.pid}


def test_a_user_can_neither_read_nor_signal_nor_trace_processes_of_another_user(
    daemon: DaemonProcess, owner: ClientProcess
) -> None:
    processes = processes_of(daemon, owner)
    assert {name: Path(f"/proc/{pid}").stat().st_uid for name, pid in processes.items()} == {
        "server": OWNER,
        "executor": OWNER,
        "client": OWNER,
        "daemon": 0,
    }
    for name, pid in processes.items():
        lines = as_user(OTHER_USER, TRIES, pid).splitlines()
        assert len(lines) == TRIED
        assert [line for line in lines if not line.endswith(": refused")] == [], name
    assert owner.call("add") == RIGHT
    # The tries are valid: on a process of its own the untrusted user succeeds.
    own = subprocess.Popen(["sleep", "60"], user=OTHER_USER, group=OTHER_USER, extra_groups=[])
    try:
        lines = as_user(OTHER_USER, TRIES, own.pid).splitlines()
        assert sum(line.endswith(": done") for line in lines) >= TRIED - 3, lines
    finally:
        own.kill()
        own.wait()


def sockets_of(pid: int) -> list[str]:
    """Return the names of a process's sockets in order, nothing for one that has none."""
    lines = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    inodes = {fields[6]: fields[7].rpartition("/")[2] for fields in lines if len(fields) == 8}
    paths = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed
            if inode := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd)):
                paths.append(inodes.get(inode[1], ""))
    return sorted(paths)


@pytest.mark.long
def test_sessions_links_and_streams_have_no_name_to_connect_to(daemon: DaemonProcess, owner: ClientProcess) -> None:
    processes = processes_of(daemon, owner)
    listening = ["control", "control_privileged"]
    # A connection that is still being closed has the name of the socket it came in by.
    wait_until(lambda: list(filter(None, sockets_of(daemon.pid))) == listening, "two named sockets, and no more")
    paths = {name: sockets_of(pid) for name, pid in processes.items()}
    assert sum(map(len, paths.values())) > 8
    assert [name for names in paths.values() for name in names if name] == listening


@pytest.mark.long
def test_shared_memory_has_no_name_and_belongs_to_its_user(daemon: DaemonProcess, owner: ClientProcess) -> None:
    executor = processes_of(daemon, owner)["executor"]
    links = [os.readlink(fd) for fd in Path(f"/proc/{executor}/fd").iterdir()]
    memories = [link for link in links if "memfd" in link]
    assert memories
    assert all(re.fullmatch(r"/memfd:pympsd-(bulk|memory-[0-9a-f]{32}) \(deleted\)", link) for link in memories)
    assert not [name for name in list_shared_memory() if "pympsd" in name]


@pytest.mark.long
def test_what_the_daemon_remembers_is_for_its_own_user(daemon: DaemonProcess, owner: ClientProcess) -> None:
    pipe = daemon.directory / "pipe"
    tried = as_user(
        OTHER_USER,
        """
import os, sys
for name, flags in (("pympsd.state", os.O_RDONLY), ("pympsd.state", os.O_WRONLY), ("new", os.O_WRONLY | os.O_CREAT)):
    try:
        os.open(os.path.join(sys.argv[1], name), flags)
        print("opened")
    except PermissionError:
        print("refused")
for name in ("pympsd.state", "control"):
    try:
        os.unlink(os.path.join(sys.argv[1], name))
        print("removed")
    except PermissionError:
        print("refused")
""",
        pipe,
    )
    assert tried.split() == ["refused"] * 5
    assert (pipe / "pympsd.state").exists()


@pytest.mark.long
@pytest.mark.parametrize("source", ["Server", "Control"])
def test_a_line_through_the_fifo_is_marked_other_whatever_it_imitates(
    daemon: DaemonProcess, owner: ClientProcess, source: str
) -> None:
    server = processes_of(daemon, owner)["server"]
    forged = f"[2026-01-01 00:00:00.000 {source} {server:>5}] Client 1 encountered a fatal GPU error."
    # Line ends of every kind, and an overlong beginning that would push the mark out of sight.
    lines = [forged, f"x\r{forged}", f"\x1b[2K{forged}", f"\u2028{forged}", " " * 5000 + forged]
    as_user(
        OTHER_USER,
        "import sys; open(sys.argv[1], 'wb', buffering=0).write(bytes.fromhex(sys.argv[2]))",
        daemon.directory / "pipe" / "log",
        ("\n".join(lines) + "\nthe end\n").encode().hex(),
    )
    log = daemon.directory / "log" / "server.log"
    wait_until(lambda: "the end" in log.read_text(), "the last line")
    written = log.read_text().split("\n")
    forged_lines = [line for line in written if "encountered a fatal GPU error" in line]
    assert len(forged_lines) == len(lines) - 1, "the overlong one is cut"
    assert all(re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} Other     0\] ", line) for line in forged_lines)
    assert all(line.isprintable() for line in written)
    assert not [line for line in written if line.startswith("[2026-01-01 00:00:00.000")]


def hello(pid: int) -> ClientHello:
    return ClientHello(Versions(), pid, "forged\n[2026 Server 1] x", 0, {})


@pytest.mark.long
def test_only_a_servers_own_link_speaks_for_it(daemon: DaemonProcess, owner: ClientProcess) -> None:
    processes = processes_of(daemon, owner)
    server = processes["server"]
    forged = (
        link.ServerHello(Versions(), server),
        link.StatusChanged("FAULT"),
        link.ClientGone(1),
        link.Terminated(1, 0),
        link.LogRecord("server_exiting", {}, 0.0),
        link.ContextReported(1, 1, 1, 0),
        link.ServerReturn(Versions(), server, "ACTIVE", False, 0),
        link.ServerSetup(OWNER, "", "emulated", (), 100.0, 0, {}),
        link.AdmitClient(1, owner.pid, OWNER, "", 0, OWNER, 0, {}),
        link.ShutDown(True),
        link.TerminateClient(1, owner.pid),
    )
    for message in forged:
        output = as_user(OTHER_USER, SAY, daemon.directory / "pipe" / "control", messages.encode(message).hex())
        assert bytes.fromhex(output) == b"", message
    with pytest.raises(AssertionError, match="PermissionError"):
        as_user(OTHER_USER, SAY, daemon.directory / "pipe" / "control_privileged", "00")
    assert "Exiting" not in daemon.log("server.log")
    assert daemon.run_command(f"get_server_status {server}") == "ACTIVE\n"
    assert daemon.run_command(f"get_client_list {server}") == f"{owner.pid}\n"
    assert processes_of(daemon, owner) == processes
    assert owner.call("add") == RIGHT


@pytest.mark.long
def test_after_the_daemons_death_another_user_is_neither_server_nor_daemon(
    daemon: DaemonProcess, owner: ClientProcess
) -> None:
    processes = processes_of(daemon, owner)
    daemon.kill()
    again = DaemonProcess(daemon.directory)
    try:
        assert again.start().returncode == 0
        forged = link.ServerReturn(Versions(), processes["server"], "ACTIVE", False, 0)
        control = daemon.directory / "pipe" / "control"
        output = bytes.fromhex(as_user(OTHER_USER, SAY, control, messages.encode(forged).hex()))
        assert output == b""
        assert "Unable to read new connection type information" in again.log()
        assert again.servers() == [processes["server"]]
        assert owner.call("add") == RIGHT
    finally:
        again.stop()


def test_a_clients_identity_is_the_kernels_whatever_it_claims(daemon: DaemonProcess, owner: ClientProcess) -> None:
    server = processes_of(daemon, owner)["server"]
    control = str(daemon.directory / "pipe" / "control")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control)
        connection.sendall(messages.encode(hello(owner.pid)))
        wait_until(lambda: any("Server is not ready, push" in line for line in daemon.log()[-3:]), "the request")
        pending = [line for line in daemon.log() if line.startswith(f"NEW CLIENT {os.getpid()} from user 0: ")]
        assert len(pending) == 1, "it waits for its own user's turn, under its own PID"
    assert daemon.run_command(f"get_client_list {server}") == f"{owner.pid}\n"
    assert owner.call("add") == RIGHT


@pytest.mark.long
def test_a_user_cannot_become_a_client_of_another_users_server(daemon: DaemonProcess, owner: ClientProcess) -> None:
    server = processes_of(daemon, owner)["server"]
    client_processes = daemon.client(OTHER_USER)
    try:
        client_processes.send("init")
        wait_until(
            lambda: any(f"{client_processes.pid} from user {OTHER_USER}" in line for line in daemon.log()),
            "the request",
        )
        for command in (f"terminate_client {server} {owner.pid}", f"shutdown_server {server} -f", "quit -t 0"):
            daemon.run([], command, uid=OTHER_USER)
        assert daemon.run_command(f"get_client_list {server}") == f"{owner.pid}\n"
        assert owner.call("add") == RIGHT
        assert not client_processes.has_result(), "it waits for its turn"
        owner.end()
        assert client_processes.result() == "CUDA_SUCCESS"
        (its_own,) = daemon.servers()
        assert its_own != server
        assert Path(f"/proc/{its_own}").stat().st_uid == OTHER_USER
    finally:
        client_processes.end()
