"""Daemons that a program starts and asks: typed answers, refusals, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from processes import alive, wait_until

from pympsd.control import CannotAsk, CannotStart, Daemon, RunningDaemon
from pympsd.control.trio_daemon import open_daemon

CLIENT = """
from pympsd_client import driver as cuda
assert cuda.cuInit(0)[0] == 0
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(1)[1])
assert cuda.cuMemAlloc(1 << 30)[0] == 0
print("ready", flush=True)
input()
"""
SECONDS = 30


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon(machine="2xH200") as daemon:
        yield daemon


def _client(daemon: RunningDaemon, **where: str) -> subprocess.Popen[str]:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        env={**os.environ, **daemon.environment(**where)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    return client


@pytest.mark.long
def test_what_runs_is_reported_in_values(daemon: Daemon) -> None:
    assert [(device.ordinal, device.name) for device in daemon.devices()] == [(0, "NVIDIA H200"), (1, "NVIDIA H200")]
    assert (daemon.servers(), daemon.ps(), daemon.waiting()) == ((), (), ())
    daemon.command("set_default_device_pinned_mem_limit 1 4G")
    client = _client(daemon)
    (server,) = daemon.servers()
    assert (server.uid, server.status, server.pinned_memory_limits) == (os.geteuid(), "ACTIVE", {1: 4 << 30})
    (seen,) = daemon.ps()
    assert seen in server.clients
    assert (seen.pid, seen.uid, [context.device for context in seen.contexts]) == (client.pid, os.geteuid(), [1])
    wait_until(lambda: daemon.ps()[0].memory_bytes.get(1, 0) > 1 << 30)
    client.communicate("\n", timeout=SECONDS)
    wait_until(lambda: daemon.ps() == ())


def test_a_refused_command_raises_with_the_daemons_sentence(daemon: Daemon) -> None:
    with pytest.raises(CannotAsk, match="quit please no"):
        daemon.command("quit please no")
    assert daemon.pid


def test_a_daemon_that_cannot_start_reports_why_and_leaves_nothing() -> None:
    never = Daemon(machine="H200", options=("--users", "nobody"))
    with pytest.raises(CannotStart, match="--users must be one of in-turn, together, not 'nobody'"), never:
        pass
    assert not Path(never.pipe_directory).parent.exists()


@pytest.mark.long(but=["3"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_daemon_ends_with_its_servers_clients_or_not(protocol: int) -> None:
    with Daemon(machine="2xH200", protocol=protocol) as daemon:
        client = _client(daemon)
        (server,) = daemon.servers()
        pid = daemon.pid
    assert not alive(pid)
    wait_until(lambda: not alive(server.pid))
    assert daemon.pid == 0
    assert not Path(daemon.pipe_directory).exists()
    client.communicate("\n", timeout=SECONDS)
    with pytest.raises(CannotAsk, match=daemon.pipe_directory):
        daemon.ps()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_somebody_else_ends_is_not_an_error(number: signal.Signals) -> None:
    with Daemon(machine="2xH200") as daemon:
        client = _client(daemon)
        (server,) = daemon.servers()
        os.kill(daemon.pid, number)
        wait_until(lambda: daemon.pid == 0)
    assert not alive(server.pid)
    assert not Path(daemon.pipe_directory).exists()
    client.communicate("\n", timeout=SECONDS)


def test_a_daemon_is_started_once(daemon: Daemon) -> None:
    pid = daemon.pid
    with pytest.raises(CannotStart, match=f"is already running, as process {pid}"):
        daemon.start()
    assert daemon.pid == pid
    assert daemon.devices()


def test_a_daemon_that_ended_can_be_started_again() -> None:
    daemon = Daemon(machine="H200")
    for _ in range(2):
        with daemon:
            assert len(daemon.devices()) == 1


def test_a_directory_whose_name_is_too_long_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(CannotStart, match="AF_UNIX path too long"):
        Daemon(machine="H200").start()
    assert list(folder.iterdir()) == []


@pytest.mark.long
def test_the_logs_of_named_servers() -> None:
    with Daemon(machine="H200", protocol=3) as daemon:
        daemon.command("server create a")
        wait_until(lambda: Path(daemon.log_directory, "a", "server.log").exists())
        assert Path(daemon.log_directory, "a", "server.log").read_text() in daemon.log()


def test_the_environment_of_the_callers_own_daemon_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv("PYMPSD_USERS", "nonsense")
    with Daemon(machine="H200", settings={"CUDA_MPS_CLIENT_PRIORITY": "1"}) as daemon:
        assert daemon.command("get_default_active_thread_percentage") == "100.0\n"
        assert daemon.command("get_default_client_priority") == "1\n"
        assert "PERCENTAGE" not in daemon.log()
        assert "nonsense" not in daemon.log()


def test_attaching_to_a_daemon_that_runs(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RunningDaemon(daemon.pipe_directory).devices() == daemon.devices()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe_directory)
    assert RunningDaemon().devices() == daemon.devices()


@pytest.mark.long
def test_clients_of_namespaces() -> None:
    with Daemon(machine="2xH200", protocol=3) as daemon:
        daemon.command("server create a")
        daemon.command("namespace create hi --server=a")
        client = _client(daemon, server="a", namespace="hi")
        (seen,) = daemon.ps()
        assert (seen.pid, seen.namespace) == (client.pid, "hi")
        (row,) = daemon.listing("client list --server=a")
        assert (row["pid"], row["namespace"]) == (client.pid, "hi")
        with pytest.raises(CannotAsk, match="No server named 'b'"):
            daemon.listing("client list --server=b")
        client.communicate("\n", timeout=SECONDS)


async def test_a_daemon_is_usable_with_trio() -> None:
    async with open_daemon(machine="H200", protocol=3) as daemon:
        await daemon.command("server create a")
        (server,) = await daemon.servers()
        assert (server.name, await daemon.ps(), await daemon.waiting()) == ("a", (), ())
        assert [row["name"] for row in await daemon.listing("server list")] == ["a"]
        assert len(await daemon.devices()) == 1
        pipe = daemon.daemon.pipe_directory
    assert not Path(pipe).exists()


async def test_a_cancelled_block_ends_its_daemon() -> None:
    with trio.CancelScope() as scope:
        async with open_daemon(machine="H200") as daemon:
            pipe = daemon.daemon.pipe_directory
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert not Path(pipe).exists()


def test_a_configuration_file_is_applied(tmp_path: Path) -> None:
    file = tmp_path / "servers.toml"
    file.write_text('schema_version = "1.0"\n[servers.a]\n')
    with Daemon(machine="H200", protocol=3) as daemon:
        assert "a" in daemon.command(f"config apply {file}")
        assert [row["name"] for row in daemon.listing("server list")] == ["a"]
        with pytest.raises(CannotAsk, match="No such file"):
            daemon.command(f"config apply {tmp_path}/none.toml")


@pytest.mark.long
def test_a_daemon_that_was_killed_is_started_again() -> None:
    with Daemon(machine="2xH200") as daemon:
        client = _client(daemon)
        (server,) = daemon.servers()
        os.kill(daemon.pid, signal.SIGKILL)
        wait_until(lambda: daemon.pid == 0)
        daemon.start()
        wait_until(lambda: [server.pid for server in daemon.servers()] == [server.pid])
        assert [process.pid for process in daemon.ps()] == [client.pid]
    client.communicate("\n", timeout=SECONDS)
