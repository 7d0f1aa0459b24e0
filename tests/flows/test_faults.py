"""Fatal faults: the documented containment on several devices, killed executors, killed servers, recovery."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import ClientProcess, DaemonProcess, alive, children_of, wait_until
from wedge import wedge

Make = Callable[..., ClientProcess]
MACHINE = "3xH200"
READY = "CUDA_SUCCESS"
FATAL = "CUDA_ERROR_ILLEGAL_ADDRESS"
ELSEWHERE = "CUDA_ERROR_LAUNCH_FAILED"


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess], request: pytest.FixtureRequest) -> DaemonProcess:
    running = make_daemon(PYMPSD_EMULATED_DEVICES=getattr(request, "param", MACHINE))
    assert running.start().returncode == 0
    return running


def _status(daemon: DaemonProcess, server: int) -> str:
    return daemon.run_command(f"get_server_status {server}").strip()


def _executors(daemon: DaemonProcess, server: int) -> dict[int, int]:
    """Return the PID of each device's executor, as server.log says."""
    daemon.wait_for_server_messages()
    executors = {}
    for text in daemon.log("server.log"):
        if text.startswith("Started executor "):
            words = text.split()
            executors[int(words[-1])] = int(words[2])
    assert set(executors.values()) >= set(children_of(server))
    return executors


def _comes_and_goes(daemon: DaemonProcess, make_client: Make) -> int:
    """Connect and end a client of device 0, so that its executor is idle; return the server."""
    make_client().connect(0).end()
    (server,) = daemon.servers()
    wait_until(lambda: daemon.run_command(f"get_client_list {server}") == "", "the client's end")
    return server


def test_1_the_four_clients_of_the_documents(daemon: DaemonProcess, make_client: Make) -> None:
    a, b, c, d = (make_client().connect(device) for device in (0, 0, 1, 2))
    assert b.call("newctx 1") == READY
    (server,) = daemon.servers()
    before = _executors(daemon, server)
    assert a.call("illegal") == READY
    assert a.call("sync") == FATAL
    wait_until(lambda: _status(daemon, server) == "FAULT", "the fault")
    assert b.first_error() == ELSEWHERE
    assert b.call("ctx 0") == READY
    assert b.first_error() == ELSEWHERE, "the error of a process is the first that it learns of"
    assert b.call("error").endswith("a fatal GPU fault of another context has reached this one")
    assert "of another" not in a.call("error")
    assert c.first_error() == ELSEWHERE
    assert c.call("sync") == ELSEWHERE
    assert d.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    late = make_client()
    assert late.call("init") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    assert d.call("newctx 0") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    assert d.call("newctx 2") == READY
    for client in (a, b):
        client.end()
        assert _status(daemon, server) == "FAULT"
    c.end()
    wait_until(lambda: _status(daemon, server) == "ACTIVE", "the recovery")
    assert d.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    again = make_client().connect(0)
    assert again.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    after = _executors(daemon, server)
    assert (after[0] != before[0], after[1] != before[1], after[2] == before[2]) == (True, True, True)


@pytest.mark.long(but=["True"])
@pytest.mark.parametrize("connected", [False, True])
def test_1_who_comes_while_executors_are_replaced_is_held(
    daemon: DaemonProcess, make_client: Make, connected: bool
) -> None:
    culprit, elsewhere, late = make_client().connect(0), make_client().connect(2), make_client()
    (server,) = daemon.servers()
    culprit.call("illegal")
    assert culprit.call("sync") == FATAL
    wait_until(lambda: _status(daemon, server) == "FAULT", "the fault")
    # The stopped executor is killed after some seconds, so a client that comes now comes before the next executor.
    os.kill(_executors(daemon, server)[0], signal.SIGSTOP)
    culprit.end(signal.SIGKILL)
    if connected:
        assert elsewhere.call("newctx 2") == READY, "the other devices are there all the time"
        assert elsewhere.call("newctx 0") == READY
        late = elsewhere
    else:
        assert [late.call("init"), late.call("ctx 0")] == [READY] * 2
    assert late.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    assert _status(daemon, server) == "ACTIVE"


