"""Two GPUs of one machine: each with an executor, a window of addresses and faults of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import ClientProcess, DaemonProcess, alive, children_of, wait_until
from tested_machine import LIKE_A_GPU, gpus, rehearses

from pympsd.vocabulary.device_properties import window_of

RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
TRAPPED = "CUDA_ERROR_LAUNCH_FAILED"
WINDOW_BYTES = window_of(1) - window_of(0)
StartOf = Callable[..., ClientProcess]

pytestmark = pytest.mark.skipif(not rehearses() and len(gpus()) < 2, reason="needs a machine with two GPUs")


@pytest.fixture
def both(make_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon that has two GPUs."""
    settings = {"CUDA_VISIBLE_DEVICES": "0,1"}
    if rehearses():
        description, _, device = Path(LIKE_A_GPU).read_text().partition("[[device]]")
        other = device.replace("GPU-0", "GPU-1").replace("00.0b", "00.0c")
        (tmp_path / "two.toml").write_text(f"{description}[[device]]{device}[[device]]{other}")
        settings["PYMPSD_EMULATED_DEVICES"] = str(tmp_path / "two.toml")
    daemon = make_daemon(**settings)
    assert daemon.start().returncode == 0
    yield daemon
    daemon.stop()


def window(client: ClientProcess) -> int:
    """Return the window that a new allocation of the client lies in."""
    code, address = client.call("alloc 4096").split()
    assert code == "CUDA_SUCCESS", client.call("error")
    return (int(address, 16) - window_of(0)) // WINDOW_BYTES


def test_both_are_shown_and_compute_at_the_same_time(both: DaemonProcess, start_of: StartOf) -> None:
    shown = both.run_command("device_query --csv").splitlines()[2:]
    assert [line.split(",")[0] for line in shown if line] == ["0", "1"]
    clients = [start_of(both, device=device) for device in (0, 1)]
    assert [client.call("count") for client in clients] == ["2", "2"]
    for client in clients:
        client.send("add")
    assert [client.result() for client in clients] == [RIGHT, RIGHT]
    assert [window(client) for client in clients] == [0, 1]
    (server,) = both.servers()
    assert len(children_of(server)) == 2


def test_a_client_numbers_what_it_sees(both: DaemonProcess, start_of: StartOf) -> None:
    client = start_of(both, CUDA_VISIBLE_DEVICES="1")
    assert client.call("count") == "1"
    assert (client.call("add"), window(client)) == (RIGHT, 1)


def test_a_fault_of_one_leaves_the_other_alone(both: DaemonProcess, start_of: StartOf) -> None:
    undisturbed = start_of(both, device=1)
    (server,) = both.servers()
    (executor,) = children_of(server)
    culprit, neighbour = start_of(both), start_of(both)
    assert undisturbed.call("busy 3000") == "CUDA_SUCCESS"
    culprit.call("trap")
    assert culprit.call("sync") == TRAPPED
    wait_until(lambda: neighbour.call("sync") == TRAPPED, "the fault at the neighbour")
    assert (undisturbed.call("sync"), undisturbed.call("add")) == ("CUDA_SUCCESS", RIGHT)
    for client in (culprit, neighbour):
        client.end(signal.SIGKILL)
    wait_until(lambda: both.run_command(f"get_server_status {server}") == "ACTIVE\n", "the recovery")
    assert alive(executor)
    assert start_of(both).call("add") == RIGHT
    assert undisturbed.call("add") == RIGHT


def test_a_client_of_both_carries_a_fault_over(both: DaemonProcess, start_of: StartOf) -> None:
    """As documented: devices that share a client are contained together."""
    bridge, elsewhere, culprit = start_of(both), start_of(both, device=1), start_of(both)
    assert bridge.call("newctx 1") == "CUDA_SUCCESS", bridge.call("error")
    assert bridge.call("warm") == RIGHT
    (server,) = both.servers()
    executors = children_of(server)
    culprit.call("trap")
    assert culprit.call("sync") == TRAPPED
    for client in (bridge, elsewhere):
        wait_until(lambda: client.call("sync") != "CUDA_SUCCESS", "the fault there")  # noqa: B023
    for client in (bridge, elsewhere, culprit):
        client.end(signal.SIGKILL)
    wait_until(lambda: both.run_command(f"get_server_status {server}") == "ACTIVE\n", "the recovery")
    wait_until(lambda: not any(map(alive, executors)), "the executors' end")
    assert [start_of(both, device=device).call("add") for device in (0, 1)] == [RIGHT, RIGHT]
