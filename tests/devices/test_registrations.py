"""Servers on a device: exclusive or not, listed while they live, dropped when their process ends in any way."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pympsd.devices import state_folder
from pympsd.devices.machine import BadMachine
from pympsd.devices.registrations import InUse, Registered, list_registered, register
from pympsd.devices.state_folder import StateFolder

UUID = "GPU-7685caad-23a2-2403-a46b-a1dfeabe3819"
OTHER = "GPU-c194f552-d094-dc8e-63fd-a74b1b2f9eeb"
Fork = Callable[..., int]


@pytest.fixture
def folder() -> Iterator[StateFolder]:
    """Return a folder that every user can reach (pytest's own is root's)."""
    with tempfile.TemporaryDirectory(prefix="pympsd-test-") as directory:
        os.chmod(directory, 0o755)
        state_folder = StateFolder(f"{directory}/node.toml")
        state_folder.make()
        yield state_folder


@pytest.fixture
def server(folder: StateFolder) -> Iterator[Fork]:
    """Fork processes that register as a user; they are killed after the test."""
    children: list[int] = []

    def fork(uid: int = 0, alone: bool = False, uuid: str = UUID) -> int:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.setuid(uid)
                register(folder, uuid, alone).report([(uid + 1, 100), (uid + 2, 200)])
                os.write(writer, b"+")
                signal.pause()
            finally:
                os._exit(1)
        children.append(child)
        os.close(writer)
        with os.fdopen(reader, "rb") as output:
            assert output.read(1) == b"+", "it could not register"
        return child

    yield fork
    for child in children:
        end(child)


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # ended by the test


def test_an_exclusive_server_is_refused_while_another_lives(folder: StateFolder, server: Fork) -> None:
    pid = server()
    with pytest.raises(InUse) as refused:
        register(folder, UUID, alone=True)
    assert refused.value.pid == pid
    end(pid)
    register(folder, UUID, alone=True).end()


def test_servers_may_share_a_device(folder: StateFolder, server: Fork) -> None:
    pids = [server(), server()]
    assert [registered.pid for registered in list_registered(folder, UUID)] == sorted(pids)
    register(folder, OTHER, alone=True).end()


def test_an_exclusive_server_does_not_refuse_sharing_ones(folder: StateFolder, server: Fork) -> None:
    """The mode was changed, so the device may be shared again."""
    server(alone=True)
    register(folder, UUID, alone=False).end()


def test_an_exclusive_server_is_refused_for_another_users_server(folder: StateFolder, server: Fork) -> None:
    pid = server(uid=1000, alone=True)
    child = os.fork()
    if not child:
        try:
            os.setuid(1001)
            register(folder, UUID, alone=True)
        except InUse as error:
            os._exit(0 if error.pid == pid else 2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    end(pid)
    # User 1001 cannot remove the files of user 1000, but they do not count.
    assert server(uid=1001, alone=True)


def test_the_memory_of_clients_is_reported_immediately(folder: StateFolder, server: Fork) -> None:
    own = register(folder, UUID, alone=False)
    assert list_registered(folder, UUID) == [Registered(os.getpid(), ())]
    own.report([(7, 1 << 40), (8, 0)])
    assert list_registered(folder, UUID) == [Registered(os.getpid(), ((7, 1 << 40), (8, 0)))]
    own.report([(7, 5)], utilization=40)
    assert list_registered(folder, UUID) == [Registered(os.getpid(), ((7, 5),), 40)]
    own.report([])
    assert list_registered(folder, UUID) == [Registered(os.getpid(), ())]
    own.end()
    assert list_registered(folder, UUID) == []
    pid = server(uid=1000)
    assert list_registered(folder, UUID) == [Registered(pid, ((1001, 100), (1002, 200)))]


def test_ended_and_killed_servers_leave_nothing(folder: StateFolder, server: Fork) -> None:
    register(folder, UUID, alone=True).end()
    assert os.listdir(folder.path) == []
    end(server())
    assert len(os.listdir(folder.path)) == 2
    assert list_registered(folder, UUID) == []
    assert os.listdir(folder.path) == []


def test_files_of_other_users_are_ignored(folder: StateFolder) -> None:
    path = Path(folder.path)
    os.mkfifo(path / f"{UUID}.0.server")
    (path / f"{UUID}.1.server").symlink_to("/etc/passwd")
    (path / f"{UUID}.2.server").write_text("no number")
    (path / f"{UUID}.3.use").write_text("1 2\n")
    (path / f"{UUID}.4.server").mkdir()
    own = register(folder, UUID, alone=True)
    assert list_registered(folder, UUID) == [Registered(os.getpid(), ())]
    own.end()


def test_invalid_figures_are_ignored(folder: StateFolder) -> None:
    own = register(folder, UUID, alone=True)
    (name,) = os.listdir(folder.path)
    Path(folder.path, name.replace(".server", ".use")).write_text("not a figure\n")
    assert list_registered(folder, UUID) == [Registered(os.getpid(), ())]
    own.end()


def test_no_servers_are_found_without_a_folder(tmp_path: Path) -> None:
    assert list_registered(StateFolder(str(tmp_path / "missing.toml")), UUID) == []
    with pytest.raises(FileNotFoundError):
        register(StateFolder(str(tmp_path / "missing.toml")), UUID, alone=True)


def test_a_locked_folder_is_an_error_after_a_while(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_folder, "LOCK_SECONDS", 0.01)
    with folder.lock():
        with pytest.raises(TimeoutError, match="another process keeps it locked"):
            register(folder, UUID, alone=False)
        with pytest.raises(
            BadMachine,
            match=r"cannot determine which processes use the devices: .*another process keeps it locked.*fuser -v",
        ) as raised:
            list_registered(folder, UUID)
        assert "mkdir" not in str(raised.value)
    register(folder, UUID, alone=True).end()


def claim(folder: StateFolder, pid: object, uid: int) -> int:
    """Lock a registration file of a user with a PID; return its descriptor."""
    path = Path(folder.path, f"{UUID}.zz.server")
    path.write_text(f"{pid}\n")
    os.chown(path, uid, uid)
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@pytest.mark.parametrize("pid", [1, 1 << 22, 1 << 80, 0, -1])
def test_a_user_cannot_register_another_users_process(folder: StateFolder, pid: int) -> None:
    """1 << 22 is not a PID: the kernel's are smaller."""
    lock = claim(folder, pid, uid=1000)
    assert list_registered(folder, UUID) == []
    register(folder, UUID, alone=True).end()
    os.close(lock)


def test_users_and_root_can_register_their_own_processes(folder: StateFolder, server: Fork) -> None:
    server_1000 = server(uid=1000, uuid=OTHER)
    for pid, uid in ((server_1000, 1000), (1, 0)):
        lock = claim(folder, pid, uid)
        assert [registered.pid for registered in list_registered(folder, UUID)] == [pid]
        os.close(lock)
        assert list_registered(folder, UUID) == []


def test_a_process_hidden_by_proc_counts(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """User 1001 sees user 1000's processes like this if /proc is mounted with hidepid."""

    def not_mine(pid: int, number: int) -> None:
        raise PermissionError(pid)

    lock = claim(folder, 1 << 22, uid=1000)
    monkeypatch.setattr(os, "kill", not_mine)
    assert [registered.pid for registered in list_registered(folder, UUID)] == [1 << 22]
    os.close(lock)
