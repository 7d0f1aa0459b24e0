"""A kernel that never ends on a device that stops none, as a real GPU: terminate_client, and the client's death."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulated_node import Node
from processes import ClientProcess, DaemonProcess, alive, children_of, wait_until

READY = "CUDA_SUCCESS"
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
ELSEWHERE = "CUDA_ERROR_LAUNCH_FAILED"
TERMINATED = "CUDA_ERROR_MPS_CLIENT_TERMINATED"
MACHINE = "stops_kernels = false\n[[device]]\ncount = 3\n"
GIB = 1 << 30


@pytest.fixture
def node(directory: Path) -> Iterator[Node]:
    """Three H200 whose kernels cannot be stopped."""
    node = Node(directory, MACHINE)
    yield node
    node.close()


def _daemon(node: Node, *options: str) -> DaemonProcess:
    folder = node.directory / "own"
    folder.mkdir()
    for part in ("pipe", "log"):
        (folder / part).mkdir()
    daemon = DaemonProcess(folder, {"PYMPSD_EMULATED_DEVICES": str(node.machine)})
    node._daemons.append(daemon)
    assert daemon.start("-d", *options).returncode == 0
    return daemon


@pytest.fixture
def make(node: Node) -> Callable[..., ClientProcess]:
    """Make clients of a daemon with a context on a device."""

    def make_client(daemon: DaemonProcess, device: int = 0) -> ClientProcess:
        return node.client(daemon).connect(device)

    return make_client


Make = Callable[[DaemonProcess], ClientProcess]


def _status(daemon: DaemonProcess, server: int) -> str:
    return daemon.run_command(f"get_server_status {server}").strip()


def _never_ends(client: ClientProcess, neighbour: ClientProcess) -> None:
    """Launch a kernel that never ends; it has begun when the neighbour's, on the same device, have ended."""
    assert client.call("endless") == READY
    assert neighbour.call("add") == RIGHT


def _free_mib(client: ClientProcess) -> int:
    return int(client.call("mem").split()[0])


def _measure_held(node: Node, pid: int) -> int:
    """Return the MiB that a process holds, as pympsd-smi shows."""
    rows = node.smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").stdout.splitlines()
    return sum(int(row.split(", ")[1]) for row in rows if row.split(", ")[0] == str(pid))


@pytest.mark.long
def test_without_the_option_the_answer_is_702_and_no_other_client_notices(node: Node, make: Make) -> None:
    daemon = _daemon(node)
    client, neighbour = make(daemon), make(daemon)
    (server,) = daemon.servers()
    executors = children_of(server)
    _never_ends(client, neighbour)
    done = daemon.run([], f"terminate_client {server} {client.pid}")
    assert done.stdout == "702\n"
    assert "still runs, or its executor is stopped; a daemon with --terminate-by-reset would end it" in done.stderr
    assert _status(daemon, server) == "ACTIVE"
    assert client.call("sync") == TERMINATED
    assert neighbour.call("add") == RIGHT
    assert children_of(server) == executors
    log = daemon.log("server.log")
    assert f"Client termination of process {client.pid} did not finish within 10 s." in log
    assert "Client termination succeeded." not in log


