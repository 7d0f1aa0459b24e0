"""The driver's own server under the daemon: with a made-up server and made-up CUDA programs, as processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import DaemonProcess, wait_until
from vendor.install import install
from vendor.programs import VendorClient, chain

USER = 65534
OTHER_USER = 1000

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")


@pytest.fixture
def launcher(directory: Path) -> Path:
    """The made-up server."""
    return install(directory)


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess], launcher: Path) -> DaemonProcess:
    """A daemon that leads the made-up server."""
    running = make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher))
    done = running.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return running


def pipe(daemon: DaemonProcess) -> Path:
    """Return the pipe directory."""
    return daemon.directory / "pipe"


def begun(client: VendorClient) -> VendorClient:
    """Make a context."""
    assert client.ask("init") == "init CUDA_SUCCESS"
    assert client.ask("ctx 0") == "ctx CUDA_SUCCESS"
    return client


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[VendorClient]:
    """A program with one context."""
    with VendorClient.start(pipe(daemon)) as running:
        yield begun(running)


def test_a_program_is_a_client_without_change(daemon: DaemonProcess, client: VendorClient) -> None:
    (server,) = daemon.servers()
    assert daemon.say(f"get_server_status {server}") == "ACTIVE\n"
    assert daemon.say(f"get_client_list {server}") == f"{client.pid}\n"
    _, row = daemon.say("ps").splitlines()
    assert row.split()[:3] == [str(client.pid), "1", str(server)]
    assert daemon.say("get_device_client_list") == f"[0] 00:00.0, NVIDIA H200\n{client.pid}.1\n"


def test_the_server_has_its_users_identity(daemon: DaemonProcess) -> None:
    with VendorClient.start(pipe(daemon), uid=USER) as client:
        begun(client)
        (server,) = daemon.servers()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{server}/status").read_text().splitlines())
        assert status["Uid"].split() == [str(USER)] * 4
        assert status["Gid"].split()[0] != ""


def test_a_user_has_the_turn_when_the_last_client_of_another_has_ended(daemon: DaemonProcess) -> None:
    with VendorClient.start(pipe(daemon)) as first, VendorClient.start(pipe(daemon), uid=USER) as second:
        begun(first)
        second.send("init")
        wait_until(lambda: any("waits for its turn" in line for line in daemon.log()))
        first.kill()
        assert second.answer() == "init CUDA_SUCCESS"


def test_an_operator_learns_that_a_server_does_not_answer(daemon: DaemonProcess, client: VendorClient) -> None:
    (server,) = daemon.servers()
    daemon.say("ps")
    os.kill(server, signal.SIGSTOP)
    try:
        done = daemon.run([], "ps\n")
        assert str(client.pid) in done.stdout
        assert done.stderr == f"server {server} does not answer: of it this says what was known before\n"
    finally:
        os.kill(server, signal.SIGCONT)


def test_quit_waits_for_the_clients_and_ends_the_server(daemon: DaemonProcess, client: VendorClient) -> None:
    quitting = daemon.begin("quit")
    wait_until(lambda: any("Server will not shutdown" in line for line in daemon.log()))
    assert client.ask("sync") == "sync CUDA_SUCCESS"
    client.exit()
    assert quitting.communicate(timeout=30) == ("", "")
    daemon.await_end()
    assert daemon.log()[-1] == "Exit with status 0"


def test_a_forced_quit_ends_the_clients_work(daemon: DaemonProcess, client: VendorClient) -> None:
    assert daemon.say("quit -t 0") == ""
    daemon.await_end()
    assert client.ask("sync") == "sync CUDA_ERROR_MPS_RPC_FAILURE"


def test_a_killed_daemon_is_replaced_and_nobody_notices(daemon: DaemonProcess, client: VendorClient) -> None:
    (server,) = daemon.servers()
    with VendorClient.start(pipe(daemon), "--loop") as loop, VendorClient.start(pipe(daemon), uid=USER) as waiting:
        assert [loop.answer(), loop.answer()] == ["init CUDA_SUCCESS", "ctx CUDA_SUCCESS"]
        assert loop.ask("steps 10").startswith("steps")
        waiting.send("init")
        wait_until(lambda: any("waits for its turn" in line for line in daemon.log()))
        before = daemon.say("ps")
        daemon.kill()
        with VendorClient.start(pipe(daemon)) as late:
            late.send("init")
            assert loop.ask("steps 10")
            assert waiting.waits()
            assert late.waits()
            assert daemon.start().returncode == 0
            assert late.answer() == "init CUDA_SUCCESS"
            assert late.ask("ctx 0") == "ctx CUDA_SUCCESS"
            assert daemon.servers() == [server]
            assert set(before.splitlines()) < set(daemon.say("ps").splitlines())
            assert client.ask("sync") == "sync CUDA_SUCCESS"
        loop.send("stop")
        _, result, steps, value = loop.answer().split()
        assert (result, int(value)) == ("CUDA_SUCCESS", chain(int(steps)))
        loop.end()
        client.kill()
        assert waiting.answer() == "init CUDA_SUCCESS"
