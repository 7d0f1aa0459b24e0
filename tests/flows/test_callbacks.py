"""Host functions of clients that share a server: a slow one is its client's own affair, and dies with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from processes import ClientProcess, DaemonProcess, wait_until

RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
ENDLESS = "CUDA_SUCCESS begun=True CUDA_ERROR_NOT_READY"
QUICK = "CUDA_SUCCESS begun=True CUDA_SUCCESS"
MakeClient = Callable[..., ClientProcess]


def free_mebibytes(client: ClientProcess) -> int:
    return int(client.call("mem").split()[0])


def test_a_slow_function_delays_no_other_client_and_its_clients_death_frees_everything(
    daemon: DaemonProcess, make_client: MakeClient
) -> None:
    slow, other = make_client().connect(), make_client().connect()
    before = free_mebibytes(other)
    assert slow.call(f"alloc {1 << 30}").startswith("CUDA_SUCCESS")
    assert free_mebibytes(other) <= before - 1024
    assert slow.call("hostfunc endless") == ENDLESS
    assert other.call("hostfunc quick") == QUICK
    assert other.call("add") == RIGHT
    assert slow.call("hostfunc quick") == QUICK
    os.kill(slow.pid, signal.SIGKILL)
    (server,) = daemon.servers()
    wait_until(
        lambda: daemon.run_command(f"get_client_list {server}") == f"{other.pid}\n", "the end of the slow client"
    )
    wait_until(lambda: free_mebibytes(other) > before, "its memory")
    assert other.call("hostfunc quick") == QUICK
    assert other.call("add") == RIGHT


def test_a_client_with_a_slow_function_can_be_terminated(daemon: DaemonProcess, make_client: MakeClient) -> None:
    slow, other = make_client().connect(), make_client().connect()
    assert slow.call("hostfunc endless") == ENDLESS
    slow.send("sync")
    assert other.call("add") == RIGHT
    assert not slow.has_result()
    (server,) = daemon.servers()
    daemon.run_command(f"terminate_client {server} {slow.pid}")
    assert slow.result() == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert other.call("hostfunc quick") == QUICK


def test_a_client_with_a_slow_function_ends_by_itself(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client = make_client().connect()
    assert client.call("hostfunc endless") == ENDLESS
    client.end()
    assert client.process.returncode == 0
    (server,) = daemon.servers()
    wait_until(lambda: daemon.run_command(f"get_client_list {server}") == "", "the client's end")


def test_pre_volta_clients_have_no_callbacks(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="P100")
    assert daemon.start().returncode == 0
    client = daemon.client().connect()
    try:
        for kind in ("quick", "endless"):
            assert client.call(f"hostfunc {kind}") == "CUDA_ERROR_NOT_SUPPORTED"
            assert "not supported on pre-Volta MPS clients" in client.call("error")
        assert client.call("add") == RIGHT
    finally:
        client.end()


def test_pre_volta_programs_without_mps_have_callbacks() -> None:
    settings = {
        "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
        "PYMPSD_BACKEND": "emulated",
        "PYMPSD_EMULATED_DEVICES": "P100",
        "PYTHONWARNINGS": "ignore::RuntimeWarning",
    }
    client = ClientProcess.start(settings, uid=0).connect()
    try:
        assert client.call("hostfunc quick") == QUICK
    finally:
        client.end()
