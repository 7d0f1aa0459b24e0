"""A client under a debugger waits in cuInit until the others have left and runs without MPS (documents, 2.3.6.1)."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import SECONDS, ClientProcess, DaemonProcess, children_of, wait_until

NOBODY = pwd.getpwnam("nobody").pw_uid
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
TRACER = str(Path(__file__).parent.parent / "support" / "tracer.py")
MakeClient = Callable[..., ClientProcess]


@pytest.fixture
def make_debugged(make_client: MakeClient) -> Iterator[MakeClient]:
    """Start clients, each with a debugger attached; the debugger ends with its client."""
    with ExitStack() as ends:

        def make(uid: int | None = None, **more: str) -> ClientProcess:
            client = make_client(uid, **{"PYMPSD_REQUIRE_MPS": "0", **more})
            tracer = subprocess.Popen([sys.executable, TRACER, str(client.pid)], stdout=subprocess.PIPE, text=True)
            ends.callback(tracer.wait, SECONDS)
            assert tracer.stdout is not None
            ends.callback(tracer.stdout.close)
            ends.callback(client.process.kill)
            assert tracer.stdout.readline() == "attached\n"
            return client

        yield make


def waits(daemon: DaemonProcess, client: ClientProcess, count: int) -> None:
    """Return when a debugged client waits for that many others."""
    line = f"Client {client.pid} of user {os.stat(f'/proc/{client.pid}').st_uid} is being debugged; "
    wait_until(
        lambda: f"{line}it is waiting for {count} other clients to exit" in daemon.log(),
        "the debugged client's request",
    )


def continues_without_mps(daemon: DaemonProcess, client: ClientProcess) -> bool:
    """Whether a client was asked to continue without MPS."""
    return any(line.startswith(f"Client {client.pid} ") and "without MPS" in line for line in daemon.log())


def runs_alone(client: ClientProcess) -> None:
    """Check that a client computes on an executor of its own."""
    assert client.call("ctx 0") == "CUDA_SUCCESS", client.call("error")
    assert client.call("add") == RIGHT
    assert len(children_of(client.pid)) == 1


def test_a_debugged_client_alone_runs_without_mps_immediately(
    daemon: DaemonProcess, make_debugged: MakeClient
) -> None:
    client = make_debugged()
    assert client.call("init") == "CUDA_SUCCESS"
    runs_alone(client)
    assert daemon.servers() == []
    assert continues_without_mps(daemon, client)
    client.send("exit")
    _, output = client.process.communicate(timeout=SECONDS)
    assert output.count("PrivateExecutorWarning: this process is being debugged") == 1


@pytest.mark.long
def test_a_debugged_client_waits_for_present_clients_and_not_for_later_ones(
    daemon: DaemonProcess, make_client: MakeClient, make_debugged: MakeClient
) -> None:
    first = make_client().connect()
    (server,) = daemon.servers()
    debugged = make_debugged()
    debugged.send("init")
    waits(daemon, debugged, 1)
    later = make_client().connect()
    assert later.call("add") == RIGHT
    assert not debugged.has_result()
    first.end()
    assert debugged.result() == "CUDA_SUCCESS"
    runs_alone(debugged)
    assert later.call("add") == RIGHT
    assert daemon.run_command(f"get_client_list {server}").split() == [str(later.pid)]


@pytest.mark.long
def test_a_debugged_client_waits_for_queued_clients_too(
    daemon: DaemonProcess, make_client: MakeClient, make_debugged: MakeClient
) -> None:
    first = make_client().connect()
    second = make_client(NOBODY)
    second.send("init")
    wait_until(lambda: any(f"Client {second.pid} of user" in line for line in daemon.log()), "the request")
    debugged = make_debugged()
    debugged.send("init")
    waits(daemon, debugged, 2)
    first.end()
    assert second.result() == "CUDA_SUCCESS"
    assert not debugged.has_result()
    second.end()
    assert debugged.result() == "CUDA_SUCCESS"
    assert continues_without_mps(daemon, debugged)


@pytest.mark.long
def test_no_server_leaves_for_a_debugged_client_of_another_user(
    daemon: DaemonProcess, make_client: MakeClient, make_debugged: MakeClient
) -> None:
    first = make_client().connect()
    (server,) = daemon.servers()
    debugged = make_debugged(NOBODY)
    debugged.send("init")
    waits(daemon, debugged, 1)
    first.end()
    assert debugged.result() == "CUDA_SUCCESS"
    runs_alone(debugged)
    assert daemon.servers() == [server]
    assert make_client().connect().call("add") == RIGHT


@pytest.mark.long
def test_the_death_of_a_waiting_debugged_client_is_noticed(
    daemon: DaemonProcess, make_client: MakeClient, make_debugged: MakeClient
) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{daemon.pid}/fd"))

    first = make_client().connect()
    before = descriptors()
    debugged = make_debugged()
    debugged.send("init")
    waits(daemon, debugged, 1)
    assert descriptors() > before
    debugged.end(signal.SIGKILL)
    # The first client's handshake may not have been over when they were counted.
    wait_until(lambda: descriptors() <= before, "the end of its connection")
    first.end()
    assert make_client().connect().call("add") == RIGHT
    assert not continues_without_mps(daemon, debugged)


def test_a_quit_refuses_a_debugged_client(
    daemon: DaemonProcess, make_client: MakeClient, make_debugged: MakeClient
) -> None:
    make_client().connect()
    debugged = make_debugged()
    debugged.send("init")
    waits(daemon, debugged, 1)
    daemon.run_command("quit -t 0")
    assert debugged.result() == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    assert "quitting" in debugged.call("error")


def test_a_debugged_client_that_requires_mps_is_refused_immediately(
    daemon: DaemonProcess, make_client: MakeClient, make_debugged: MakeClient
) -> None:
    make_client().connect()
    debugged = make_debugged(PYMPSD_REQUIRE_MPS="1")
    assert debugged.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    reason = debugged.call("error")
    assert "this process is being debugged" in reason
    assert "PYMPSD_REQUIRE_MPS=1" in reason
