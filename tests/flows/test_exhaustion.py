"""Running out of processes, memory, disk or shared memory: one request fails and reports why, all else continues.

And servers that die at their start. (File descriptors: test_descriptors.)
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_disk import Disk
from processes import PYMPSD, SECONDS, ClientProcess, DaemonProcess, alive, children_of, wait_until

MakeDaemon = Callable[..., DaemonProcess]
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
OTHER = 10001
PROCESSES = "raise the limit of processes and threads of the user (ulimit -u)"
NO_SPACE = "No space left on device"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users and mounts disks"),
    pytest.mark.long,
]


def limit(pid: int, which: int, soft: int) -> None:
    """Change a process's soft limit, as its own user may at any time."""
    change = f"import resource as r; r.prlimit({pid}, {which}, ({soft}, r.prlimit({pid}, {which})[1]))"
    owner = Path(f"/proc/{pid}").stat().st_uid
    subprocess.run([sys.executable, "-c", change], user=owner or None, check=True, timeout=SECONDS)


def lift_limit(pid: int, which: int) -> None:
    """Take the soft limit away again (no test sets a hard one)."""
    limit(pid, which, resource.getrlimit(which)[1])


def no_more_memory(pid: int, room: int) -> None:
    """Let a process map only that many bytes more."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    limit(pid, resource.RLIMIT_AS, pages * resource.getpagesize() + room)


@pytest.fixture
def clients() -> Iterator[list[ClientProcess]]:
    """End the clients in the list after the test; requested before the daemon's fixture, so that it ends later."""
    client_processes: list[ClientProcess] = []
    yield client_processes
    for client in client_processes:
        if client.process.poll() is None:
            client.end(signal.SIGKILL)


@pytest.fixture
def own(directory: Path) -> Iterator[DaemonProcess]:
    """A daemon of user OTHER that runs (root's processes are not limited in number)."""
    for name in ("pipe", "log"):
        os.chown(directory / name, OTHER, OTHER)
    daemon = DaemonProcess(directory, uid=OTHER)
    assert daemon.start().returncode == 0
    yield daemon
    daemon.stop()


# --- servers that die at their start


DYING = """
import os, runpy, sys
from pympsd_server.service import client_session, run

def die(*_):
    print("the library libpossible.so has gone", file=sys.stderr, flush=True)
    os._exit(3)

async def die_later(*_):
    die()

if {at_admission}:
    client_session.ClientSession.run = die_later
else:
    run.register_devices = die
sys.argv = sys.argv[2:]  # from "-c -I SERVER ..."
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A server that behaves like a real one until it ends at a certain moment."""


