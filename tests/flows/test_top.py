"""pympsd top: once, as JSON, and on a terminal with its keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from at_terminal import at_terminal
from processes import PYMPSD, ClientProcess, DaemonProcess, clients_of, suspend, wait_until

from pympsd.control import CannotAsk, Control
from pympsd.top.table import Answers, ClientRow, Rates, lines
from pympsd.top.table import rows as rows_of

MIB = 1 << 20


def client(pid: int, memory: int, contexts: int = 1, command: str = "python") -> dict[str, Any]:
    contexts_made = [{"id": n, "number": n, "device": 0} for n in range(contexts)]
    own = {"active_thread_percentage": 25.0, "namespace": None, "memory_bytes": {"0": memory}, "pid_namespace": 1}
    own |= {"multiprocessors": {"0": 32}, "memory_limits": {}, "priority": 0}
    return {"pid": pid, "uid": 7, "command": command, "contexts": contexts_made, **own}


SERVER = {
    "pid": 50,
    "uid": 7,
    "name": "uid_7",
    "status": "ACTIVE",
    "active_thread_percentage": 30.0,
    "pinned_memory_limits": {},
    "launches": {"0": 10, "1": 30},
    "clients": [client(61, MIB, contexts=2), client(60, 5 * MIB, command="a\x1b[2Jb"), client(62, 0, contexts=0)],
}
WAITING = {"pid": 70, "uid": 8, "server": "uid_8", "command": "later"}
NO_DEVICES: dict[str, Any] = {"devices": [], "servers": []}
ANSWERS = [[SERVER], [WAITING], NO_DEVICES]


def rows(answers: list[Any], *arguments: Any, **options: Any) -> list[ClientRow]:
    """Return the rows of answers of a daemon."""
    return rows_of(Answers.of(answers), *arguments, **options)


def servers(*answers: dict[str, Any]) -> tuple[Any, ...]:
    """Return servers as the table takes them."""
    return Answers.of([list(answers), [], NO_DEVICES]).servers


def test_rows_are_in_the_requested_order() -> None:
    assert [row.pid for row in rows(ANSWERS)] == [50, 61, 60, 62, 70]
    assert [row.pid for row in rows(ANSWERS, "pid")] == [50, 60, 61, 62, 70]
    assert [row.pid for row in rows(ANSWERS, "memory")] == [50, 60, 61, 62, 70]
    assert [row.pid for row in rows(ANSWERS, "contexts")] == [50, 61, 60, 62, 70]
    assert [row.pid for row in rows(ANSWERS, text="LATER")] == [70]


def test_a_row_reports_what_is_known_of_a_client() -> None:
    server, _, second, idle, waits = rows(ANSWERS)
    assert (server.contexts, server.memory) == (3, 6 * MIB)
    assert lines([second]) == [
        "     PID     UID    SERVER  STATUS     SM %   CTX     MEMORY  PRIO  LAUNCH/S  COMMAND",
        "      60       7        50  ACTIVE     25.0     1       5.0M     0         -  a?[2Jb",
    ]
    assert [row.percentage for row in (server, idle, waits)] == [30.0, 25.0, None]
    assert (idle.status, waits.status, waits.memory) == ("IDLE", "WAITING", None)


def test_columns_are_there_that_have_something() -> None:
    in_namespace = {**client(61, MIB), "namespace": "small"}
    result = rows([[{**SERVER, "clients": [in_namespace]}], [WAITING], NO_DEVICES])
    heading, server, row, waits = lines(result, counts_launches=False)
    columns = ["PID", "UID", "SERVER", "NAMESPACE", "STATUS", "SM", "%", "CTX", "MEMORY", "PRIO", "COMMAND"]
    assert heading.split() == columns
    assert [line.split()[3] for line in (server, row, waits)] == ["-", "small", "-"]
    assert len({line.index(word) for line, word in ((heading, "COMMAND"), (row, "python"), (waits, "later"))}) == 1
    assert [row.pid for row in rows([[{**SERVER, "clients": [in_namespace]}], [], NO_DEVICES], text="SMALL")] == [61]


def test_limits_of_memory_are_there_if_a_client_has_one() -> None:
    limited = [{**client(61, MIB), "memory_limits": {"0": 4 << 30, "1": 4 << 30}, "priority": 1}, client(62, 0)]
    limited.append({**client(63, MIB), "memory_limits": {"0": 4 << 30, "1": 512 << 20}})
    heading, server, *shown = lines(rows([[{**SERVER, "clients": limited}], [], NO_DEVICES]))
    assert heading.split()[7:10] == ["MEMORY", "LIMIT", "PRIO"]
    assert [line.split()[7:9] for line in shown] == [["4G", "1"], ["-", "0"], ["0=4G,1=512M", "0"]]
    assert server.split()[7:9] == ["-", "-"], "clients have limits"
    older = {key: value for key, value in limited[0].items() if key not in ("memory_limits", "priority")}
    assert [row.priority for row in rows([[{**SERVER, "clients": [older]}], [], NO_DEVICES])] == [None, None]


def test_a_long_uid_widens_its_column_in_every_line() -> None:
    long = {**SERVER, "uid": 4_000_000_001, "clients": [{**client(61, MIB), "uid": 4_000_000_001}]}
    table = lines(rows([[long], [WAITING], ANSWERS[2]]))
    ends = {line.index(uid) + len(uid) for line, uid in zip(table, ("UID", "4000000001", "4000000001"), strict=False)}
    assert len(ends) == 1
    assert len({line.index(word) for line, word in zip(table, ("STATUS", "ACTIVE", "ACTIVE"), strict=False)}) == 1


def test_clients_that_wait_are_in_the_order_of_the_queue() -> None:
    queue = [{**WAITING, "pid": pid} for pid in (99, 12, 50)]
    assert [row.pid for row in rows([[SERVER], queue, ANSWERS[2]])][-3:] == [99, 12, 50]


def test_a_servers_launches_in_a_second_are_known_from_the_second_answer_on() -> None:
    later = {**SERVER, "launches": {"0": 10, "1": 130}}
    rates = Rates()
    assert rates.measure(servers(SERVER), 1.0) == {}
    assert rates.measure(servers(later), 3.0) == {50: 50.0}
    assert rates.measure(servers(later), 3.5) == {50: 50.0}, "it has not reported since"
    assert rates.measure(servers(later), 5.0) == {50: 0.0}
    assert rates.measure(servers({**later, "pid": 51}), 6.0) == {}, "another server"
    assert rows([[later], [], NO_DEVICES], rates={50: 50.0})[0].launches == 50.0


def test_top_once_prints_servers_and_clients(
    daemon: DaemonProcess, make_client: Callable[..., ClientProcess]
) -> None:
    client_process = make_client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25").connect()
    assert client_process.call(f"alloc {64 * MIB}").startswith("CUDA_SUCCESS")

    def memory() -> int:
        (server,) = json.loads(daemon.run(["top", "--json"]).stdout)["servers"]
        (client,) = server["clients"]
        assert client["pid"] == client_process.pid
        return sum(client["memory_bytes"].values())

    wait_until(lambda: memory() >= 64 * MIB, "the report of the memory")
    done = daemon.run(["top", "--once"])
    assert (done.returncode, done.stderr) == (0, "")
    heading, _, server, client = done.stdout.splitlines()
    assert heading.startswith("servers 1, clients 1, waiting 0; ")
    assert server.split()[:4] == [str(daemon.servers()[0]), "0", "-", "ACTIVE"]
    assert client.split()[:6] == [str(client_process.pid), "0", server.split()[0], "ACTIVE", "25.0", "1"]
    assert server.split()[4] == "100.0"
    assert "LAUNCH/S" not in done.stdout
    daemon.kill()
    assert daemon.start().returncode == 0
    assert memory() >= 64 * MIB, "the next daemon gets it too"
    assert daemon.run(["top", "--once"]).stdout.splitlines()[-1].split()[:6] == client.split()[:6]


def test_a_client_of_a_namespace(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "-p", "3").returncode == 0
    assert daemon.run(["server", "create", "s"]).returncode == 0
    creation = daemon.run(["namespace", "create", "small", "--server=s", "--active-thread-percentage=30"])
    assert creation.returncode == 0, creation.stdout + creation.stderr
    with clients_of(daemon) as start:
        folder = f"{daemon.environment['CUDA_MPS_PIPE_DIRECTORY']}/s/small"
        process = start(CUDA_MPS_PIPE_DIRECTORY=folder).connect()
        lines = daemon.run(["top", "--once", "--filter", "small"]).stdout.splitlines()
    assert [line.split()[3:6] for line in lines[2:]] == [["small", "ACTIVE", "30.0"]]
    assert lines[2].split()[0] == str(process.pid)


@pytest.mark.parametrize("arguments", [["--once"], ["--json"], ["--help"]])
def test_output_that_cannot_be_written_is_reported(daemon: DaemonProcess, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [PYMPSD, "top", *arguments], env=daemon.environment, stdout=full, stderr=subprocess.PIPE, text=True
        )
    text = "standard output: No space left on device: not all could be printed\n"
    assert (done.returncode, done.stderr) == (74, text)


@pytest.mark.parametrize("name", ["bogus", ""])
def test_a_terminal_that_is_not_known(daemon: DaemonProcess, name: str) -> None:
    with at_terminal([PYMPSD, "top"], daemon.environment, TERM=name) as screen:
        screen.until(f"pympsd top: TERM={name!r} is not a known terminal here: set TERM, or use --once")
        assert screen.process.wait(10) == 74


def test_a_daemon_that_is_stopped(daemon: DaemonProcess) -> None:
    suspend(daemon.pid)
    done = daemon.run(["--timeout", "0.5", "top", "--once"])
    os.kill(daemon.pid, signal.SIGCONT)
    assert (done.returncode, done.stderr) == (2, "the MPS control daemon sent nothing for 0.5 s\n")


def test_wrong_arguments_and_no_daemon(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    for arguments, status, output in (
        (["--interval", "0"], 2, "0.1 to 3600 seconds"),
        (["--interval", "x"], 2, "0.1 to 3600 seconds, not 'x'"),
        (["--sort", "x"], 2, "invalid choice: 'x'"),
        (["--once"], 1, "check CUDA_MPS_PIPE_DIRECTORY"),
    ):
        done = daemon.run(["top", *arguments])
        assert (done.returncode, done.stdout, output in done.stderr) == (status, "", True), done.stderr


def test_a_key_shows_the_keys_and_the_columns(daemon: DaemonProcess) -> None:
    with at_terminal([PYMPSD, "top", "--interval", "0.1"], daemon.environment) as screen:
        screen.until("h help")
        screen.type("h")
        screen.until("terminate the selected client")
        screen.until("kernels that a server starts in a second")
        screen.type("x")
        screen.until("q quit  s order")
        screen.type("q")
        assert screen.process.wait(10) == 0


def test_a_client_is_terminated_when_that_is_confirmed(
    daemon: DaemonProcess, make_client: Callable[..., ClientProcess]
) -> None:
    client = make_client().connect()
    with at_terminal([PYMPSD, "top", "--interval", "0.1"], daemon.environment) as screen:
        screen.until(f"{client.pid}")
        screen.type("t")
        screen.until("select one")
        screen.type("\x1bOB")
        screen.type("t")
        screen.until(f"terminate client {client.pid}")
        screen.type("no\r")
        screen.until("not terminated")
        assert client.call("sync") == "CUDA_SUCCESS"
        screen.type("t")
        screen.until("yes or no")
        screen.type("yes\r")
        screen.until(f"client {client.pid}: terminated")
        assert client.first_error() == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
        screen.type("q")
        screen.process.wait(10)
    assert screen.process.returncode == 0


def test_control_asks_in_protocol_3(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "-p", "3").returncode == 0
    with Control(daemon.environment["CUDA_MPS_PIPE_DIRECTORY"]) as control:
        control.command("server create a")
        servers, default, status = control.query("server list", "get_default_client_priority", "config status")
        assert [row["name"] for row in servers] == ["a"]
        assert default == {"client_priority": 0}
        assert status.startswith("generation=0 ")
        assert control.query("namespace list") == [control.listing("namespace list")]
        with pytest.raises(CannotAsk, match="Unknown verb 'lst' of module 'server'"):
            control.query("server lst")
    assert not [line for line in daemon.log() if "--json" in line and "lst" not in line], (
        "monitors would fill the log"
    )


def test_control_asks_and_commands(daemon: DaemonProcess) -> None:
    with Control(daemon.environment["CUDA_MPS_PIPE_DIRECTORY"]) as control:
        assert control.command("set_default_active_thread_percentage 40") == "40.0\n"
        assert control.query("get_default_active_thread_percentage", "ps") == [{"active_thread_percentage": 40.0}, []]
        with pytest.raises(CannotAsk, match=r"ps x: .*is not understood"):
            control.command("ps x")
    assert not [line for line in daemon.log() if "--json" in line], "monitors would fill the log"
