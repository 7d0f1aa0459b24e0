"""Directories of servers and namespaces that are removed, or cannot be made, under a daemon of protocol 3."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable

import pytest
from processes import ClientProcess, DaemonProcess, clients_of, wait_until
from protocol3 import ctl, pipe, start

pytestmark = pytest.mark.long

USER, OTHER = 10001, 10002


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon of protocol 3 with a server ``a``, whose namespace ``hi`` is limited."""
    running = start(make_daemon(PYMPSD_EMULATED_DEVICES="2xH200"))
    ctl(running, "server create a")
    ctl(running, "namespace create hi --server=a --active-thread-percentage=25")
    return running


def sms_at(daemon: DaemonProcess, place: str, **more: str) -> str:
    """Return how many SMs a client of a directory has."""
    with clients_of(daemon) as make:
        client: ClientProcess = make(CUDA_MPS_PIPE_DIRECTORY=str(pipe(daemon, place)), **more)
        return client.connect().call("sm")


@pytest.mark.long(but=["a/hi-lost0"])
@pytest.mark.parametrize(("removed", "lost"), [("a/hi", ["a/hi"]), ("a", ["a", "a/default", "a/hi"])])
def test_a_directory_that_is_removed_is_created_again(daemon: DaemonProcess, removed: str, lost: list[str]) -> None:
    listed = ctl(daemon, "namespace list --format=csv")
    shutil.rmtree(pipe(daemon, removed))
    assert ctl(daemon, "namespace list --format=csv") == listed
    lines = [line for line in daemon.log() if "was removed" in line]
    assert sorted(lines) == [f"The socket of namespace '{name}' was removed; recreating it" for name in lost]
    assert [sms_at(daemon, place) for place in ("a", "a/hi")] == ["132", "32"]
    daemon.kill()
    start(daemon)
    assert sms_at(daemon, "a/hi") == "32", "the keeper held the new sockets"


def test_a_new_namespace_comes_with_what_its_server_has_lost(daemon: DaemonProcess) -> None:
    shutil.rmtree(pipe(daemon, "a"))
    ctl(daemon, "namespace create after --server=a")
    there = [
        place for place in ("a", "a/default", "a/hi", "a/after") if (pipe(daemon, place) / "control").is_socket()
    ]
    assert there == ["a", "a/default", "a/hi", "a/after"]
    assert pipe(daemon, "a/log").is_fifo()


def test_a_socket_that_is_removed_keeps_its_directory(daemon: DaemonProcess) -> None:
    before = pipe(daemon, "a/hi").stat().st_ino
    (pipe(daemon, "a/hi") / "control").unlink()
    assert sms_at(daemon, "a") == "132"  # any event will do
    assert pipe(daemon, "a/hi").stat().st_ino == before, "a container may have mounted it"
    assert sms_at(daemon, "a/hi") == "32"


def test_what_cannot_be_created_again_has_failed_until_it_can(daemon: DaemonProcess) -> None:
    shutil.rmtree(pipe(daemon, "a"))
    pipe(daemon, "a").write_text("in the way")
    reason = f"{pipe(daemon, 'a')} is not a directory: remove it"
    assert ctl(daemon, "server get a status") == "Failed"
    assert f'"reason": "{reason}"' in ctl(daemon, "server list a --format=json")
    assert ctl(daemon, "config status", 1).endswith(" pending=0 failed=3")
    assert daemon.log().count(f"Cannot create the sockets of 'a': {reason}") == 1, "it is tried at each event"
    pipe(daemon, "a").unlink()
    assert ctl(daemon, "server get a status") == "Ready"
    assert sms_at(daemon, "a/hi") == "32"
    assert ctl(daemon, "config status").endswith(" pending=0 failed=0")


def test_in_a_directory_that_another_daemon_has_taken_nothing_is_made(
    daemon: DaemonProcess, make_daemon: Callable[..., DaemonProcess]
) -> None:
    process = int(ctl(daemon, "server get a pid"))
    os.kill(daemon.pid, signal.SIGSTOP)  # so that it creates nothing before the second daemon has the directory
    shutil.rmtree(pipe(daemon, ""))
    pipe(daemon, "").mkdir()
    second = start(make_daemon(PYMPSD_EMULATED_DEVICES="2xH200"))
    os.kill(daemon.pid, signal.SIGCONT)
    ctl(second, "server create b")
    os.kill(process, signal.SIGKILL)  # an event of the first daemon
    wait_until(lambda: any(f"Server {process} exited" in line for line in daemon.log()), "the server's end")
    assert not pipe(second, "a").exists()
    os.kill(daemon.pid, signal.SIGTERM)
    daemon.await_end()
    assert pipe(second, "b/control").is_socket()


