"""Which devices a daemon shows and a client sees (recorded: several-gpus), and those MPS refuses."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated_node import Node
from processes import ClientProcess, DaemonProcess, wait_until

from pympsd.devices.machine import describe

UID = pwd.getpwnam("nobody").pw_uid
MakeDaemon = Callable[..., DaemonProcess]
UUIDS = [device.uuid for device in describe("4xH200")]
SUPPORTED = "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU."
FAILED = "MPS server failed to start"


@pytest.fixture
def node(directory: Path) -> Iterator[Callable[[str], Node]]:
    nodes: list[Node] = []

    def make(text: str) -> Node:
        nodes.append(Node(directory, text))
        return nodes[-1]

    yield make
    for closable in nodes:
        closable.close()


def count_seen(daemon: DaemonProcess, visible: str) -> str:
    """Return how many devices a client sees that sets CUDA_VISIBLE_DEVICES, or why it sees none."""
    client: ClientProcess = daemon.client(CUDA_VISIBLE_DEVICES=visible)
    try:
        result = client.call("init")
        return client.call("count") if result == "CUDA_SUCCESS" else result
    finally:
        client.end()


@pytest.mark.long(but=["0,2-1-1", "0,1,2-2,1,0-3", "0,1,2-7,0-CUDA_ERROR_NO_DEVICE"])
@pytest.mark.parametrize(
    ("daemons", "clients", "count"),
    [
        ("0,2", "1", "1"),
        ("2,0", "1", "1"),
        ("1", "1", "CUDA_ERROR_NO_DEVICE"),
        ("0,9", "1", "CUDA_ERROR_NO_DEVICE"),
        ("0,1,2", "2,1,0", "3"),
        ("0,1,2", "1,7,0", "1"),
        ("0,1,2", f"{UUIDS[2]},0", "2"),
        ("0,1,2", UUIDS[1][:14], "1"),
        ("0,1,2", UUIDS[3], "CUDA_ERROR_NO_DEVICE"),
        ("0,1,2", "", "CUDA_ERROR_NO_DEVICE"),
        ("0,1,2", "7,0", "CUDA_ERROR_NO_DEVICE"),
        ("0,1,2", "1,1", "CUDA_ERROR_NO_DEVICE"),
    ],
)
def test_an_index_at_the_client_counts_in_the_daemons_numbering(
    make_daemon: MakeDaemon, daemons: str, clients: str, count: str
) -> None:
    daemon = make_daemon(CUDA_VISIBLE_DEVICES=daemons, PYMPSD_EMULATED_DEVICES="4xH200")
    assert daemon.start().returncode == 0
    assert count_seen(daemon, clients) == count


def test_a_client_that_sees_nothing_is_logged_as_recorded(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(CUDA_VISIBLE_DEVICES="1", PYMPSD_EMULATED_DEVICES="4xH200")
    assert daemon.start().returncode == 0
    count_seen(daemon, "1")
    hint = "Please set CUDA_VISIBLE_DEVICES with a GPU ID less than 1 or consider using UUIDs."
    wait_until(lambda: hint in daemon.log("server.log"), "the hint")
    lines = daemon.log("server.log")
    where = lines.index(hint)
    assert lines[where - 2 : where] == [
        "Invalid CUDA_VISIBLE_DEVICES.",
        "Client requested 1 which is not a valid GPU ID in the MPS visible set of devices",
    ]


@pytest.mark.parametrize("ready", [(), ("-q",), ("--ready-devices",)])
def test_devices_can_be_listed_without_a_server(make_daemon: MakeDaemon, ready: tuple[str, ...]) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="2xH200")
    assert daemon.start("-d", *ready).returncode == 0
    title, _, *rows = daemon.run_command("device_query --csv").splitlines()
    assert (title, [row.split(",")[2] for row in rows]) == ("Default", UUIDS[:2])
    assert daemon.servers() == [], "and none is started for it"


def refusal(node: Node) -> list[str]:
    """Check that a client gets no server; return what server.log reports from the failure on."""
    daemon = node.daemon("a")
    client = node.client(daemon)
    assert client.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    assert client.call("error").endswith("ended with status 1 before it was ready; see server.log")
    wait_until(lambda: FAILED in daemon.log("server.log")[:-1], "the reason in server.log")
    lines = daemon.log("server.log")
    assert lines[:3] == [
        "Startup",
        f"Connecting to control daemon on socket: {daemon.directory}/pipe/control",
        "Initializing server process",
    ]
    assert lines[3] == FAILED
    assert daemon.servers() == []
    return lines[4:]


def test_a_device_below_3_5_is_refused(node: Callable[[str], Node]) -> None:
    answer = refusal(node('[[device]]\nprofile = "P100"\n[[device]]\nprofile = "P100"\ncompute_capability = "3.0"\n'))
    assert answer[0] == SUPPORTED
    assert answer[1].startswith("Device 1 (Tesla P100-SXM2-16GB, GPU-")
    assert answer[1].endswith("is SM 3.0.")


def test_a_device_without_unified_addressing_is_refused(node: Callable[[str], Node]) -> None:
    (output,) = refusal(node("[[device]]\nunified_addressing = false\n"))
    assert output.startswith("MPS is only supported with unified addressing, which device 0 (NVIDIA H200, GPU-")


def test_a_prohibited_device_is_refused(node: Callable[[str], Node]) -> None:
    (output,) = refusal(node('[[device]]\ncompute_mode = "PROHIBITED"\n'))
    assert output.startswith("MPS cannot use device 0 (NVIDIA H200, GPU-")
    assert "compute mode PROHIBITED" in output


def test_an_old_device_next_to_a_newer_one_is_not_there(node: Callable[[str], Node]) -> None:
    entry = node('[[device]]\ncompute_capability = "3.0"\n[[device]]\nprofile = "V100"\n')
    daemon = entry.daemon("a")
    client = entry.client(daemon).connect()
    assert client.call("count") == "1"
    _, _, row = daemon.run_command("device_query --csv").splitlines()[:3]
    assert "V100" in row


@pytest.mark.long(but=["root"])
@pytest.mark.parametrize("uid", [0, UID], ids=["root", "a user"])
def test_kernels_reach_memory_of_another_device_of_the_same_client_alone(make_daemon: MakeDaemon, uid: int) -> None:
    """Peer access: a server's executors map what one client has; the other client of that server stays out."""
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="2xH200")
    assert daemon.start().returncode == 0
    first, second = daemon.client(uid), daemon.client(uid)
    for client in (first, second):
        assert client.call("init") == client.call("ctx 1") == "CUDA_SUCCESS"
    address, others = first.call("hold 1"), [second.call("hold 5") for _ in range(2)][1]
    assert first.call("ctx 0") == first.call("peer 1") == "CUDA_SUCCESS"
    assert first.call(f"stray {address}") == "CUDA_SUCCESS CUDA_SUCCESS"
    assert first.call("value") == "CUDA_SUCCESS 2.0"
    assert others != address, "in a window of its own, at an address that the first has not allocated"
    # There the first client's kernels reach the rest of the page of its own memory, but not the second's memory.
    assert first.call(f"stray {others}") == "CUDA_SUCCESS CUDA_SUCCESS"
    assert second.call("value") == "CUDA_SUCCESS 5.0"
    assert first.call(f"stray {hex(int(others, 16) + (1 << 22))}") == "CUDA_SUCCESS CUDA_ERROR_ILLEGAL_ADDRESS"
    for client in (first, second):
        client.end()
