"""Files of the pipe directory are removed under a running daemon, as programs that clean /tmp do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from processes import ClientProcess, DaemonProcess, alive, suspend

from pympsd.vocabulary import files

pytestmark = pytest.mark.long

MakeDaemon = Callable[..., DaemonProcess]
Make = Callable[..., ClientProcess]
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


def start_one(make_daemon: MakeDaemon) -> DaemonProcess:
    """Start a daemon in the directory."""
    daemon = make_daemon()
    done = daemon.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return daemon


def end_daemon(daemon: DaemonProcess, number: signal.Signals) -> None:
    """End a daemon that cannot be reached any more."""
    os.kill(daemon.pid, number)
    daemon.await_end()


@pytest.mark.long(but=["the directory"])
@pytest.mark.parametrize("removed", ["the directory", "the lock"])
def test_a_daemon_leaves_its_successors_files_alone(
    daemon: DaemonProcess, make_daemon: MakeDaemon, make_client: Make, removed: str
) -> None:
    pipe = daemon.directory / "pipe"
    make_client().connect()  # whose server's end the first daemon would note in the state file
    daemon.wait_for_server_messages()  # at each event the daemon writes the state file again
    if removed == "the directory":
        pipe.rename(pipe.with_name("removed"))  # immediately: it writes what NVML reports every second
        pipe.mkdir()
    else:
        (pipe / files.LOCK).unlink()
    second = start_one(make_daemon)
    client = make_client().connect()
    (server,) = second.servers()
    before, state = set(os.listdir(pipe)), (pipe / files.STATE).read_bytes()
    end_daemon(daemon, signal.SIGTERM)
    assert set(os.listdir(pipe)) == before
    assert (pipe / files.STATE).read_bytes() == state
    second.kill()
    third = start_one(make_daemon)
    assert third.servers() == [server]
    assert client.call("add") == RIGHT


def test_a_daemon_whose_lock_is_gone_keeps_its_servers(
    daemon: DaemonProcess, make_daemon: MakeDaemon, make_client: Make
) -> None:
    client = make_client().connect()
    (server,) = daemon.servers()
    (daemon.directory / "pipe" / files.LOCK).unlink()
    second = start_one(make_daemon)
    # It would await them in vain, and kill them then.
    assert second.servers() == []
    kept = daemon.directory / "pipe" / files.STATE
    reason = f"the daemon that wrote it, process {daemon.pid}, still runs: its lock was removed"
    assert second.log().count(f"Ignoring {kept}: {reason}") == 1
    assert client.call("add") == RIGHT
    client.end()
    end_daemon(daemon, signal.SIGTERM)
    assert not alive(server)


@pytest.mark.long(but=["a client"])
@pytest.mark.parametrize("event", ["a command", "a client"])
def test_a_state_file_that_is_gone_comes_back(
    daemon: DaemonProcess, make_daemon: MakeDaemon, make_client: Make, event: str
) -> None:
    client = make_client().connect()
    (server,) = daemon.servers()
    (daemon.directory / "pipe" / files.STATE).unlink()
    if event == "a command":
        daemon.run_command("ps")
    else:
        make_client().connect()
    daemon.kill()
    second = start_one(make_daemon)
    assert second.servers() == [server]
    assert client.call("add") == RIGHT


def test_a_daemon_that_is_stopped_gets_no_request_to_hand_over(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    daemon.wait_for_server_messages()
    before = daemon.run_command("ps")
    suspend(daemon.pid)
    try:
        done = daemon.run(["-d", "--replace"])
        assert done.returncode == 1
        assert f"process {daemon.pid}, is stopped: continue it (kill -CONT {daemon.pid})" in done.stderr
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert daemon.run_command("ps") == before
    assert client.call("add") == RIGHT


def test_damaged_numbers_do_not_keep_a_daemon_from_running(daemon: DaemonProcess, make_daemon: MakeDaemon) -> None:
    daemon.kill()
    path = daemon.directory / "pipe" / files.STATE
    text = path.read_text()
    assert '"wishes":[]' in text
    path.write_text(text.replace('"wishes":[]', f'"wishes":[{1 << 40}]'))
    second = start_one(make_daemon)
    assert second.servers() == []
    assert f"Ignoring {path}: it is damaged: there is no user {1 << 40}" in second.log()
