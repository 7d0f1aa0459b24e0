"""Programs in C under pympsd-run are clients like those in Python: they share a device, its faults and its limits."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import BIN, SECONDS, ClientProcess, DaemonProcess, wait_until

import pympsd_client.native

Make = Callable[..., ClientProcess]
LIBRARY = Path(pympsd_client.native.__path__[0]) / "libraries" / "libcuda.so.1"
SOURCE = Path(__file__).parents[1] / "support" / "native_client.c"
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
GIB = 1 << 30

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the library and the programs take a compiler")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client in C."""
    program = tmp_path_factory.mktemp("native") / "native_client"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", program, SOURCE, LIBRARY], check=True, timeout=SECONDS)
    return program


@pytest.fixture
def make_native(daemon: DaemonProcess, program: Path) -> Iterator[Make]:
    """Start clients in C; they are killed after the test."""
    clients: list[ClientProcess] = []

    def make(**more: str) -> ClientProcess:
        environment = {**daemon.environment, "PATH": "/usr/bin:/bin", "PYMPSD_REQUIRE_MPS": "1", **more}
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen([BIN / "pympsd-run", program], env=environment, text=True, **streams)
        clients.append(ClientProcess(process))
        return clients[-1]

    yield make
    for client in clients:
        client.process.kill()
        client.process.communicate(timeout=SECONDS)


def pids(daemon: DaemonProcess) -> list[int]:
    """Return the PIDs of the clients in ps."""
    return sorted(int(line.split()[0]) for line in daemon.run_command("ps").splitlines()[1:])


def test_two_native_programs_and_one_in_python_share_a_device(
    daemon: DaemonProcess, make_native: Make, make_client: Make
) -> None:
    quarter = make_native(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25", CUDA_MPS_CLIENT_PRIORITY="1").connect()
    small = make_native(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G").connect()
    python = make_client().connect()
    clients = (quarter, small, python)
    (server,) = daemon.servers()
    assert pids(daemon) == sorted(client.pid for client in clients)

    # Limits and priorities are each client's own.
    records = json.loads(daemon.run_command("ps --json"))
    assert {record["pid"]: record["priority"] for record in records} == {quarter.pid: 1, small.pid: 0, python.pid: 0}
    assert [client.call("sm") for client in clients] == ["32", "132", "132"]
    assert small.call("mem").split()[1] == "1024"
    assert small.call(f"alloc {2 * GIB}").split()[0] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert quarter.call(f"alloc {2 * GIB}").split()[0] == "CUDA_SUCCESS"
    for client in clients:
        client.send("add")
    assert [client.result() for client in clients] == [RIGHT] * 3

    # A daemon that is killed is not missed; the next one has the clients.
    daemon.kill()
    assert [client.call("add") for client in clients] == [RIGHT] * 3
    assert daemon.start().returncode == 0
    assert daemon.servers() == [server]
    assert pids(daemon) == sorted(client.pid for client in clients)

    # terminate_client ends the contexts of one.
    assert daemon.run_command(f"terminate_client {server} {small.pid}") == "0\n"
    assert small.call("sync") == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert [client.call("add") for client in (quarter, python)] == [RIGHT] * 2
    small.end()
    assert small.process.returncode == 0

    # A fatal fault reaches the neighbours on the device; then there is a new start.
    assert quarter.call("illegal") == "CUDA_SUCCESS"
    assert quarter.call("sync") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert python.first_error() == "CUDA_ERROR_ILLEGAL_ADDRESS"
    python.end()
    quarter.end(signal.SIGTERM)
    assert quarter.process.returncode == -signal.SIGTERM, "no handler of Python's is in the way"
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "the recovery")
    assert make_native().connect().call("add") == RIGHT


def test_a_python_without_pympsd_loads_the_library_itself(daemon: DaemonProcess, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True, timeout=SECONDS)
    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    done = subprocess.run(
        [BIN / "pympsd-run", tmp_path / "bin" / "python3", "-c", code],
        env={**daemon.environment, "PYMPSD_REQUIRE_MPS": "1"}, cwd=tmp_path,
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.long
def test_a_daemon_that_a_routed_program_starts_is_not_routed_and_neither_is_its_server(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = make_daemon(PYMPSD_ROUTING="1", LD_LIBRARY_PATH=f"{LIBRARY.parent}:/opt/other")
    assert daemon.start().returncode == 0
    with_server = daemon.client().connect()
    environment = Path(f"/proc/{daemon.servers()[0]}/environ").read_text().split("\0")
    assert "LD_LIBRARY_PATH=/opt/other" in environment
    assert not [entry for entry in environment if "PYMPSD_ROUTING" in entry or str(LIBRARY.parent) in entry]
    with_server.end()