@pytest.mark.long
def test_1_the_documented_lines_in_order(daemon: DaemonProcess, make_client: Make) -> None:
    a, b = make_client().connect(0), make_client().connect(0)
    assert b.call("newctx 1") == READY
    (server,) = daemon.servers()
    a.call("illegal")
    assert a.call("sync") == FATAL
    wait_until(lambda: _status(daemon, server) == "FAULT", "the fault")
    a.end()
    wait_until(lambda: f"Client {a.pid} disconnected" in daemon.log("server.log"), "the first one's end")
    b.end()
    wait_until(lambda: _status(daemon, server) == "ACTIVE", "the recovery")
    log = daemon.log("server.log")
    story = log[log.index("Volta MPS: Server is handling a fatal GPU error.") :]
    lines = [text for text in story if not text.startswith(("Executor ", "Started executor ", "Device "))]
    assert lines == [
        "Volta MPS: Server is handling a fatal GPU error.",
        f"Volta MPS: status of client {{{a.pid}, 1}} is INACTIVE",
        f"Volta MPS: status of client {{{b.pid}, 1}} is INACTIVE",
        f"Volta MPS: status of client {{{b.pid}, 2}} is INACTIVE",
        "Volta MPS: The following devices",
        "0",
        "1",
        "Volta MPS: The following clients have a sticky error set:",
        str(a.pid),
        str(b.pid),
        f"Client {{{a.pid}, 1}} exit",
        f"Client {a.pid} disconnected",
        f"Client {{{b.pid}, 2}} exit",
        f"Client {{{b.pid}, 1}} exit",
        f"Client {b.pid} disconnected",
        "Volta MPS: Destroy server context on device 0",
        "Volta MPS: Destroy server context on device 1",
        "Volta MPS: Creating server context on device 0",
        "Volta MPS: Creating server context on device 1",
    ]


@pytest.mark.long
def test_1_a_fault_during_a_recovery_keeps_the_status(daemon: DaemonProcess, make_client: Make) -> None:
    a, d = make_client().connect(0), make_client().connect(2)
    (server,) = daemon.servers()
    a.call("illegal")
    assert a.call("sync") == FATAL
    d.call("illegal")
    assert d.call("sync") == FATAL
    second = f"Volta MPS: status of client {{{d.pid}, 1}} is INACTIVE"
    wait_until(lambda: second in daemon.log("server.log"), "the second fault")
    assert _status(daemon, server) == "FAULT"
    a.end()
    assert _status(daemon, server) == "FAULT"
    d.end()
    wait_until(lambda: _status(daemon, server) == "ACTIVE", "the recovery")
    assert make_client().connect(2).call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


def test_5_a_killed_executor_is_a_fatal_fault_of_its_device(daemon: DaemonProcess, make_client: Make) -> None:
    a, d = make_client().connect(0), make_client().connect(2)
    (server,) = daemon.servers()
    victim = _executors(daemon, server)[0]
    os.kill(victim, signal.SIGKILL)
    assert a.call("sync") == ELSEWHERE
    wait_until(lambda: _status(daemon, server) == "FAULT", "the fault")
    assert d.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    assert make_client().call("init") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    a.end()
    wait_until(lambda: _status(daemon, server) == "ACTIVE", "the recovery")
    assert make_client().connect(0).call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    assert _executors(daemon, server)[0] != victim


@pytest.mark.long
def test_5_a_wedged_executor_is_a_fatal_fault_of_its_device(daemon: DaemonProcess, make_client: Make) -> None:
    a, d = make_client().connect(0), make_client().connect(2)
    late = [make_client(), make_client()]
    assert [client.call("init") for client in late] == [READY] * 2
    (server,) = daemon.servers()
    before = _executors(daemon, server)
    wedge(before[0], server)
    # The executor still receives the next message: this request, or a ping that comes first.
    late[0].send("ctx 0")
    # Work of existing contexts continues.
    assert a.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    assert a.call("endless") == READY
    a.send("sync")
    late[1].send("ctx 0")
    assert daemon.run_command("get_server_list") == f"{server}\n"
    assert not late[1].has_result()
    # The executor is pinged every 5 s, and killed after 20 s without an answer.
    wait_until(lambda: not alive(before[0]), "the wedged executor's end", 60)
    assert a.result() == ELSEWHERE
    assert a.call("sync") == ELSEWHERE
    # Whether the fault reaches a client that was not in yet is timing; either is an answer.
    not_in = (ELSEWHERE, "CUDA_ERROR_MPS_SERVER_NOT_READY")
    taken, unaccepted = (client.result() for client in late)
    assert late[0].call("sync") == ELSEWHERE if taken == READY else taken in not_in
    assert unaccepted in not_in
    wait_until(lambda: _status(daemon, server) == "FAULT", "the fault")
    assert f"Executor {before[0]} of device 0 does not respond; killing it" in daemon.log("server.log")
    assert f"Executor {before[0]} of device 0 ended with status -9" in daemon.log("server.log")
    assert d.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    assert make_client().call("init") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    assert d.call("newctx 0") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    for client in (a, *late):
        client.end()
    wait_until(lambda: _status(daemon, server) == "ACTIVE", "the recovery")
    assert make_client().connect(0).call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    after = _executors(daemon, server)
    assert (after[0] != before[0], after[2] == before[2]) == (True, True)