@pytest.mark.long
def test_servers_stay_when_the_next_daemon_has_other_devices(daemon: DaemonProcess) -> None:
    rows = ctl(daemon, "device list --server=a --format=csv,noheader").splitlines()
    first, second = (row.split(",")[3] for row in rows)
    ctl(daemon, "namespace set hi --server=a --pinned-memory-limit=4G")
    ctl(daemon, "namespace create lo --server=a --pinned-memory-limit=0=1G,1=2G")
    ctl(daemon, "server create b --allowed-devices=0")
    daemon.kill()
    daemon.settings["CUDA_VISIBLE_DEVICES"] = "1"
    start(daemon)
    assert ctl(daemon, "server get a allowed-devices") == second
    limits = [ctl(daemon, f"namespace get {name} a pinned-memory-limit") for name in ("default", "hi", "lo")]
    assert limits == ["unlimited", "4G", "2G"]
    seen = {"CUDA_VISIBLE_DEVICES": "0"}  # in the daemon's own numbering
    assert sms_at(daemon, "a/hi", **seen) == "32"
    # None of b's devices is left: its clients get the reason, and never continue without MPS.
    gone = f"names device {first}, which no longer exists; ignoring it"
    assert [line for line in daemon.log() if gone in line] == [f"Namespace 'a/lo' {gone}", f"Server 'b' {gone}"]
    assert ctl(daemon, "server get b status") == "Failed"
    assert "none of its devices exists any more" in ctl(daemon, "server list b --format=json")
    with clients_of(daemon) as make:
        client = make(CUDA_MPS_PIPE_DIRECTORY=str(pipe(daemon, "b")), PYMPSD_REQUIRE_MPS="", **seen)
        assert client.call("init") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    ctl(daemon, "server delete b")
    daemon.kill()
    del daemon.settings["CUDA_VISIBLE_DEVICES"]
    start(daemon)
    assert ctl(daemon, "namespace get hi a pinned-memory-limit") == "4G"
    assert sms_at(daemon, "a/hi") == "32"


@pytest.mark.long
def test_a_client_of_a_dead_daemons_namespace_gets_an_explanation(daemon: DaemonProcess) -> None:
    os.kill(daemon.keeper(), signal.SIGKILL)
    daemon.kill()
    daemon.kill_keeper()
    with clients_of(daemon) as make:

        def at(place: str, required: str = "") -> ClientProcess:
            return make(CUDA_MPS_PIPE_DIRECTORY=str(pipe(daemon, place)), PYMPSD_REQUIRE_MPS=required)

        for place in ("a", "a/hi"):
            client = at(place)
            assert client.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
            output = client.call("error")
            assert output.startswith(f"no MPS control daemon at {pipe(daemon, place)}/control (Connection refused); ")
        assert [client.call("init") for client in (at("a/hi", "0"), at(""))] == ["CUDA_SUCCESS"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="nothing is hidden from root, and others cannot be other users")
def test_a_client_that_may_not_see_its_directory_gets_an_explanation(daemon: DaemonProcess) -> None:
    pipe(daemon, "a").chmod(0o700)
    at = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe(daemon, "a/hi")), "PYMPSD_REQUIRE_MPS": ""}
    with clients_of(daemon) as make:
        client = make(USER, **at)
        assert client.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        assert "Permission denied" in client.call("error")


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")
def test_a_server_whose_sockets_cannot_be_its_new_users_stays_its_users(daemon: DaemonProcess) -> None:
    ctl(daemon, f"server create b --uid={USER}")
    notes = pipe(daemon, "b") / "notes"
    notes.write_text("of the user")
    output = ctl(daemon, f"server set b --uid={OTHER}", 1)
    assert output == f"Server 'b' stays that of user {USER}: {notes.parent} belongs to user {USER}: remove it"
    assert ctl(daemon, "server get b uid") == str(USER)
    wait_until(lambda: ctl(daemon, "server get b status") == "Ready", "its new process")
    with clients_of(daemon) as make:
        assert make(USER, CUDA_MPS_PIPE_DIRECTORY=str(notes.parent)).connect().call("sync") == "CUDA_SUCCESS"
    notes.unlink()
    wait_until(lambda: not ctl(daemon, "client list --format=csv,noheader"), "the client's end")
    ctl(daemon, f"server set b --uid={OTHER}")
    assert ctl(daemon, "server get b status") == "Ready", "it is answered when that is done"
    assert pipe(daemon, "b").stat().st_uid == OTHER