@pytest.mark.long
def test_with_it_the_device_is_reset_as_by_a_fatal_fault(node: Node, make: Callable[..., ClientProcess]) -> None:
    daemon = _daemon(node, "--terminate-by-reset")
    a, b, c, d = (make(daemon, device) for device in (0, 0, 1, 2))
    assert b.call("newctx 1") == READY
    (server,) = daemon.servers()
    before = children_of(server)
    _never_ends(a, b)
    a.send("sync")
    assert daemon.run_command(f"terminate_client {server} {a.pid}") == "0\n"
    assert _status(daemon, server) == "FAULT"
    assert len(set(before) & set(children_of(server))) == 2, "the process of device 0 alone has ended"
    assert a.result() == TERMINATED, "notified when the operator's request came"
    assert [b.first_error(), b.call("ctx 0"), b.first_error()] == [ELSEWHERE, READY, ELSEWHERE]
    assert c.first_error() == ELSEWHERE
    assert d.call("add") == RIGHT
    assert a.call("newctx 0") == ELSEWHERE, "as after any fatal fault the process has to end"
    late = node.client(daemon)
    assert late.call("init") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    assert daemon.run_command(f"terminate_client {server} {a.pid}") == "201\n"
    for client in (a, b, c):
        assert _status(daemon, server) == "FAULT"
        client.end()
    wait_until(lambda: _status(daemon, server) == "ACTIVE", "the recovery")
    assert make(daemon).call("add") == RIGHT
    assert d.call("add") == RIGHT
    log = daemon.log("server.log")
    story = [
        f"Client termination of process {a.pid} did not finish within 10 s.",
        f"Resetting device 0 because a kernel of process {a.pid} is still running and cannot be stopped",
        "Volta MPS: Server is handling a fatal GPU error.",
        "Volta MPS: The following devices",
        "Volta MPS: The following clients have a sticky error set:",
        "Client termination succeeded.",
        "Volta MPS: Destroy server context on device 0",
        "Volta MPS: Creating server context on device 1",
    ]
    log = log[log.index(story[0]) :]
    assert [text for text in log if text in story] == story
    assert log[log.index(story[3]) + 1 :][:2] == ["0", "1"]


def test_with_it_a_kernel_that_ends_in_time_resets_nothing(node: Node, make: Make) -> None:
    daemon = _daemon(node, "--terminate-by-reset")
    client, neighbour = make(daemon), make(daemon)
    (server,) = daemon.servers()
    assert client.call("add") == RIGHT
    client.send("add")
    assert daemon.run_command(f"terminate_client {server} {client.pid}") == "0\n"
    client.result()
    assert _status(daemon, server) == "ACTIVE"
    assert neighbour.call("add") == RIGHT
    assert client.call("newctx 0") == READY
    assert client.call("add") == RIGHT


@pytest.mark.long
def test_a_killed_clients_memory_is_counted_and_shown_until_no_client_is_left(node: Node, make: Make) -> None:
    daemon = _daemon(node)
    client, neighbour = make(daemon), make(daemon)
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    assert client.call(f"alloc {GIB}").startswith(READY)
    _never_ends(client, neighbour)
    before = _free_mib(neighbour)
    client.end(signal.SIGKILL)
    wait_until(lambda: f"Client {client.pid} disconnected" in daemon.log("server.log"), "the client's end")
    assert _free_mib(neighbour) == before
    wait_until(lambda: _measure_held(node, server) > 1024, "the server to be shown with what is left")
    assert neighbour.call("add") == RIGHT
    cuda_context = make(daemon)
    assert children_of(server) == [executor], "a client is there: it continues"
    for program in (neighbour, cuda_context):
        program.end()
    wait_until(lambda: not alive(executor), "the end of the process that runs the kernel")
    again = make(daemon)
    assert _free_mib(again) > before
    assert again.call("add") == RIGHT
    wait_until(lambda: _measure_held(node, server) == 0, "nothing to be left")
    log = daemon.log("server.log")
    assert (
        f"Stopping executor {executor} of device 0, which has no clients but still runs kernels of exited clients"
        in log
    )
    assert _status(daemon, server) == "ACTIVE"
    assert "Volta MPS: Server is handling a fatal GPU error." not in log


@pytest.mark.long
def test_a_context_that_its_process_closes_is_treated_alike(node: Node, make: Make) -> None:
    daemon = _daemon(node)
    client, neighbour = make(daemon), make(daemon)
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    _never_ends(client, neighbour)
    neighbour.end()
    wait_until(lambda: daemon.run_command(f"get_client_list {server}") == f"{client.pid}\n", "the neighbour's end")
    assert client.call("close 0") == READY
    assert not alive(executor)
    assert client.call("ctx 0") == READY
    assert client.call("add") == RIGHT
    (another,) = children_of(server)
    assert another != executor


def test_the_option_belongs_to_a_start(node: Node) -> None:
    daemon = _daemon(node)
    done = daemon.run(["--terminate-by-reset", "get_server_list"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("--terminate-by-reset goes with -d or -f")
