"""The driver's own server under the daemon: with a fake server and fake CUDA programs, as processes."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from fake_mps.client import ask, be_greeted
from fake_mps.devices import uuid_text
from fake_mps.install import misbehave
from fake_mps.peer import CONTEXT, INIT
from fake_mps.programs import DriverClient, chain
from fake_mps.visitor import visitor
from kept_entries import ask_to_end
from processes import DaemonProcess, alive, wait_until

USER = 65534
GROUP, OTHER_GROUP = 65533, 65532
AS_USER = {"reuid": USER, "regid": GROUP, "groups": OTHER_GROUP}.items()

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")


@pytest.fixture
def daemon(start_driver_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon that manages the fake server."""
    return start_driver_daemon()


def pipe(daemon: DaemonProcess) -> Path:
    """Return the pipe directory."""
    return daemon.directory / "pipe"


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[DriverClient]:
    """A program with one context."""
    with DriverClient.start(pipe(daemon)) as running:
        yield running.connect()


def test_a_program_is_a_client_without_change(daemon: DaemonProcess, client: DriverClient) -> None:
    (server,) = daemon.servers()
    assert daemon.run_command(f"get_server_status {server}") == "ACTIVE\n"
    assert daemon.run_command(f"get_client_list {server}") == f"{client.pid}\n"
    _, row = daemon.run_command("ps").splitlines()
    assert row.split()[:3] == [str(client.pid), "1", str(server)]
    assert daemon.run_command("get_device_client_list") == f"[0] 00:00.0, NVIDIA H200\n{client.pid}.1\n"


def test_wrong_settings_of_a_program_are_in_the_daemons_log_once(daemon: DaemonProcess) -> None:
    wrong = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50%", "CUDA_MPS_CLIENT_PRIORITY": "high", "PYMPSD_EXPLAIN": "9"}
    with DriverClient.start(pipe(daemon), settings=wrong) as program:
        assert program.connect().call("ctx 0") == "ctx CUDA_SUCCESS"
        lines = [line for line in daemon.log() if line.startswith(f"Client {program.pid} of user 0: ")]
    assert [line.partition(": ")[2].partition(" must be ")[0] for line in lines] == list(wrong)[:2]
    assert lines[0].endswith("(pympsd reads 50), not '50%'")
    assert lines[1].endswith("0 (normal) or 1 (below normal), not 'high'")


