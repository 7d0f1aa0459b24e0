"""How the fake server misbehaves on request, what it does not accept, and what it can do without."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_mps.install import install, misbehave
from fake_mps.minimal_daemon import MinimalDaemon, minimal_daemon
from fake_mps.peer import CREDENTIALS, HELLO
from fake_mps.programs import SECONDS, DriverClient


@pytest.mark.parametrize(
    ("messages", "message"),
    [((99,), "command 99"), ((9, 1), "4 bytes instead of 8 after command 9"), ((14, 1), "instead of int32 0")],
)
def test_what_no_daemon_sends_ends_the_server(
    daemon: MinimalDaemon, launcher: Path, messages: tuple[int, ...], message: str
) -> None:
    daemon.start(launcher)
    daemon.send(*messages)
    status, error = daemon.await_end()
    assert status == 3
    assert message in error


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_the_fake_server_ends_or_stays_before_it_connects(daemon: MinimalDaemon, tmp_path: Path, kind: str) -> None:
    daemon.spawn(install(tmp_path, **{kind: "before_hello"}))
    assert daemon.process is not None
    daemon.await_line(f"Connecting to control daemon on socket: {daemon.directory}/control")
    if kind == "crash":
        assert daemon.await_end()[0] == -signal.SIGKILL
    else:
        assert daemon.process.poll() is None
    daemon.listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        daemon.listener.accept()


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_the_fake_server_ends_or_stays_before_its_role(daemon: MinimalDaemon, tmp_path: Path, kind: str) -> None:
    daemon.spawn(install(tmp_path, **{kind: "before_role"}))
    assert daemon.process is not None
    daemon.server, _ = daemon.listener.accept()
    daemon.server.settimeout(SECONDS)
    daemon.send(HELLO)
    assert daemon.hear() == CREDENTIALS
    if kind == "crash":
        assert daemon.await_end()[0] == -signal.SIGKILL
        assert daemon.hear() == b""
    else:
        daemon.await_line("Initializing server process")
        assert daemon.is_silent()
        assert daemon.process.poll() is None


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_the_fake_server_ends_or_stays_after_its_role(daemon: MinimalDaemon, tmp_path: Path, kind: str) -> None:
    daemon.defaults = []
    daemon.start(install(tmp_path, **{kind: "after_role"}))
    assert len(daemon.ready) == 516
    if kind == "crash":
        assert daemon.await_end()[0] == -signal.SIGKILL
        assert daemon.hear() == b""
    else:
        assert daemon.is_silent()
        assert daemon.process is not None
        assert daemon.process.poll() is None


def test_the_fake_server_crashes_at_a_command(
    daemon: MinimalDaemon, tmp_path: Path, start: Callable[..., DriverClient]
) -> None:
    daemon.start(install(tmp_path, crash="on_command:17"))
    client = start(0)
    daemon.send(17)
    assert daemon.hear() == b""
    assert daemon.await_end()[0] == -signal.SIGKILL
    assert client.call("sync") == "sync CUDA_ERROR_MPS_RPC_FAILURE"


def test_the_fake_server_hangs_at_a_command(
    daemon: MinimalDaemon, tmp_path: Path, start: Callable[..., DriverClient]
) -> None:
    daemon.start(install(tmp_path, hang="on_command:17"))
    client = start(0)
    daemon.send(17, 8)
    assert client.call("sync") == "sync CUDA_SUCCESS", "its clients continue"
    assert daemon.is_silent()


def test_the_fake_server_closes_half_way(
    daemon: MinimalDaemon, tmp_path: Path, start: Callable[..., DriverClient]
) -> None:
    daemon.start(install(tmp_path, close="half_way:14"))
    start(0)
    assert daemon.number(14) == 1
    assert daemon.hear() == b""
    assert daemon.await_end() == (0, "")


def test_an_answer_of_a_wrong_size(daemon: MinimalDaemon, tmp_path: Path, start: Callable[..., DriverClient]) -> None:
    daemon.start(install(tmp_path, wrong_size=14))
    start(0)
    assert daemon.number(14) == 1
    assert len(daemon.hear()) == 44


def test_the_fake_server_leaves_a_command_unanswered(daemon: MinimalDaemon, tmp_path: Path) -> None:
    daemon.start(install(tmp_path, no_answer=8))
    daemon.send(8)
    assert daemon.number(17) == 1


def test_a_wrong_hello(daemon: MinimalDaemon, tmp_path: Path) -> None:
    daemon.spawn(install(tmp_path, wrong_hello=True))
    daemon.server, _ = daemon.listener.accept()
    daemon.server.settimeout(SECONDS)
    daemon.send(HELLO)
    assert daemon.hear() == b"OUTBCRE2\0"


def test_a_slow_start(daemon: MinimalDaemon, tmp_path: Path) -> None:
    begun = time.monotonic()
    daemon.start(install(tmp_path, start_seconds=0.2))
    assert time.monotonic() - begun >= 0.2


def test_the_next_server_behaves_otherwise(daemon: MinimalDaemon, tmp_path: Path) -> None:
    launcher = install(tmp_path, crash="on_command:17")
    with pytest.raises(ValueError, match=r"unknown: crush; allowed: devices, .*crash"):
        misbehave(launcher, crush="before_role")
    daemon.start(launcher)
    misbehave(launcher)
    daemon.send(17)
    assert daemon.hear() == b""
    daemon.await_end()
    assert daemon.server is not None
    daemon.server.close()
    daemon.start(launcher)
    assert daemon.number(17) == 1


def test_a_fake_client_without_a_daemon_fails(tmp_path: Path) -> None:
    with DriverClient.start(tmp_path) as client:
        assert client.call("init") == "init NO_DAEMON"
        assert client.call("ctx 0") == "ctx CUDA_ERROR_NOT_INITIALIZED"


def test_the_fake_server_runs_without_the_named_pipe(tmp_path: Path, launcher: Path) -> None:
    with minimal_daemon(tmp_path, log=False) as daemon:
        daemon.start(launcher)
        assert daemon.number(17) == 1