class Interpreter:
    """The interpreter that a daemon runs with and starts its servers with; it can be broken and mended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "bin").mkdir()
        (directory / "lib").symlink_to(Path(sys.prefix) / "lib")
        (directory / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
        self.path = directory / "bin" / "python3"
        self.mend()
        self.command = directory / "pympsd"
        self.command.write_text(f'#!/bin/sh\nexec {self.path} -m pympsd "$@"\n')
        self.command.chmod(0o755)

    def _replace(self, make: Callable[[Path], None]) -> None:
        new = self.path.with_name("new")
        make(new)
        new.rename(self.path)

    def mend(self) -> None:
        """Make the interpreter work."""
        self._replace(lambda path: path.symlink_to(os.path.realpath(sys.executable)))

    def break_it(self, deaths: int | None = None) -> None:
        """Let every program end immediately with a complaint; after that many deaths the interpreter works."""
        self._break("echo the library libpossible.so is not there >&2\nexit 3\n", deaths)

    def break_later(self, moment: str, deaths: int | None = None) -> None:
        """Servers register, and die while they initialise or when they get their first client ("admission")."""
        program = self.directory / "dying.py"
        program.write_text(DYING.format(at_admission=moment == "admission"))
        self._break(f'exec {self.real} -c "$(cat {program})" "$@"\n', deaths)

    def _break(self, words: str, deaths: int | None) -> None:
        tried = self.directory / "tried"
        tried.mkdir(mode=0o777, exist_ok=True)
        tried.chmod(0o777)
        again = "" if deaths is None else f'[ $(ls {tried} | wc -l) -gt {deaths} ] && exec {self.real} "$@"\n'

        def make(path: Path) -> None:
            path.write_text(f"#!/bin/sh\n: > {tried}/$$\n{again}{words}")
            path.chmod(0o755)

        self._replace(make)

    @property
    def real(self) -> Path:
        """An interpreter of the same folders that always works."""
        path = self.path.with_name("real")
        if not path.exists():
            path.symlink_to(os.path.realpath(sys.executable))
        return path

    @property
    def tries(self) -> int:
        """How many servers were tried since it was broken."""
        return len(list((self.directory / "tried").iterdir()))


@pytest.fixture
def interpreter(directory: Path) -> Interpreter:
    """An interpreter for the daemon."""
    return Interpreter(directory)


@pytest.fixture
def fragile(interpreter: Interpreter, make_daemon: MakeDaemon) -> DaemonProcess:
    """A daemon that runs, and starts its servers with the interpreter."""
    daemon = make_daemon()
    daemon.command = str(interpreter.command)
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD
    return daemon


@pytest.mark.long
def test_a_server_that_dies_at_its_start_is_tried_again_and_the_client_served(
    clients: list[ClientProcess], fragile: DaemonProcess, interpreter: Interpreter
) -> None:
    interpreter.break_it(deaths=2)
    client = fragile.client()
    clients.append(client)
    assert client.connect().call("add") == RIGHT
    assert interpreter.tries == 3
    reason = (
        "the MPS server of user 0 ended with status 3 before it was ready: the library libpossible.so is not there"
    )
    log = fragile.log()
    assert f"{reason}; trying again in 0.1 s" in log
    assert f"{reason}; trying again in 0.5 s" in log
    assert log.index(f"{reason}; trying again in 0.1 s") < log.index(f"{reason}; trying again in 0.5 s")
    assert fragile.log("server.log").count("the library libpossible.so is not there") == 2


@pytest.mark.long
def test_a_server_that_always_dies_is_given_up_and_all_waiting_clients_get_the_reason(
    clients: list[ClientProcess], fragile: DaemonProcess, interpreter: Interpreter
) -> None:
    interpreter.break_it()
    waiting = [fragile.client() for _ in range(3)]
    clients.extend(waiting)
    for client in waiting:
        client.send("init")
    for client in waiting:
        assert client.result() == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        assert "libpossible.so is not there; see server.log" in client.call("error")
    assert interpreter.tries % 4 == 0, "each client that comes too late for the last try has four of its own"
    assert any(line.startswith("Giving up after 4 attempts to start a server for user 0: ") for line in fragile.log())
    assert fragile.run_command("get_server_list") == ""
    interpreter.mend()
    assert waiting[0].connect().call("add") == RIGHT


MOMENTS = {
    "initialising": "before it was ready",
    "admission": "after it was ready but before it served anybody",
}


def pauses(daemon: DaemonProcess, reason: str) -> list[str]:
    """Return for which pauses control.log reports this reason, in order."""
    lines = [line.partition(f"{reason}; trying again in ") for line in daemon.log()]
    return [pause for before, result, pause in lines if result and not before]


@pytest.mark.long(but=["admission"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_server_that_dies_later_is_tried_again_and_the_client_served(
    clients: list[ClientProcess], fragile: DaemonProcess, interpreter: Interpreter, moment: str
) -> None:
    interpreter.break_later(moment, deaths=2)
    client = fragile.client()
    clients.append(client)
    assert client.connect().call("add") == RIGHT
    assert interpreter.tries == 3
    died = f"the MPS server of user 0 ended with status 3 {MOMENTS[moment]}: the library libpossible.so has gone"
    assert pauses(fragile, died) == ["0.1 s", "0.5 s"]
    assert fragile.log("server.log").count("the library libpossible.so has gone") == 2


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_server_that_always_dies_later_is_given_up_and_all_waiting_clients_get_the_reason(
    clients: list[ClientProcess], fragile: DaemonProcess, interpreter: Interpreter, moment: str
) -> None:
    interpreter.break_later(moment)
    *waiting, late = (fragile.client() for _ in range(4))
    clients.extend((*waiting, late))
    # All have begun to run: what follows is a matter of seconds.
    assert [client.call("pid") for client in clients] == [str(client.pid) for client in clients]
    for client in waiting:
        client.send("init")
    wait_until(lambda: interpreter.tries > 0, "the first try")
    # Operators are answered.
    assert fragile.run([], "ps").returncode == 0
    for client in waiting:
        assert client.result() == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        assert f"{MOMENTS[moment]}: the library libpossible.so has gone; see server.log" in client.call("error")
    died = f"the MPS server of user 0 ended with status 3 {MOMENTS[moment]}: the library libpossible.so has gone"
    assert pauses(fragile, died)[:3] == ["0.1 s", "0.5 s", "2 s"]
    assert f"Giving up after 4 attempts to start a server for user 0: {died}" in fragile.log()
    if moment == "admission":
        # The clients came back to each new server, so this user gets no server and no client served for a while.
        assert interpreter.tries == 4
        assert late.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        assert "it was tried 4 times; try again in 5 s" in late.call("error")
        assert any(line.startswith(f"Refusing client {late.pid} from user 0: ") for line in fragile.log())
        assert interpreter.tries == 4
    interpreter.mend()
    wait_until(lambda: waiting[0].call("init") == "CUDA_SUCCESS", "the end of the pause")
    assert waiting[0].connect().call("add") == RIGHT


def test_a_quit_between_two_tries_refuses_the_client_and_ends(
    clients: list[ClientProcess], fragile: DaemonProcess, interpreter: Interpreter
) -> None:
    interpreter.break_it()
    client = fragile.client()
    clients.append(client)
    client.send("init")
    wait_until(lambda: any("trying again in 2 s" in line for line in fragile.log()), "the third death")
    fragile.run_command("quit")
    assert client.result() == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    # On a slow machine the last try may come before the quit; then the reason is the number of tries.
    assert re.search("is quitting|tried 4 times", client.call("error"))
    assert not alive(fragile.pid)


# --- processes and threads


def test_a_daemon_that_can_start_no_process_refuses_one_client(
    clients: list[ClientProcess], own: DaemonProcess
) -> None:
    # Not for lack of memory: the C library keeps the stack of the thread that started the keeper.
    limit(own.pid, resource.RLIMIT_NPROC, 1)
    refused = own.client()
    clients.append(refused)
    assert refused.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    assert PROCESSES in refused.call("error")
    assert any(
        line.startswith(f"Failed to start a server for user {OTHER}: ") and PROCESSES in line for line in own.log()
    )
    assert own.run_command("get_server_list") == ""
    lift_limit(own.pid, resource.RLIMIT_NPROC)
    assert refused.connect().call("add") == RIGHT, "the same process can try again"


@pytest.mark.long(but=["memory"])
@pytest.mark.parametrize("which", [resource.RLIMIT_NPROC, resource.RLIMIT_AS], ids=["processes", "memory"])
def test_a_server_that_can_start_no_process_fails_one_context(
    clients: list[ClientProcess], daemon: DaemonProcess, which: int
) -> None:
    client = daemon.client(OTHER)
    clients.append(client)
    assert client.call("init") == "CUDA_SUCCESS"
    (server,) = daemon.servers()
    if which == resource.RLIMIT_NPROC:
        limit(server, which, 1)
    else:
        no_more_memory(server, 1 << 20)  # a thread's stack has 8 MiB
    assert client.call("ctx 0") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert "the executor of device 0 could not be started" in client.call("error")
    assert PROCESSES in client.call("error")
    wait_until(lambda: any(PROCESSES in line for line in daemon.log("server.log")), "a line in server.log")
    lift_limit(server, which)
    assert client.call("ctx 0") == "CUDA_SUCCESS"
    assert client.call("add") == RIGHT
    assert daemon.servers() == [server]


@pytest.mark.long
def test_an_executor_that_can_start_no_thread_fails_one_context(
    clients: list[ClientProcess], daemon: DaemonProcess
) -> None:
    first, second = daemon.client(OTHER), daemon.client(OTHER)
    clients.extend((first, second))
    assert first.connect().call("add") == RIGHT
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    descriptors = len(os.listdir(f"/proc/{executor}/fd"))
    limit(executor, resource.RLIMIT_NPROC, 1)
    assert second.call("init") == "CUDA_SUCCESS"
    for _ in range(3):
        assert second.call("ctx 0") == "CUDA_ERROR_OPERATING_SYSTEM"
        assert PROCESSES in second.call("error")
    wait_until(lambda: len(os.listdir(f"/proc/{executor}/fd")) == descriptors, "the end of what it had opened")
    assert first.call("add") == RIGHT
    lift_limit(executor, resource.RLIMIT_NPROC)
    assert second.call("ctx 0") == "CUDA_SUCCESS"
    assert second.call("add") == RIGHT
    assert children_of(server) == [executor]


# --- memory, and shared memory


@pytest.mark.long(but=["shared memory"])
@pytest.mark.parametrize(
    ("which", "code", "reason"),
    [
        (resource.RLIMIT_AS, "CUDA_ERROR_OUT_OF_MEMORY", "bytes of address space: "),
        (resource.RLIMIT_FSIZE, "CUDA_ERROR_OPERATING_SYSTEM", "no file for the memory of a client: File too large"),
    ],
    ids=["address space", "shared memory"],
)
def test_an_executor_without_memory_for_another_client_fails_one_context(
    clients: list[ClientProcess], daemon: DaemonProcess, which: int, code: str, reason: str
) -> None:
    first, second = daemon.client(), daemon.client()
    clients.extend((first, second))
    assert first.connect().call("add") == RIGHT
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    if which == resource.RLIMIT_AS:
        no_more_memory(executor, 64 << 20)
    else:
        limit(executor, which, 1 << 20)
    assert second.call("init") == "CUDA_SUCCESS"
    assert second.call("ctx 0") == code
    assert reason in second.call("error")
    assert first.call("add") == RIGHT
    wait_until(lambda: any(reason in line for line in daemon.log("server.log")), "a line in server.log")
    lift_limit(executor, which)
    assert second.call("ctx 0") == "CUDA_SUCCESS"
    assert second.call("add") == RIGHT
    assert children_of(server) == [executor]


# --- disks


def test_a_full_log_disk_costs_lines_and_reports_how_many(
    clients: list[ClientProcess], make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon()
    disk = Disk(daemon, daemon.directory / "log", "size=64k")
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD
    client = daemon.client()
    clients.append(client)
    assert client.connect().call("add") == RIGHT
    ballast = disk.fill()
    log = disk.seen / "control.log"

    def full() -> bool:
        # What is left of a page is still to be had.
        before = log.stat().st_size
        daemon.run_command("get_server_list\n" * 8)
        return log.stat().st_size == before

    wait_until(full, "no more room for a line")
    daemon.run_command("get_server_list\n" * 10)
    assert client.call("add") == RIGHT
    (server,) = daemon.servers()
    assert daemon.run_command(f"get_server_status {server}") == "ACTIVE\n"
    ballast.unlink()
    daemon.run_command("ps")
    lines = log.read_text().splitlines()
    (lost,) = [line for line in lines if line.endswith(f" log lines: {NO_SPACE}")]
    assert re.fullmatch(r"\[\S+ \S+ Control +\d+\] Could not write (\d+) .*", lost), "it stands on a line of its own"
    assert int(lost.partition("Could not write ")[2].split()[0]) > 10
    torn = [line for line in lines if not re.match(r"\[\d{4}-\d\d-\d\d \S+ Control +\d+\] ", line)]
    assert len(torn) <= 1
    assert lines[-1].endswith("UI closed") or any(line.endswith("Cmd:ps") for line in lines[lines.index(lost) :])


@pytest.mark.long(but=["3-/control_privileged"])
@pytest.mark.parametrize(
    ("inodes", "file"), [(1, ""), (2, "/control"), (3, "/control_privileged"), (5, "/nvidia-cuda-mps-control.pid")]
)
def test_a_full_pipe_directory_keeps_the_daemon_from_starting_and_reports_it(
    make_daemon: MakeDaemon, inodes: int, file: str
) -> None:
    daemon = make_daemon()
    pipe = daemon.directory / "pipe"
    Disk(daemon, pipe, f"size=64k,nr_inodes={inodes}")
    done = daemon.run(["-d"])
    assert done.returncode == 1
    assert done.stderr.startswith(f"{pipe}{file}: {NO_SPACE}; ")
    assert "Traceback" not in done.stderr
    daemon.command = PYMPSD
    assert daemon.start().returncode == 0, "on a disk with room"


def _read_kept(disk: Disk) -> dict[str, Any]:
    """Return what a next daemon would know."""
    document: dict[str, Any] = json.loads((disk.seen / "pympsd.state").read_bytes())["remembered"]
    return document


def test_a_pipe_directory_that_fills_up_costs_only_what_a_next_daemon_would_know(
    clients: list[ClientProcess], make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon()
    disk = Disk(daemon, daemon.directory / "pipe", "size=64k")
    others = set(children_of(os.getpid()))
    done = daemon.run(["-d"])
    assert (done.returncode, done.stderr) == (0, "")
    (daemon.pid,) = (pid for pid in children_of(os.getpid()) if pid not in others and alive(pid))
    daemon.command = PYMPSD
    # Out here the directory is another one: the daemon is reached by the path that it sees.
    through = DaemonProcess(daemon.directory)
    through.settings = {"CUDA_MPS_PIPE_DIRECTORY": str(disk.seen)}
    ballast = disk.fill()
    client = through.client()
    clients.append(client)
    try:
        assert client.connect().call("add") == RIGHT
        assert any(f"Cannot write the state file ({NO_SPACE})" in line for line in daemon.log())
        assert not _read_kept(disk)["servers"]
        ballast.unlink()
        through.run_command("set_default_active_thread_percentage 50")
        assert _read_kept(disk)["servers"], "kept as soon as there is room"
    finally:
        os.kill(daemon.pid, signal.SIGTERM)
        os.waitpid(daemon.pid, 0)
        daemon.pid = 0  # reaped


def test_a_full_dev_shm_does_no_harm(clients: list[ClientProcess], make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    disk = Disk(daemon, Path("/dev/shm"), "size=4k")
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD
    disk.fill()
    client = daemon.client()
    clients.append(client)
    assert client.connect().call("add") == RIGHT
