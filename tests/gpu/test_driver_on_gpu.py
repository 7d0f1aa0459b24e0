"""The driver's own server under our daemon, with unmodified programs: limits, ends, faults, users, namespaces.

In a rehearsal, server and programs are fakes; tests that need real ones are left out (choice.toml).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_mps.client import be_handed_over
from fake_mps.programs import DriverClient, chain
from processes import PYMPSD, SECONDS, DaemonProcess, alive, clients_of, wait_until
from tested_machine import with_machine

from tests.gpu.cuda_programs import running
from tests.gpu.cuda_programs.running import client, connect, end_all

A, B = 10001, 10002
GIB = 1 << 30
MANY_STEPS = 300
INSIDE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
FAULTS = ("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED")
NEW_CLIENT_RESULTS = ("init CUDA_SUCCESS", "init CUDA_ERROR_MPS_SERVER_NOT_READY")
SILENT_CONNECTIONS = 3

MakeDaemon = Callable[..., DaemonProcess]


@pytest.fixture
def make_driver_daemon(make_daemon: MakeDaemon, directory: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Make daemons that manage the driver's server; their processes end with the test."""
    daemons: list[DaemonProcess] = []

    def make(*options: str, **more: str) -> DaemonProcess:
        daemon = make_daemon(**running.settings(directory), **more)
        daemons.append(daemon)
        if options:
            done = daemon.start(*options)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return daemon

    yield make
    for daemon in daemons:
        daemon.stop()
        end_all(daemon)