@pytest.mark.long
def test_5_an_idle_executor_may_die_unnoticed(daemon: DaemonProcess, make_client: Make) -> None:
    server = _comes_and_goes(daemon, make_client)
    os.kill(_executors(daemon, server)[0], signal.SIGKILL)
    assert make_client().connect(0).call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    assert _status(daemon, server) == "ACTIVE"


@pytest.mark.long
def test_5_an_executor_that_dies_while_a_context_is_opened_on_it_is_replaced_for_it(
    daemon: DaemonProcess, make_client: Make
) -> None:
    server = _comes_and_goes(daemon, make_client)
    victim = _executors(daemon, server)[0]
    client = make_client()
    assert client.call("init") == READY
    os.kill(victim, signal.SIGSTOP)
    client.send("ctx 0")
    os.kill(victim, signal.SIGKILL)
    assert client.result() == READY
    assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


def test_5_a_killed_server_fails_its_clients_calls_and_the_next_client_gets_another(
    daemon: DaemonProcess, make_client: Make
) -> None:
    a = make_client().connect(0)
    a.call("endless")
    (server,) = daemon.servers()
    a.send("sync")
    os.kill(server, signal.SIGKILL)
    assert a.result() == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert a.call("sync") == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert make_client().connect(0).call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    (other,) = daemon.servers()
    assert other != server
    assert f"Server {server} exited with status -9" in daemon.log()


@pytest.mark.long
@pytest.mark.parametrize("daemon", ["2xP100"], indirect=True)
def test_2_before_volta_a_fault_ends_the_server(daemon: DaemonProcess, make_client: Make) -> None:
    a, b = make_client().connect(0), make_client().connect(1)
    (server,) = daemon.servers()
    b.call("endless")
    b.send("sync")
    executor = _executors(daemon, server)[1]
    os.kill(executor, signal.SIGSTOP)
    a.call("illegal")
    # The server ends when all work has stopped; until then the client that caused the fault gets the error.
    assert a.call("sync") == FATAL
    os.kill(executor, signal.SIGCONT)
    assert b.result() == ELSEWHERE
    wait_until(lambda: server not in daemon.servers(), "the server's end")
    assert make_client().connect(0).call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    log = daemon.log("server.log")
    assert "A fatal GPU error on a pre-Volta device ends the server" in log
    assert not [line for line in log if "Volta MPS:" in line]
    assert f"Status of client {{PID: {a.pid}, Context ID: 1}} is ACTIVE" in log


@pytest.mark.parametrize("daemon", ["P100"], indirect=True)
def test_2_before_volta_who_looks_after_the_servers_end_hears_the_sticky_error(
    daemon: DaemonProcess, make_client: Make
) -> None:
    culprit, neighbour, without_context = (make_client() for _ in range(3))
    for client in (culprit, neighbour):
        client.connect(0)
    assert without_context.call("init") == READY
    (server,) = daemon.servers()
    culprit.call("illegal")
    wait_until(lambda: not alive(server), "the server's end")
    assert [client.call("sync") for client in (culprit, neighbour)] == [FATAL] * 2
    assert [client.call("alloc 64").split()[0] for client in (culprit, neighbour)] == [FATAL] * 2
    assert without_context.call("ctx 0") == ELSEWHERE


def test_1_a_machine_may_say_that_faults_stay_with_their_context(
    make_daemon: Callable[..., DaemonProcess], directory: Path
) -> None:
    machine = directory / "machine.toml"
    machine.write_text('fault_containment = "client"\n[[device]]\nprofile = "H200"\n')
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES=str(machine))
    assert daemon.start().returncode == 0
    culprit, other = daemon.client().connect(), daemon.client().connect()
    try:
        culprit.call("illegal")
        assert culprit.call("sync") == FATAL
        assert culprit.call("sync") == FATAL
        assert culprit.call("illegal") == FATAL
        assert other.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
        (server,) = daemon.servers()
        assert _status(daemon, server) == "ACTIVE"
    finally:
        culprit.end()
        other.end()