FAKE_NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu, compute; } Process;
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return "the fake error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) {
    snprintf(uuid, size, "%s", getenv("FAKE_NVML_UUID"));
    return 0;
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
    FILE *file = fopen(getenv("FAKE_NVML_FILE"), "r");
    unsigned found = 0;
    if (file == NULL)
        return 999;
    while (found < *count && fscanf(file, "%u %llu", &processes[found].pid, &processes[found].memory) == 2)
        found++;
    fclose(file);
    *count = found;
    return 0;
}
"""


@pytest.fixture
def nvml(tmp_path: Path) -> dict[str, str]:
    """Settings of a daemon that finds a fake NVML, which lists what the file of FAKE_NVML_FILE says."""
    source, file = tmp_path / "nvml.c", tmp_path / "memory"
    source.write_text(FAKE_NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return {
        "LD_LIBRARY_PATH": str(tmp_path),
        "FAKE_NVML_FILE": str(file),
        "FAKE_NVML_UUID": uuid_text(0),
    }


def test_top_shows_what_the_daemon_has_set_for_a_client(daemon: DaemonProcess, client: DriverClient) -> None:
    _, _, server, shown = daemon.run(["top", "--once"]).stdout.splitlines()
    assert server.split()[:4] == [str(daemon.servers()[0]), "0", "-", "ACTIVE"]
    assert shown.split()[:7] == [str(client.pid), "0", server.split()[0], "ACTIVE", "100.0", "1", "-"]
    daemon.kill()
    assert daemon.start().returncode == 0
    assert daemon.run(["top", "--once"]).stdout.splitlines()[-1].split()[:7] == shown.split()[:7]


def test_the_memory_of_clients_is_what_nvml_reports(
    start_driver_daemon: Callable[..., DaemonProcess], nvml: dict[str, str]
) -> None:
    file = Path(nvml["FAKE_NVML_FILE"])
    daemon = start_driver_daemon(**nvml)
    assert daemon.run_command("set_default_active_thread_percentage 25") == "25.0\n"
    with DriverClient.start(pipe(daemon)) as first, DriverClient.start(pipe(daemon)) as second:
        first.connect()
        second.connect()
        not_available = (1 << 64) - 1
        file.write_text(f"{first.pid} {96 << 20}\n{second.pid} {not_available}\n{os.getpid()} 4096\n")
        (server,) = json.loads(daemon.run(["top", "--json"]).stdout)["servers"]
        entries = {entry["pid"]: entry for entry in server["clients"]}
        assert entries[first.pid]["memory_bytes"] == {"0": 96 << 20}
        assert entries[second.pid]["memory_bytes"] == {}
        assert {entry["active_thread_percentage"] for entry in entries.values()} == {25.0}
        assert "96.0M" in daemon.run(["top", "--once", "--filter", str(first.pid)]).stdout


def test_lists_show_what_the_daemon_has_set_for_a_client_and_how_many_more_fit(
    start_driver_daemon: Callable[..., DaemonProcess], nvml: dict[str, str]
) -> None:
    daemon = start_driver_daemon(**nvml, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25")
    assert daemon.run_command("set_default_client_priority 1") == ""
    with DriverClient.start(pipe(daemon)) as first, DriverClient.start(pipe(daemon)) as client:
        first.connect()  # the devices are known with the first server
        assert daemon.run_command(f"set_device_pinned_mem_limit {daemon.servers()[0]} 0 4G") == ""
        client.connect()
        Path(nvml["FAKE_NVML_FILE"]).write_text(f"{client.pid} {96 << 20}\n")
        record = json.loads(daemon.run_command("ps --json"))[1]
        assert (record["active_thread_percentage"], record["memory_limit"], record["priority"]) == (25.0, 4 << 30, 1)
        unlimited, row = (line.split() for line in daemon.run_command("ps --limits").splitlines()[1:])
        assert unlimited[5:10] == ["25.0", "-", "-", "unlimited", "1"]
        assert row[5:10] == ["25.0", "-", "96.0M", "4G", "1"]
        assert daemon.run_command("ps").splitlines()[2].split()[5:] == row[10:], "the recorded columns"
        lines = daemon.run(["top", "--once"]).stdout.splitlines()[-1].split()
        assert (int(lines[0]), lines[4:9]) == (client.pid, ["25.0", "1", "96.0M", "4G", "1"])
        (device,) = json.loads(daemon.run_command("get_device_client_list --json"))
        assert (device["max_clients"], device["free_clients"]) == (48, 46)
        assert client.call("ctx 0") == "ctx CUDA_SUCCESS"
        (device,) = json.loads(daemon.run_command("get_device_client_list --json"))
        assert device["free_clients"] == 45


@pytest.mark.long
def test_nvml_that_fails_is_logged_and_tried_again_later(
    start_driver_daemon: Callable[..., DaemonProcess], nvml: dict[str, str]
) -> None:
    daemon = start_driver_daemon(**nvml)
    with DriverClient.start(pipe(daemon)) as client:
        client.connect()
        for _ in range(3):
            assert daemon.run(["top", "--once"]).stdout.splitlines()[-1].split()[6] == "-"
    reason = "nvmlDeviceGetMPSComputeRunningProcesses_v3: the fake error"
    complaints = [line for line in daemon.log() if "Cannot read clients' memory use" in line]
    assert [reason in line for line in complaints] == [True]


def test_the_server_has_its_users_identity(daemon: DaemonProcess) -> None:
    with DriverClient.start(
        pipe(daemon), prefix=("setpriv", *(f"--{key}={value}" for key, value in AS_USER))
    ) as client:
        client.connect()
        (server,) = daemon.servers()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{server}/status").read_text().splitlines())
        ids = [status[name].split() for name in ("Uid", "Gid", "Groups")]
        assert ids == [[str(USER)] * 4, [str(GROUP)] * 4, [str(OTHER_GROUP)]]


def test_a_user_has_the_turn_when_the_last_client_of_another_has_ended(daemon: DaemonProcess) -> None:
    with DriverClient.start(pipe(daemon)) as first, DriverClient.start(pipe(daemon), uid=USER) as second:
        first.connect()
        second.send("init")
        wait_until(lambda: any("is waiting for its turn" in line for line in daemon.log()))
        first.kill()
        assert second.answer() == "init CUDA_SUCCESS"


def test_a_new_client_of_a_server_that_has_decided_to_end_gets_the_next_one(
    daemon: DaemonProcess, launcher: Path
) -> None:
    """The server is asked whether it is idle because another user waits; it answers after the new client came."""
    misbehave(launcher, late_answer=5)
    with visitor(pipe(daemon) / "control") as here, DriverClient.start(pipe(daemon), uid=USER) as other:
        here.as_client()
        with here.take_connection() as connection:
            be_greeted(connection, INIT)
            ask(connection)
        other.send("init")
        wait_until(lambda: "Waiting for current clients to finish" in daemon.log("server.log"))
        with DriverClient.start(pipe(daemon)) as new_client:
            new_client.send("init")
            wait_until(lambda: any(f"NEW CLIENT {new_client.pid} " in line for line in daemon.log()))
            misbehave(launcher)
            assert other.answer() == "init CUDA_SUCCESS"
            assert new_client.is_waiting()
            other.kill()
            assert new_client.answer() == "init CUDA_SUCCESS"
            assert new_client.call("ctx 0") == "ctx CUDA_SUCCESS"


def test_the_next_daemon_frees_a_server_from_a_client_that_sends_nothing(daemon: DaemonProcess) -> None:
    with DriverClient.start(pipe(daemon)) as client:
        client.connect()
        with visitor(pipe(daemon) / "control") as silent:
            silent.as_client()
            with silent.take_connection():
                daemon.kill()
                assert daemon.start().returncode == 0
                with DriverClient.start(pipe(daemon)) as late:
                    assert late.call("init") == "init CUDA_SUCCESS"
        assert client.call("sync") == "sync CUDA_SUCCESS"
        assert str(client.pid) in daemon.run_command("ps")


def _talk(connection: socket.socket) -> dict[str, Any]:
    be_greeted(connection, CONTEXT)
    return ask(connection, device=0)


def test_the_next_daemon_hands_over_who_was_sent_a_connection(daemon: DaemonProcess) -> None:
    """The client takes its end of the connection before the daemon is killed, or before the next one starts."""
    with DriverClient.start(pipe(daemon)) as client, ExitStack() as stack:
        client.connect()
        (server,) = daemon.servers()
        os.kill(server, signal.SIGSTOP)
        here = [stack.enter_context(visitor(pipe(daemon) / "control")) for _ in range(3)]
        for entry in here:
            entry.as_client()
            assert select.select([entry.connection], [], [], 30)[0], "no connection came"
        # The stopped server may have heard of the first; the third has taken nothing.
        taken = [stack.enter_context(client_process.take_connection()) for client_process in here[:2]]
        daemon.kill()
        taken.append(stack.enter_context(here[2].take_connection()))
        os.kill(server, signal.SIGCONT)
        with ThreadPoolExecutor() as threads:
            served = threads.map(_talk, taken)
            assert daemon.start().returncode == 0
            assert [answer["result"] for answer in served] == ["CUDA_SUCCESS"] * 3
        assert client.call("sync") == "sync CUDA_SUCCESS"
        assert daemon.servers() == [server]


def test_a_server_that_has_to_end_without_a_daemon_does_so_when_it_has_no_clients(
    daemon: DaemonProcess, client: DriverClient
) -> None:
    (server,) = daemon.servers()
    daemon.kill()
    ask_to_end(daemon.directory / "pipe")
    assert client.call("sync") == "sync CUDA_SUCCESS"
    assert alive(server)
    client.exit()

    def has_ended() -> bool:
        ask_to_end(daemon.directory / "pipe")
        return not alive(server)

    with suppress(OSError, ValueError):  # it has ended as it was asked again
        wait_until(has_ended)
    wait_until(lambda: not alive(server))
    assert daemon.start().returncode == 0
    assert daemon.servers() == []


def test_a_server_without_daemon_and_directory_ends_when_it_has_no_clients(
    daemon: DaemonProcess, client: DriverClient
) -> None:
    (server,) = daemon.servers()
    daemon.kill()
    shutil.rmtree(pipe(daemon))
    assert client.call("sync") == "sync CUDA_SUCCESS"
    assert alive(server)
    client.exit()
    wait_until(lambda: not alive(server), "the end of the server that no daemon can find")


def test_a_server_that_has_to_end_does_so_under_the_next_daemon(daemon: DaemonProcess, client: DriverClient) -> None:
    (server,) = daemon.servers()
    daemon.run_command(f"shutdown_server {server}")
    daemon.kill()
    assert daemon.start().returncode == 0
    assert daemon.servers() == [server]
    assert client.call("sync") == "sync CUDA_SUCCESS"
    client.exit()
    wait_until(lambda: not daemon.servers())


def test_the_server_is_given_whole_paths(
    make_daemon: Callable[..., DaemonProcess], launcher: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    daemon = make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher), CUDA_MPS_LOG_DIRECTORY="log")
    assert daemon.start().returncode == 0
    with DriverClient.start(pipe(daemon)) as running:
        running.connect()
        (server,) = daemon.servers()
        words = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
        assert f"CUDA_MPS_LOG_DIRECTORY={directory}/log".encode() in words
        assert f"CUDA_MPS_PIPE_DIRECTORY={pipe(daemon)}".encode() in words


def test_an_operator_learns_that_a_server_does_not_answer(daemon: DaemonProcess, client: DriverClient) -> None:
    (server,) = daemon.servers()
    daemon.run_command("ps")
    os.kill(server, signal.SIGSTOP)
    try:
        done = daemon.run([], "ps\n")
        assert str(client.pid) in done.stdout
        assert done.stderr == f"server {server} did not respond; showing its last reported state\n"
    finally:
        os.kill(server, signal.SIGCONT)


def test_quit_waits_for_the_clients_and_ends_the_server(daemon: DaemonProcess, client: DriverClient) -> None:
    quitting = daemon.start_command("quit")
    wait_until(lambda: any("Server will not shutdown" in line for line in daemon.log()))
    assert client.call("sync") == "sync CUDA_SUCCESS"
    client.exit()
    assert quitting.communicate(timeout=30) == ("", "")
    daemon.await_end()
    assert daemon.log()[-1] == "Exit with status 0"


def test_a_forced_quit_ends_the_clients_work(daemon: DaemonProcess, client: DriverClient) -> None:
    assert daemon.run_command("quit -t 0") == ""
    daemon.await_end()
    assert client.call("sync") == "sync CUDA_ERROR_MPS_RPC_FAILURE"


def test_a_killed_daemon_is_replaced_and_nobody_notices(daemon: DaemonProcess, client: DriverClient) -> None:
    (server,) = daemon.servers()
    with DriverClient.start(pipe(daemon), "--loop") as loop, DriverClient.start(pipe(daemon), uid=USER) as waiting:
        assert [loop.answer(), loop.answer()] == ["init CUDA_SUCCESS", "ctx CUDA_SUCCESS"]
        assert loop.call("steps 10").startswith("steps ")
        waiting.send("init")
        wait_until(lambda: any("is waiting for its turn" in line for line in daemon.log()))
        before = daemon.run_command("ps")
        daemon.kill()
        with DriverClient.start(pipe(daemon)) as late:
            late.send("init")
            assert loop.call("steps 10").startswith("steps ")
            assert waiting.is_waiting()
            assert late.is_waiting()
            assert daemon.start().returncode == 0
            assert late.answer() == "init CUDA_SUCCESS"
            assert late.call("ctx 0") == "ctx CUDA_SUCCESS"
            assert daemon.servers() == [server]
            assert set(before.splitlines()) < set(daemon.run_command("ps").splitlines())
            assert client.call("sync") == "sync CUDA_SUCCESS"
        loop.send("stop")
        _, result, steps, value = loop.answer().split()
        assert (result, int(value)) == ("CUDA_SUCCESS", chain(int(steps)))
        loop.end()
        client.kill()
        assert waiting.answer() == "init CUDA_SUCCESS"


def test_the_server_terminates_a_context_only_once(daemon: DaemonProcess, client: DriverClient) -> None:
    """Asked so, it would answer nobody until the client's process has ended."""
    (server,) = daemon.servers()
    terminate = f"terminate_client {server} {client.pid}"
    assert daemon.run_command(terminate) == "0\n"
    assert daemon.run_command(terminate) == "201\n"
    daemon.kill()
    assert daemon.start().returncode == 0
    assert daemon.run_command(terminate) == "201\n"
    assert client.call("ctx 0") == "ctx CUDA_SUCCESS"
    done = daemon.run([], terminate)
    assert (done.stdout, "end the process" in done.stderr) == ("801\n", True)
    assert client.call("sync") == "sync CUDA_SUCCESS"
    assert client.call("destroy 0") == "destroy CUDA_SUCCESS"
    assert daemon.run_command(terminate) == "0\n"
    assert client.call("sync") == "sync CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert daemon.run_command(f"get_server_status {server}") == "ACTIVE\n"


def test_limits_outlive_a_daemon_that_learns_of_the_devices_from_its_server(daemon: DaemonProcess) -> None:
    with DriverClient.start(pipe(daemon)) as running:
        running.connect()
        daemon.run_command("set_default_device_pinned_mem_limit 0 4G")
        daemon.kill()
        assert daemon.start().returncode == 0
        assert running.call("sync") == "sync CUDA_SUCCESS"
        assert daemon.run_command("get_default_device_pinned_mem_limit 0") == "4G\n"


def test_a_server_that_has_said_its_role_registers_with_the_next_daemon(
    daemon: DaemonProcess, launcher: Path
) -> None:
    misbehave(launcher, late_registration=True)
    launcher.parent.chmod(0o777)
    with DriverClient.start(pipe(daemon)) as client:
        client.send("init")
        wait_until(launcher.with_name("waits").exists)
        (server,) = daemon.servers()
        daemon.kill()
        assert daemon.start().returncode == 0
        misbehave(launcher)
        assert client.answer() == "init CUDA_SUCCESS"
        assert daemon.servers() == [server]
        assert daemon.run_command(f"get_server_status {server}") == "ACTIVE\n"
