"""Draining with real processes: an operator empties a daemon under load, on pympsd's own servers and the driver's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_mps.programs import DriverClient
from processes import SECONDS, ClientProcess, DaemonProcess, alive, children_of, kill_after, wait_until

from pympsd.control import RunningDaemon

Make = Callable[..., ClientProcess]
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


@contextmanager
def draining(daemon: DaemonProcess, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``pympsd drain`` with words, and return when it has begun."""
    begun = subprocess.Popen(
        [daemon.command, "drain", *words],
        env=daemon.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with kill_after(begun):
        yield begun


def first_line(begun: subprocess.Popen[str]) -> str:
    assert begun.stdout is not None
    return begun.stdout.readline()


def is_held(daemon: DaemonProcess, pid: int) -> bool:
    waiting = json.loads(daemon.run_command("get_waiting_list --json"))
    return any(row["pid"] == pid and row["held_by"] for row in waiting)


def drain_list(daemon: DaemonProcess) -> list[dict[str, Any]]:
    return list(json.loads(daemon.run_command("get_drain_list --json")))


def test_an_operator_drains_under_load_and_loses_nothing(daemon: DaemonProcess, make_client: Make) -> None:
    client, late = make_client().connect(), make_client()
    with draining(daemon, "--all") as begun:
        assert first_line(begun) == "Draining --all: 1 client is running, no clients are waiting.\n"
        late.send("init")
        wait_until(lambda: is_held(daemon, late.pid), "the held client")
        assert client.call("add") == RIGHT
        assert begun.poll() is None
        client.end()
        output, errors = begun.communicate(timeout=SECONDS)
    user = os.getuid()
    ended = f"Client {client.pid} of user {user} on server uid_{user}: finished.\n"
    assert (output, errors, begun.returncode) == (f"{ended}Drained --all: no clients remain.\n", "", 0)
    assert not late.has_result()
    assert daemon.run(["undrain", "--all"]).returncode == 0
    assert late.result() == "CUDA_SUCCESS"
    assert late.call("ctx 0") == "CUDA_SUCCESS"
    assert late.call("add") == RIGHT


def test_after_the_timeout_clients_are_terminated_and_make_no_context_again(
    daemon: DaemonProcess, make_client: Make
) -> None:
    clients = [make_client().connect() for _ in range(2)]
    done = daemon.run(["drain", "--all", "--timeout=0.1", "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["event"] for record in records] == ["begun", "timeout", "ended", "ended", "done"]
    ends = [(record["pid"], record["how"]) for record in records[2:4]]
    assert ends == [(client.pid, "terminated") for client in clients]
    assert records[-1] == {"target": "--all", "event": "done", "drained": True, "left": []}
    assert clients[0].call("newctx 0") == "CUDA_ERROR_MPS_CLIENT_TERMINATED"


def test_then_fail_exits_with_1_and_terminates_nothing(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    done = daemon.run(["drain", "--all", "--timeout=0.1", "--then=fail"])
    assert done.returncode == 1
    assert (
        f"--all was not drained within 0.1 s; nothing was terminated; remaining clients: {client.pid}.\n"
        in done.stdout
    )
    assert done.stderr == "new clients are held until 'undrain --all'\n"
    assert client.call("add") == RIGHT
    assert [row["state"] for row in drain_list(daemon)] == ["not drained"]


def test_a_refused_client_reads_why(daemon: DaemonProcess, make_client: Make) -> None:
    daemon.run_command("drain --all --new-clients=refuse")
    client = make_client(PYMPSD_EXPLAIN="1")
    assert client.call("init") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    assert "--all is being drained: no new clients until 'pympsd undrain --all'" in daemon.log()[-1]


def test_a_release_leaves_no_server_and_no_executor(daemon: DaemonProcess, make_client: Make) -> None:
    clients = [make_client().connect() for _ in range(2)]
    (server,) = daemon.servers()
    family = [server, *children_of(server)]
    assert len(family) > 1
    with draining(daemon, "--all", "--release", "--timeout=60") as begun:
        first_line(begun)
        clients[0].end()
        assert daemon.run(["drain", "--all", "--release", "--timeout=0"]).returncode == 0
        assert begun.wait(SECONDS) == 0
    assert [pid for pid in family if alive(pid)] == []
    assert clients[1].call("sync") in ("CUDA_ERROR_MPS_RPC_FAILURE", "CUDA_ERROR_CONTEXT_IS_DESTROYED")
    assert daemon.servers() == []
    late = make_client()
    late.send("init")
    wait_until(lambda: is_held(daemon, late.pid), "the held client")
    assert daemon.servers() == []
    daemon.run_command("undrain")
    assert late.result() == "CUDA_SUCCESS"


@pytest.mark.parametrize("how", ["kill -9", "--replace"])
def test_a_drain_survives_its_daemon(daemon: DaemonProcess, make_client: Make, how: str) -> None:
    client, late = make_client().connect(), make_client()
    with draining(daemon, "--all") as begun:
        first_line(begun)
        late.send("init")
        wait_until(lambda: is_held(daemon, late.pid), "the held client")
        if how == "kill -9":
            daemon.kill()
        before = daemon.pid
        assert daemon.start("-d", *([how] if how == "--replace" else [])).returncode == 0
        assert daemon.pid != before
        assert begun.wait(SECONDS) == 1
        assert "part of it may have been done" in begun.communicate(timeout=SECONDS)[1]
    with draining(daemon, "--all") as again:
        assert first_line(again).startswith("Draining --all: 1 client is running")
        wait_until(lambda: is_held(daemon, late.pid), "the held client at the next daemon")
        assert client.call("add") == RIGHT
        client.end()
        assert again.wait(SECONDS) == 0
    assert not late.has_result()
    daemon.run_command("undrain --all")
    assert late.result() == "CUDA_SUCCESS"


def test_a_drain_continues_without_its_operator(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    with draining(daemon, str(client.pid), "--timeout=60") as begun:
        first_line(begun)
        begun.send_signal(signal.SIGINT)
        assert begun.communicate(timeout=SECONDS)[1] == ""
        assert begun.returncode == -signal.SIGINT
    assert [(row["target"], row["state"]) for row in drain_list(daemon)] == [(str(client.pid), "draining")]
    client.end()
    wait_until(lambda: drain_list(daemon) == [], "the end of the client's drain")


def test_a_quit_while_draining_answers_both_operators(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    with draining(daemon, "--all") as begun:
        first_line(begun)
        quitting = daemon.start_command("quit")
        wait_until(lambda: "Cmd:quit" in daemon.log(), "the quit")
        client.end()
        assert quitting.wait(SECONDS) == 0
        assert begun.wait(SECONDS) == 0
        quitting.communicate()
    daemon.await_end()


@pytest.mark.skipif(os.geteuid() != 0, reason="other users take root")
def test_a_user_may_drain_only_what_is_the_users(daemon: DaemonProcess, make_client: Make) -> None:
    make_client(65534).connect()
    done = daemon.run(["drain", "--all"], uid=65534)
    assert done.returncode == 1
    assert done.stderr == "Insufficient privileges for UID 65534. 'DRAIN' requires daemon owner.\n"
    assert daemon.run(["drain", "--user=65534", "--timeout=0"], uid=65534).returncode == 0


def test_cgroups_are_found_in_protocol_2(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    done = daemon.run(["drain", "--cgroup=/", "--timeout=0", "--then=fail"])
    assert done.returncode == 1
    assert f"remaining clients: {client.pid}." in done.stdout
    late = make_client()
    late.send("init")
    wait_until(lambda: is_held(daemon, late.pid), "the held client")
    assert daemon.run(["undrain", "--cgroup=/"]).returncode == 0
    assert late.result() == "CUDA_SUCCESS"


def test_namespaces_are_drained_alone(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "--protocol", "3").returncode == 0
    assert daemon.run(["server", "create", "a"]).returncode == 0
    assert daemon.run(["namespace", "create", "low", "--server=a"]).returncode == 0
    pipe = daemon.directory / "pipe" / "a"
    with (
        kill_after(daemon.client(CUDA_MPS_PIPE_DIRECTORY=str(pipe / "low")).process) as low,
        kill_after(daemon.client(CUDA_MPS_PIPE_DIRECTORY=str(pipe)).process) as other,
    ):
        ClientProcess(low).connect()
        assert daemon.run(["drain", "--namespace=a/low", "--timeout=0", "--then=fail"]).returncode == 1
        assert ClientProcess(other).connect().call("add") == RIGHT
        assert daemon.run(["drain", "--namespace=low", "--server=a", "--timeout=0"]).returncode == 0
        assert ClientProcess(other).call("add") == RIGHT
    assert [row["target"] for row in drain_list(daemon)] == ["--namespace=a/low"]


def test_the_python_interface(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    running = RunningDaemon(str(daemon.directory / "pipe"))
    drained = running.drain(user=os.getuid(), timeout=0.1, then="fail")
    assert (drained.drained, [remaining.pid for remaining in drained.left]) == (False, [client.pid])
    (drain,) = running.drains()
    assert (drain.target, drain.state, drain.clients) == (f"--user={os.getuid()}", "not drained", (client.pid,))
    (server,) = running.servers()
    assert (server.draining, server.clients[0].draining) == (None, f"--user={os.getuid()}")
    drained = running.drain(user=os.getuid(), timeout=0)
    assert (drained.drained, [(end.pid, end.how) for end in drained.ends]) == (True, [(client.pid, "terminated")])
    running.undrain(user=os.getuid())
    assert running.drains() == ()


# --- the driver's own server


@pytest.mark.skipif(os.geteuid() != 0, reason="the fake server is made for root")
def test_the_drivers_server_is_drained_and_released(start_driver_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = start_driver_daemon()
    pipe: Path = daemon.directory / "pipe"
    with DriverClient.start(pipe) as program, DriverClient.start(pipe) as other, DriverClient.start(pipe) as late:
        program.connect()
        other.connect()
        (server,) = daemon.servers()
        assert program.call("ctx 0") == "ctx CUDA_SUCCESS"
        with draining(daemon, "--all", "--release") as begun:
            assert first_line(begun).startswith("Draining --all: 2 clients are running")
            assert program.call("ctx 0") == "ctx CUDA_SUCCESS", "a further connection of a client is not a new client"
            program.exit()
            assert first_line(begun) == f"Client {program.pid} of user 0 on server uid_0: finished.\n"
            late.send("init")
            wait_until(lambda: is_held(daemon, late.pid), "the held client")
            done = daemon.run(["drain", "--all", "--release", "--timeout=0"])
            assert (done.returncode, done.stderr) == (0, "")
            assert f"Client {other.pid} of user 0 on server uid_0: terminated.\n" in done.stdout
            assert begun.wait(SECONDS) == 0
        assert not alive(server)
        assert daemon.servers() == []
        daemon.run_command("undrain --all")
        assert late.answer() == "init CUDA_SUCCESS"
