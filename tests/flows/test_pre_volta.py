"""A machine older than Volta (P100): what is different there, with real processes (MPS documents, 2.3 and 3)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from processes import CLIENT, ClientProcess, DaemonProcess

pytestmark = pytest.mark.long

Start = Callable[..., ClientProcess]
MIB = 1 << 20
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
COPIED = "CUDA_SUCCESS right=True"


@pytest.fixture
def machine() -> str:
    """What the daemon's machine is made of."""
    return "P100"


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess], machine: str) -> DaemonProcess:
    """A daemon that runs on it."""
    running = make_daemon(PYMPSD_EMULATED_DEVICES=machine)
    assert running.start().returncode == 0
    return running


@pytest.fixture
def start(daemon: DaemonProcess) -> Iterator[Start]:
    """Start clients that know the application rules; ``within``: a command that starts the program."""
    client_processes: list[ClientProcess] = []

    def begin(*within: str, **environment: str) -> ClientProcess:
        process = subprocess.Popen(
            [*within, sys.executable, CLIENT],
            env={**daemon.environment, "PYMPSD_REQUIRE_MPS": "1", "PATH": os.environ["PATH"], **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        client_processes.append(ClientProcess(process))
        return client_processes[-1]

    yield begin
    for client in client_processes:
        client.end()


def small_shared_memory(size: str) -> list[str]:
    """A command that starts another in a mount namespace where /dev/shm has that many bytes."""
    mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
    return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
both = pytest.mark.parametrize("machine", ["P100", "V100"])
volta = pytest.mark.parametrize("machine", ["V100"])


# --- contexts and provisioning


@pytest.mark.long(but=["P100-16"])
@pytest.mark.parametrize(("machine", "most"), [("P100", 16), ("V100", 60)])
def test_a_device_has_fewer_connections(start: Start, most: int) -> None:
    client = start().connect()
    answers = [client.call("newctx 0") for _ in range(most)]
    assert answers == ["CUDA_SUCCESS"] * (most - 1) + ["CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"]


@pytest.mark.long(but=["P100"])
@both
def test_percentages_and_memory_limits_answer_as_ever_and_hold_on_volta_only(
    daemon: DaemonProcess, start: Start, machine: str
) -> None:
    commands = {
        "set_default_active_thread_percentage 50": "50.0\n",
        "get_default_active_thread_percentage": "50.0\n",
        "set_default_device_pinned_mem_limit 0 1G": "",
        "get_default_device_pinned_mem_limit 0": "1G\n",
    }
    client = start()
    for command, printed in commands.items():
        done = daemon.run([], f"{command}\n")
        assert (done.returncode, done.stdout) == (0, printed)
        assert ("have no effect" in done.stderr) == (machine == "P100")
        assert len(done.stderr.splitlines()) == (machine == "P100")
    client.connect()
    shown = client.call("sm"), client.call("mem").split()[1]
    assert shown == (("56", "16276") if machine == "P100" else ("40", "1024"))


# --- one address space


def test_a_stray_access_of_a_kernel_reaches_the_neighbour_and_a_call_does_not(start: Start) -> None:
    first, second = start().connect(), start().connect()
    address = first.call("hold 41")
    assert second.call(f"stray {address}") == "CUDA_SUCCESS CUDA_SUCCESS"
    assert first.call("value") == "CUDA_SUCCESS 42.0"
    assert second.call(f"peek {address}") == "CUDA_ERROR_INVALID_VALUE 0.0"
    assert first.call("add") == second.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


@volta
def test_a_stray_access_on_volta_is_a_fault(start: Start) -> None:
    first, second = start().connect(), start().connect()
    address = first.call("hold 41")
    # Its own allocations may have the same addresses: that is what address spaces of their own mean.
    assert second.call(f"stray {hex(int(address, 16) + (1 << 36))}") == "CUDA_SUCCESS CUDA_ERROR_ILLEGAL_ADDRESS"


# --- callbacks


def test_callbacks_are_refused(start: Start) -> None:
    client = start().connect()
    assert client.call("callbacks") == "CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_NOT_SUPPORTED []"
    assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


@volta
def test_host_functions_run_on_volta(start: Start) -> None:
    client = start().connect()
    assert client.call("callbacks") == "CUDA_SUCCESS CUDA_SUCCESS ['host function', 'callback']"


# --- page-locked memory


@as_root
def test_page_locked_memory_is_bounded_by_the_size_of_dev_shm(start: Start) -> None:
    client = start(*small_shared_memory("4m")).connect()
    assert client.call(f"pin {3 * MIB}") == COPIED
    assert client.call(f"pin {2 * MIB}") == OUT_OF_MEMORY
    output = client.call("error")
    assert "/dev/shm has: 4194304 bytes" in output
    assert "3145728 in use" in output
    assert client.call(f"register {MIB}") == OUT_OF_MEMORY, "an array seldom begins with a page: it lies in one more"
    assert client.call(f"register {MIB // 2}") == "CUDA_SUCCESS"
    assert client.call("unpin") == "CUDA_SUCCESS"
    assert client.call(f"pin {3 * MIB}") == COPIED, "what was freed counts again"
    assert client.call(f"pin {5 * MIB}") == OUT_OF_MEMORY
    assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


@as_root
@volta
def test_pinned_memory_is_unbounded_on_volta(start: Start) -> None:
    client = start(*small_shared_memory("4m")).connect()
    assert client.call(f"pin {5 * MIB}") == COPIED
    assert client.call(f"register {5 * MIB}") == "CUDA_SUCCESS"
