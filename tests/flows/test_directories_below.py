"""Daemons that are started in a directory below another one's: that of a server or a namespace has a daemon."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import define
from processes import DaemonProcess, alive, clients_of, wait_until
from protocol3 import ctl, pipe, start

USER = 10001
RUNNING = "An instance of this daemon is already running\n"
LIMITED = "32"
"""The SMs of 25 % of an H200."""


@define
class Second:
    """A start in a directory below another daemon's; what starts is ended."""

    daemon: DaemonProcess

    def start(self, place: str, *words: str, uid: int = 0) -> subprocess.CompletedProcess[str]:
        """Start a daemon; end it again, unless it is refused."""
        below = DaemonProcess(self.daemon.directory, {"CUDA_MPS_PIPE_DIRECTORY": str(pipe(self.daemon, place))}, uid)
        done = below.run(["-d", *words])
        if done.returncode == 0:
            pid = int((pipe(self.daemon, place) / "nvidia-cuda-mps-control.pid").read_text())
            below.run(["quit"])
            os.waitpid(pid, 0)
        return done

    def is_refused(self, place: str, *words: str, uid: int = 0) -> bool:
        """Whether it is refused as the directory's own, and reports whose it is."""
        done = self.start(place, *words, uid=uid)
        server, _, namespace = place.partition("/")
        which = f"namespace '{namespace}' of server '{server}'" if namespace else f"server '{server}'"
        top = self.daemon.directory / "pipe"
        whose = f"{top / place} is the directory of {which} of the daemon at {top}"
        remedy = "commands reach it there; choose another CUDA_MPS_PIPE_DIRECTORY for another daemon"
        assert (done.returncode, done.stdout, done.stderr) == (1, RUNNING, f"{whose}: {remedy}\n")
        return True


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon of protocol 3 with a server ``a`` and namespaces of it."""
    running = start(make_daemon(PYMPSD_EMULATED_DEVICES="H200"))
    ctl(running, "server create a")
    ctl(running, "namespace create hi --server=a --active-thread-percentage=25")
    ctl(running, "namespace create box --server=a --clients-only")
    return running


@pytest.fixture
def second(daemon: DaemonProcess) -> Iterator[Second]:
    """Starts below the daemon."""
    return Second(daemon)


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("-p", "3"), ("--replace",), ("--replace", "-p", "3")], ids=" ".join)
def test_a_directory_of_a_namespace_takes_no_other_daemon(
    daemon: DaemonProcess, second: Second, words: tuple[str, ...]
) -> None:
    assert all(second.is_refused(place, *words) for place in ("a", "a/hi", "a/box", "a/default"))
    assert {entry.name for entry in pipe(daemon, "a/hi").iterdir()} == {"control"}
    with clients_of(daemon) as make:
        assert make(CUDA_MPS_PIPE_DIRECTORY=str(pipe(daemon, "a/hi"))).connect().call("sm") == LIMITED


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")
def test_nor_one_of_the_user_it_belongs_to(daemon: DaemonProcess, second: Second) -> None:
    ctl(daemon, f"server create theirs --uid={USER}")
    assert second.is_refused("theirs", uid=USER)
    assert second.is_refused("theirs/default", "--replace", uid=USER)
    daemon.kill()
    assert second.is_refused("theirs", uid=USER)
    start(daemon)


@pytest.mark.long
def test_a_killed_daemon_keeps_the_directories_of_its_namespaces(daemon: DaemonProcess, second: Second) -> None:
    keeper = daemon.keeper()
    daemon.kill()
    assert all(second.is_refused(place) for place in ("a", "a/hi", "a/box"))
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not alive(keeper))
    assert second.is_refused("a/hi"), "the state is there"
    start(daemon)
    with clients_of(daemon) as make:
        assert make(CUDA_MPS_PIPE_DIRECTORY=str(pipe(daemon, "a/hi"))).connect().call("sm") == LIMITED


@pytest.mark.long
def test_other_directories_below_may_have_daemons(daemon: DaemonProcess, make_daemon, directory: Path) -> None:  # type: ignore[no-untyped-def]
    (pipe(daemon, "a") / "own").mkdir()
    for place in (directory / "pipe" / "other", pipe(daemon, "a") / "own"):
        below = make_daemon(CUDA_MPS_PIPE_DIRECTORY=str(place))
        for _ in range(2):
            assert below.run(["-d"]).returncode == 0
            below.attach(int((place / "nvidia-cuda-mps-control.pid").read_text()))
            below.kill()
        assert below.run(["-d"]).returncode == 0
        below.attach(int((place / "nvidia-cuda-mps-control.pid").read_text()))
        below.run_command("quit")
        below.await_end()


def test_no_server_takes_the_directory_of_another_daemon(daemon: DaemonProcess, make_daemon) -> None:  # type: ignore[no-untyped-def]
    place = pipe(daemon, "other")
    place.mkdir()
    below = make_daemon(PYMPSD_EMULATED_DEVICES="H200", CUDA_MPS_PIPE_DIRECTORY=str(place))
    assert below.run(["-d"]).returncode == 0
    below.attach(int((place / "nvidia-cuda-mps-control.pid").read_text()))
    output = ctl(daemon, "server create other", 1)
    assert f"{place} has pympsd." in output
    assert "of a daemon of its own there: quit that, or remove the file" in output
    assert below.run_command("get_default_active_thread_percentage") == "100.0\n"


def test_what_is_left_without_a_daemon_above_is_free(daemon: DaemonProcess, second: Second) -> None:
    path = pipe(daemon, "a/hi") / "control"
    daemon.run_command("quit")
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        stale.listen()
    assert second.start("a/hi").returncode == 0


@pytest.mark.long
def test_a_directory_that_is_not_there_is_no_way_around_limits_in_protocol_3_only(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="H200")

    def begins(place: str) -> str:
        with clients_of(daemon) as make:
            settings = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe(daemon, place)), "PYMPSD_REQUIRE_MPS": ""}
            return make(**settings).call("init").split()[0]

    def quits() -> None:
        daemon.run(["quit"])
        wait_until(lambda: not alive(daemon.pid), "its end")

    for protocol, expected in (
        ("2", "CUDA_SUCCESS"),
        ("3", "CUDA_ERROR_MPS_CONNECTION_FAILED"),
        ("2", "CUDA_SUCCESS"),
    ):
        assert daemon.start("-d", "-p", protocol).returncode == 0
        assert [begins("none"), begins("none/below")] == [expected, expected]
        quits()
        assert [begins("none"), begins("none/below")] == [expected, expected], "the daemon has ended"