@pytest.fixture
def daemon(make_driver_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon that runs."""
    return make_driver_daemon("-d")


def rows(daemon: DaemonProcess) -> list[list[str]]:
    """Return the rows of ps, each as words."""
    return [line.split() for line in daemon.run_command("ps").splitlines()[1:]]


def list_shown(daemon: DaemonProcess) -> set[int]:
    """Return the PIDs that ps shows."""
    return {int(row[0]) for row in rows(daemon)}


# --- programs


def side_by_side(daemon: DaemonProcess, start: Callable[[], DriverClient]) -> None:
    """Run two of a program at the same time; both must be clients, and right."""
    with start() as first, start() as second:
        for client in (first, second):
            answer = client.answer(running.IMPORT_SECONDS)
            if answer.startswith("absent: "):
                first.kill()
                second.kill()
                pytest.skip(answer)
            assert answer == "connected"
        assert list_shown(daemon) == {first.pid, second.pid}
        for client in (first, second):
            client.send("")
        assert [program.answer(running.IMPORT_SECONDS) for program in (first, second)] == ["right"] * 2


def test_two_programs_at_the_same_time(daemon: DaemonProcess) -> None:
    with client(daemon) as client_process, client(daemon) as other:
        for program in (client_process, other):
            connect(program)
        for program in (client_process, other):
            program.send("launch")
        assert [client.answer() for client in (client_process, other)] == ["launch CUDA_SUCCESS"] * 2
        assert list_shown(daemon) == {client_process.pid, other.pid}


def test_an_nvcc_program(daemon: DaemonProcess, tmp_path: Path) -> None:
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if compiler is None:
        pytest.skip("there is no nvcc")
    built = tmp_path / "vector_add"
    command = [compiler, "-o", str(built), str(running.HERE / "vector_add.cu")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=running.IMPORT_SECONDS)
    assert done.returncode == 0, done.stderr
    side_by_side(daemon, lambda: running.program(daemon, str(built)))


@pytest.mark.parametrize("name", ["torch", "cupy", "jax"])
def test_a_framework_runs_as_two_clients(daemon: DaemonProcess, name: str) -> None:
    if reason := running.why_not(name):
        pytest.skip(reason)
    side_by_side(daemon, lambda: running.framework(daemon, name))


# --- limits


def test_half_of_the_threads_is_half_of_the_multiprocessors(daemon: DaemonProcess) -> None:
    with client(daemon) as before, client(daemon) as after:
        connect(before)
        (server,) = daemon.servers()
        assert daemon.run_command(f"set_active_thread_percentage {server} 50") == "50.0\n"
        connect(after)
        assert before.call("sms") == f"sms {running.multiprocessors(100)}"
        assert after.call("sms") == f"sms {running.multiprocessors(50)}"
        assert after.call("launch") == "launch CUDA_SUCCESS"


def is_limited(program: DriverClient) -> None:
    """Assert that a program may have 2 GiB."""
    assert program.call(f"alloc {3 * GIB}") == "alloc CUDA_ERROR_OUT_OF_MEMORY"
    assert program.call(f"alloc {GIB}") == "alloc CUDA_SUCCESS"


def test_limits_and_memory_of_a_client_are_shown(daemon: DaemonProcess) -> None:
    assert daemon.run_command("set_default_active_thread_percentage 50") == "50.0\n"
    with client(daemon) as client_process:
        connect(client_process)
        assert client_process.call(f"alloc {GIB}") == "alloc CUDA_SUCCESS"
        (server,) = json.loads(daemon.run(["top", "--json"]).stdout)["servers"]
        (shown,) = server["clients"]
        assert shown["active_thread_percentage"] == 50.0
        assert [GIB <= held < 2 * GIB for held in shown["memory_bytes"].values()] == [True]


def test_an_allocation_beyond_a_servers_memory_limit_is_refused(daemon: DaemonProcess) -> None:
    with client(daemon) as before, client(daemon) as limited:
        connect(before)
        (server,) = daemon.servers()
        done = daemon.run([], f"set_device_pinned_mem_limit {server} 0 2G\n")
        assert (done.returncode, done.stderr) == (0, "")
        is_limited(connect(limited))


def test_an_allocation_beyond_the_default_memory_limit_is_refused(daemon: DaemonProcess) -> None:
    """Before the first server only the driver knows the devices."""
    done = daemon.run([], "set_default_device_pinned_mem_limit 0 2G\n")
    assert (done.returncode, done.stderr) == (0, "")
    with client(daemon) as limited:
        is_limited(connect(limited))


def test_the_default_priority_reaches_a_client(daemon: DaemonProcess) -> None:
    with client(daemon) as before, client(daemon) as after:
        connect(before)
        daemon.run_command("set_default_client_priority 1")
        connect(after)
        wait_until(lambda: "Client Priority set to 1" in daemon.log("server.log"), "the line in server.log")
        assert after.call("launch") == "launch CUDA_SUCCESS"


# --- ends and faults


def test_terminate_client_ends_one_client_and_no_other(daemon: DaemonProcess) -> None:
    with client(daemon) as client_process, client(daemon) as other:
        connect(client_process)
        connect(other)
        (server,) = daemon.servers()
        assert daemon.run_command(f"terminate_client {server} {client_process.pid}") == "0\n"
        assert client_process.call("sync") == "sync CUDA_ERROR_MPS_CLIENT_TERMINATED"
        assert other.call("launch") == "launch CUDA_SUCCESS"


def test_a_fault_of_one_is_everybodys_until_all_have_left(daemon: DaemonProcess) -> None:
    with (
        client(daemon) as culprit,
        client(daemon) as neighbour,
        client(daemon) as new_client,
        client(daemon) as following,
    ):
        connect(culprit)
        connect(neighbour)
        (server,) = daemon.servers()
        assert culprit.call("fault").split()[1] in FAULTS
        wait_until(lambda: neighbour.call("sync").split()[1] in FAULTS, "the fault at the neighbour")
        assert daemon.run_command(f"get_server_status {server}") == "FAULT\n"
        new_client.send("init")
        for entry in (culprit, neighbour):
            entry.kill()
        wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "the recovery")
        # Refused while it was FAULT, or let in after; the recording has one that is never answered, too.
        if not new_client.is_waiting():
            assert new_client.answer() in NEW_CLIENT_RESULTS
        new_client.kill()
        connect(following)
        assert following.call("launch") == "launch CUDA_SUCCESS"
        assert daemon.servers() == [server]


def test_a_forced_quit_ends_the_clients_work(daemon: DaemonProcess) -> None:
    with client(daemon) as client_process:
        connect(client_process)
        (server,) = daemon.servers()
        assert daemon.run_command("quit -t 1") == ""
        daemon.await_end()
        wait_until(
            lambda: client_process.call("sync") == "sync CUDA_ERROR_MPS_RPC_FAILURE",
            "the end of its server at the client",
        )
        assert not alive(server)
        client_process.kill()


def test_clients_that_never_speak_are_in_nobodys_way(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(running.pipe(daemon)))
    silent = []
    try:
        with client(daemon) as before, client(daemon) as after:
            connect(before)
            silent = [be_handed_over() for _ in range(SILENT_CONNECTIONS)]
            connect(after)
            assert [client.call("launch") for client in (before, after)] == ["launch CUDA_SUCCESS"] * 2
            assert list_shown(daemon) >= {before.pid, after.pid}
    finally:
        for connection in silent:
            connection.close()


# --- the daemon is killed


def test_programs_outlive_the_daemon(daemon: DaemonProcess) -> None:
    with client(daemon, "--loop") as loop, client(daemon) as new_client:
        assert [loop.answer(), loop.answer()] == ["init CUDA_SUCCESS", "ctx CUDA_SUCCESS"]
        (server,) = daemon.servers()
        daemon.kill()
        assert loop.call(f"steps {MANY_STEPS}").startswith("steps ")
        new_client.send("init")
        assert loop.call(f"steps {MANY_STEPS}").startswith("steps ")
        assert new_client.is_waiting()
        done = daemon.start()
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert new_client.answer() == "init CUDA_SUCCESS"
        assert new_client.call("ctx 0") == "ctx CUDA_SUCCESS"
        assert new_client.call("launch") == "launch CUDA_SUCCESS"
        assert daemon.servers() == [server]
        assert list_shown(daemon) == {loop.pid, new_client.pid}
        assert loop.call(f"steps {MANY_STEPS}").startswith("steps ")
        word, result, steps, value = loop.call("stop").split()
        assert (word, result, int(value)) == ("loop", "CUDA_SUCCESS", chain(int(steps)))
        new_client.exit()
        loop.exit()
        assert daemon.run_command("quit") == ""
        daemon.await_end()
        wait_until(lambda: not alive(server), "the server's end")


def test_training_continues_unaffected_without_the_daemon(daemon: DaemonProcess) -> None:
    if reason := running.why_not("torch"):
        pytest.skip(reason)
    digests = []
    for disturbed in (False, True):
        with running.framework(daemon, "training") as training:
            answer = training.answer(running.IMPORT_SECONDS)
            if answer.startswith("absent: "):
                training.kill()
                pytest.skip(answer)
            training.call("until 100")
            if disturbed:
                daemon.kill()
                training.call("until 1000")
                assert daemon.start().returncode == 0
                assert training.pid in list_shown(daemon)
            digests.append(training.call("until 2000"))
            training.send("stop")
    assert digests[0] == digests[1]


# --- users


def test_users_take_turns(daemon: DaemonProcess) -> None:
    with client(daemon, uid=A) as first, client(daemon, uid=B) as second:
        began = time.monotonic()
        connect(first)
        start = time.monotonic() - began
        (server,) = daemon.servers()
        assert os.stat(f"/proc/{server}").st_uid == A
        second.send("init")
        wait_until(lambda: any(f"CLIENT {second.pid} " in line for line in daemon.log()), "the request")
        assert first.call("launch") == "launch CUDA_SUCCESS"
        assert second.is_waiting()
        first.kill()
        gone = time.monotonic()
        assert second.answer() == "init CUDA_SUCCESS"
        taken = time.monotonic() - gone
        assert taken < 1.0 + start, "the first one had to start a server and make a context"
        assert second.call("ctx 0") == "ctx CUDA_SUCCESS"
        assert second.call("launch") == "launch CUDA_SUCCESS"


def test_users_together_have_servers_at_the_same_time(make_driver_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_driver_daemon("-d", "--users", "together")
    with client(daemon, uid=A) as first, client(daemon, uid=B) as second:
        connect(first)
        connect(second)
        for program in (first, second):
            program.send("launch")
        assert [client.answer() for client in (first, second)] == ["launch CUDA_SUCCESS"] * 2
        assert {int(row[0]): os.stat(f"/proc/{row[2]}").st_uid for row in rows(daemon)} == {
            first.pid: A,
            second.pid: B,
        }
        assert len(daemon.servers()) == 2


def test_one_server_for_all_users(make_driver_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_driver_daemon("-d", "-multiuser-server")
    with client(daemon, uid=A) as first, client(daemon, uid=B) as second, client(daemon) as third:
        for program in (first, second, third):
            connect(program)
        assert [client.call("launch") for client in (first, second, third)] == ["launch CUDA_SUCCESS"] * 3
        (server,) = daemon.servers()
        assert os.stat(f"/proc/{server}").st_uid == 0
        assert list_shown(daemon) == {first.pid, second.pid, third.pid}


# --- namespaces


def needs_namespaces() -> None:
    """Skip the test if a PID namespace cannot be created."""
    done = subprocess.run([*INSIDE, "true"], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        pytest.skip(f"no PID namespace can be made here: {done.stderr.strip()}")


def test_a_client_in_a_namespace_below(daemon: DaemonProcess) -> None:
    needs_namespaces()
    with client(daemon, prefix=INSIDE) as inside, client(daemon) as outside:
        connect(inside)
        connect(outside)
        assert [client.call("launch") for client in (inside, outside)] == ["launch CUDA_SUCCESS"] * 2
        assert len(list_shown(daemon)) == 2
        assert inside.pid not in list_shown(daemon), "that is unshare"


def test_a_client_that_the_daemon_cannot_see(make_driver_daemon: Callable[..., DaemonProcess]) -> None:
    needs_namespaces()
    daemon = make_driver_daemon()
    process = subprocess.Popen(
        [*INSIDE, PYMPSD, "-f"],
        env={"PATH": os.environ["PATH"], **daemon.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: daemon.run([], "get_server_list\n").returncode == 0, "the daemon's sockets")
        with client(daemon) as outside, client(daemon, prefix=INSIDE) as sibling:
            for program in (outside, sibling):
                connect(program)
            assert [client.call("launch") for client in (outside, sibling)] == ["launch CUDA_SUCCESS"] * 2
            assert {row[0] for row in rows(daemon)} == {"0"}
        daemon.run_command("quit -t 1")
        assert process.wait(SECONDS) == 0
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


# --- the client library


@pytest.mark.parametrize("backend", ["emulated", "cuda", "vendor"])
def test_one_program_of_the_client_library_on_every_backend(
    make_daemon: MakeDaemon, directory: Path, backend: str
) -> None:
    settings = {
        "emulated": {"PYMPSD_BACKEND": "emulated", "PYMPSD_EMULATED_DEVICES": "H200"},
        "cuda": with_machine({}),
        "vendor": running.settings(directory),
    }
    daemon = make_daemon(**settings[backend])
    done = daemon.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    try:
        with clients_of(daemon) as make:
            client = make(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50").connect()
            assert client.call("sm") == str(running.multiprocessors(50))
            assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
            assert list_shown(daemon) == {client.pid}
    finally:
        daemon.stop()
        end_all(daemon)


# --- the vendor's tool and daemon


def control() -> str:
    """Return the vendor's nvidia-cuda-mps-control; skip the test if there is none."""
    path = running.driver_program(running.CONTROL)
    if path is None:
        pytest.skip(f"{running.CONTROL} is not installed")
    return path


def get_output_of(command: str, daemon: DaemonProcess, text: str) -> str:
    """Give commands with a tool; return its output."""
    environment = {**os.environ, **daemon.environment}
    done = subprocess.run([command], env=environment, input=text, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


COMMANDS = "get_default_active_thread_percentage\nset_default_active_thread_percentage 40\n"


def test_the_vendors_tool_commands_our_daemon(daemon: DaemonProcess) -> None:
    tool = control()
    with client(daemon) as client_process:
        connect(client_process)
        (server,) = daemon.servers()
        text = f"get_server_list\nget_server_status {server}\nget_client_list {server}\n{COMMANDS}"
        assert get_output_of(tool, daemon, text) == f"{server}\nACTIVE\n{client_process.pid}\n100.0\n40.0\n"
        assert get_output_of(tool, daemon, "ps\n") == daemon.run_command("ps")


def test_our_tool_commands_the_vendors_daemon(directory: Path) -> None:
    daemon_process = DaemonProcess(directory, running.settings(directory))
    environment = {**os.environ, **daemon_process.environment}
    done = subprocess.run([control(), "-d"], env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    try:
        with client(daemon_process) as client_process:
            connect(client_process)
            (server,) = daemon_process.servers()
            text = f"get_server_status {server}\nget_client_list {server}\n{COMMANDS}"
            assert daemon_process.run_command(text) == f"ACTIVE\n{client_process.pid}\n100.0\n40.0\n"
            assert daemon_process.run_command("ps") == get_output_of(control(), daemon_process, "ps\n")
        daemon_process.run_command("quit -t 1")
    finally:
        end_all(daemon_process)
        daemon_process.stop()  # reaps what the vendor's daemon, which has no parent any more, has left
