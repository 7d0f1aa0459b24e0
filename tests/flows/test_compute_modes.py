"""Compute modes of a machine that several daemons share: which may start a server; what pympsd-smi shows of it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated_node import Node
from processes import ClientProcess, DaemonProcess, alive, wait_until

from pympsd.devices.state_folder import StateFolder

pytestmark = pytest.mark.long

FAILED = "MPS server failed to start"
REFUSED = "CUDA_ERROR_MPS_CONNECTION_FAILED"
TWO = '[[device]]\n[[device]]\ncompute_mode = "EXCLUSIVE_PROCESS"\n'
MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(directory: Path) -> Iterator[MakeNode]:
    """Describe a node; what runs on it is ended after the test."""
    nodes: list[Node] = []

    def make(text: str = "[[device]]\n") -> Node:
        nodes.append(Node(directory, text))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def exclusive(make_node: MakeNode) -> Node:
    """A node whose one device was made exclusive."""
    node = make_node()
    node.set_mode("EXCLUSIVE_PROCESS")
    return node


def get_refusal(client: ClientProcess) -> str:
    """Check that the client gets no server; return the reason it gets."""
    assert client.call("init") == REFUSED
    return client.call("error")


def failure(daemon: DaemonProcess) -> str:
    """Return the reason that server.log gives for a server that failed to start."""
    wait_until(lambda: FAILED in daemon.log("server.log")[:-1], "the reason in server.log")
    lines = daemon.log("server.log")
    return lines[lines.index(FAILED) + 1]


@pytest.mark.long
def test_an_exclusive_device_refuses_a_second_daemons_server_until_it_is_free(exclusive: Node) -> None:
    first, second = exclusive.daemon("a"), exclusive.daemon("b")
    for _ in range(2):  # its clients share the device: the mode binds the server alone
        exclusive.client(first).connect()
    (holder,) = first.servers()
    assert "see server.log" in get_refusal(exclusive.client(second))
    reason = failure(second)
    assert "MPS cannot use device 0 (NVIDIA H200, GPU-" in reason
    assert f"EXCLUSIVE_PROCESS and process {holder} uses it" in reason
    wait_until(lambda: any(line.endswith("exited with status 1") for line in second.log()), "its exit status")
    first.run_command("quit -t 0")
    client = exclusive.client(second).connect()
    assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


@pytest.mark.long(but=["False"])
@pytest.mark.parametrize("has_client", [False, True])
def test_a_server_without_daemon_and_directory_ends_with_its_last_client(exclusive: Node, has_client: bool) -> None:
    first, second = exclusive.daemon("a"), exclusive.daemon("b")
    client = exclusive.client(first).connect()
    (holder,) = first.servers()
    if not has_client:
        client.end()
    first.wait_for_server_messages()
    first.kill()
    shutil.rmtree(first.directory / "pipe")
    if has_client:
        get_refusal(exclusive.client(second))
        directory = f"CUDA_MPS_PIPE_DIRECTORY={first.directory}/pipe, which was removed; it ends with its last client"
        assert f"process {holder} uses it (pympsd-server of user {os.getuid()}, {directory})" in failure(second)
        client.end()
    wait_until(lambda: not alive(holder), "the end of the server that no daemon can find")
    exclusive.client(second).connect()


@pytest.mark.long
def test_servers_of_different_users_keep_one_another_out(exclusive: Node) -> None:
    first, second = exclusive.daemon("a"), exclusive.daemon("b")
    exclusive.client(first, 1000).connect()
    get_refusal(exclusive.client(second, 1001))
    get_refusal(exclusive.client(second))
    first.run_command("quit -t 0")
    exclusive.client(second, 1001).connect()


@pytest.mark.long
def test_a_killed_server_holds_nothing(exclusive: Node) -> None:
    first, second = exclusive.daemon("a"), exclusive.daemon("b")
    exclusive.client(first, 1000).connect()
    os.kill(first.servers()[0], signal.SIGKILL)
    wait_until(lambda: not first.servers(), "the server's end")
    exclusive.client(second, 1001).connect()


@pytest.mark.long
def test_on_a_shared_device_both_serve(make_node: MakeNode) -> None:
    node = make_node()
    for name in ("a", "b"):
        node.client(node.daemon(name)).connect()


@pytest.mark.long
def test_a_device_that_a_daemon_does_not_show_does_not_concern_it(make_node: MakeNode) -> None:
    node = make_node(TWO)
    node.client(node.daemon("a")).connect()
    own_daemon = node.daemon("b", CUDA_VISIBLE_DEVICES="0")
    node.client(own_daemon).connect()
    get_refusal(node.client(node.daemon("c", CUDA_VISIBLE_DEVICES="1")))


@pytest.mark.long
def test_a_server_that_cannot_have_all_its_devices_holds_none(make_node: MakeNode) -> None:
    node = make_node('[[device]]\ncompute_mode = "EXCLUSIVE_PROCESS"\ncount = 2\n')
    second = node.daemon("a", CUDA_VISIBLE_DEVICES="1")
    node.client(second).connect()
    get_refusal(node.client(node.daemon("b")))
    node.client(node.daemon("c", CUDA_VISIBLE_DEVICES="0")).connect()


@pytest.mark.long
def test_the_mode_counts_that_there_is_when_a_server_starts(make_node: MakeNode) -> None:
    node = make_node()
    daemon = node.daemon("a")
    node.set_mode("PROHIBITED")
    get_refusal(node.client(daemon))
    assert "compute mode PROHIBITED" in failure(daemon)
    node.set_mode("DEFAULT")
    node.client(daemon).connect()


def test_a_device_that_a_named_servers_clients_may_not_use_does_not_concern_it(make_node: MakeNode) -> None:
    node = make_node('[[device]]\ncompute_mode = "PROHIBITED"\n[[device]]\n')
    daemon = node.daemon("a", CUDA_MPS_PROTOCOL_VERSION="3")
    assert "compute mode PROHIBITED" in daemon.run(["server", "create", "zero", "--allowed-devices=0"]).stdout
    assert daemon.run(["server", "create", "one", "--allowed-devices=1"]).returncode == 0
    client = node.client(daemon, CUDA_MPS_PIPE_DIRECTORY=str(daemon.directory / "pipe" / "one"))
    assert client.connect().call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


def test_the_modes_outlive_daemons_and_the_description_is_as_it_was(make_node: MakeNode) -> None:
    node = make_node(TWO)
    node.set_mode("2")
    node.daemon("a").run_command("quit")
    get_refusal(node.client(node.daemon("b")))
    assert node.machine.read_text() == TWO


def test_a_relative_path_is_the_same_machine(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node()
    node.set_mode("PROHIBITED")
    monkeypatch.chdir(node.directory)
    daemon = node.daemon("a", PYMPSD_EMULATED_DEVICES="./node.toml")
    get_refusal(node.client(daemon))
    assert "compute mode PROHIBITED" in failure(daemon)


@pytest.mark.long
def test_a_daemon_of_a_user_shares_the_machine_too(make_node: MakeNode) -> None:
    node = make_node()
    node.set_mode("3")  # by root: so the folder is there
    mine = node.daemon("a", uid=1000)
    node.client(mine, 1000).connect()
    get_refusal(node.client(node.daemon("b")))


@pytest.mark.long
def test_an_exclusive_device_that_cannot_be_held_is_refused_and_a_shared_one_is_not(make_node: MakeNode) -> None:
    node = make_node('[[device]]\ncompute_mode = "EXCLUSIVE_PROCESS"\n[[device]]\n')
    # Only root can make the folder of its state, and root's daemon has not been here.
    held = node.daemon("a", uid=1000, CUDA_VISIBLE_DEVICES="0")
    get_refusal(node.client(held, 1000))
    reason = failure(held)
    assert "cannot be kept for one process" in reason
    assert f"{node.machine}.state: Permission denied" in reason
    shared = node.daemon("b", uid=1000, CUDA_VISIBLE_DEVICES="1")
    node.client(shared, 1000).connect()


@pytest.mark.long
def test_a_server_that_could_not_register_reports_it_and_does_later(make_node: MakeNode) -> None:
    node = make_node("[[device]]\n[[device]]\n")
    first, second = node.daemon("a"), node.daemon("b")
    with StateFolder(str(node.machine)).lock():
        client = node.client(first).connect()
        assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
        text = "is in use, but cannot be registered"
        wait_until(lambda: sum(text in line for line in first.log("server.log")) == 2, "the lines about both devices")
        assert any("another process keeps it locked" in line for line in first.log("server.log"))
    wait_until(lambda: "Device 1 is now registered" in first.log("server.log"), "its registration")
    node.set_mode("EXCLUSIVE_PROCESS")
    get_refusal(node.client(second))
    assert f"process {first.servers()[0]} uses it" in failure(second)


@pytest.mark.long
def test_an_exclusive_server_names_the_process_in_its_way(exclusive: Node) -> None:
    daemon = exclusive.daemon("a")
    with StateFolder(str(exclusive.machine)).lock():
        get_refusal(exclusive.client(daemon))
        reason = failure(daemon)
    assert "another process keeps it locked. Find that process" in reason
    assert "mkdir" not in reason


@pytest.mark.long
def test_the_process_table_shows_servers_and_their_clients(make_node: MakeNode) -> None:
    node = make_node()
    daemon = node.daemon("a")
    assert "No running processes found" in node.smi().stdout
    clients = [node.client(daemon, 1000).connect() for _ in range(2)]
    (server,) = daemon.servers()

    def table() -> dict[str, list[str]]:
        done = node.smi("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits")
        return {row.split(", ")[0]: row.split(", ")[1:] for row in done.stdout.splitlines()}

    wait_until(lambda: len(table()) == 3 and table()[str(clients[1].pid)][1] != "0", "both clients in the table")
    assert table()[str(server)] == ["pympsd-server", "0"]
    overhead = int(table()[str(clients[0].pid)][1])
    assert overhead > 100
    assert clients[0].call(f"alloc {64 << 20}").startswith("CUDA_SUCCESS")
    wait_until(lambda: int(table()[str(clients[0].pid)][1]) == overhead + 64, "the allocation in the table")
    rows = [line.split()[4:] for line in node.smi().stdout.splitlines() if "C  " in line and "N/A  N/A" in line]
    kinds = {row[0]: row[1] for row in rows}
    assert kinds == {str(server): "C", str(clients[0].pid): "M+C", str(clients[1].pid): "M+C"}
    assert [int(row[0]) for row in rows] == sorted(int(row[0]) for row in rows)
    used = node.smi("--query-gpu=memory.used", "--format=csv,noheader,nounits").stdout
    assert 0 <= int(used) - (2 * overhead + 64) < 2, "the sum, but for what rounding took"
    clients[0].end(signal.SIGKILL)
    wait_until(lambda: str(clients[0].pid) not in table(), "its end in the table")
    daemon.run_command("quit -t 0")
    wait_until(lambda: table() == {}, "an empty table")
    assert not alive(server)


def test_a_server_is_only_on_the_devices_that_it_may_use(make_node: MakeNode) -> None:
    node = make_node(TWO)
    daemon = node.daemon("a", CUDA_MPS_PROTOCOL_VERSION="3")
    table = ("--query-compute-apps=gpu_bus_id,pid", "--format=csv,noheader")
    pids = []
    # One of them is exclusive, and the other server has nothing to do with it.
    for name, device in (("shared", "0"), ("exclusive", "1")):
        done = daemon.run(["server", "create", name, f"--allowed-devices={device}"])
        assert (done.returncode, done.stdout) == (0, "")
        pids.append(daemon.run(["server", "get", name, "pid"]).stdout.strip())
    rows = [row.split(", ") for row in node.smi(*table).stdout.splitlines()]
    buses = node.smi("--query-gpu=pci.bus_id", "--format=csv,noheader").stdout.split()
    assert rows == [[bus, pid] for bus, pid in zip(buses, pids, strict=True)]


def test_a_device_is_reset_only_when_it_is_not_in_use(make_node: MakeNode) -> None:
    node = make_node()
    daemon = node.daemon("a")
    node.client(daemon).connect()
    busy = node.smi("-i", "0", "-r")
    assert busy.returncode == 255
    assert "1 device is currently being used by one or more other processes" in busy.stderr
    daemon.run_command("quit -t 0")
    wait_until(lambda: node.smi("-i", "0", "-r").returncode == 0, "the reset")


@pytest.mark.long
def test_a_machine_in_short_form_keeps_modes_and_shows_clients(make_node: MakeNode) -> None:
    node = make_node()
    short = {"PYMPSD_EMULATED_DEVICES": "H200", "PYMPSD_STATE_DIRECTORY": str(node.directory)}
    node.variables.update(short)
    node.set_mode("EXCLUSIVE_PROCESS")
    first, second = node.daemon("a", **short), node.daemon("b", **short)
    client = node.client(first)
    client.connect()
    (server,) = first.servers()
    apps = ("--query-compute-apps=pid", "--format=csv,noheader")
    wait_until(lambda: node.smi(*apps).stdout.split() == [str(server), str(client.pid)], "both processes")
    get_refusal(node.client(second))
    assert f"process {server}" in failure(second)


def test_the_machine_file_describes_the_machine_of_daemon_and_programs(make_node: MakeNode) -> None:
    node = make_node("[[device]]\nprofile = 'V100'\n[[device]]\nprofile = 'V100'\n")
    (node.directory / "pympsd").mkdir()
    node.machine.rename(node.directory / "pympsd" / "machine.toml")
    daemon = node.daemon("a", PYMPSD_EMULATED_DEVICES="", XDG_CONFIG_HOME=str(node.directory))
    assert daemon.run_command("device_query").count("V100") == 2
