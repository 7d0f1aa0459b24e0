"""The pipe directory: its files and modes, the remains of a dead daemon, and each way it cannot be used."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pympsd.service.files.pipe_directory import AlreadyRunning, PipeDirectory, Unusable
from pympsd.vocabulary import files


@pytest.fixture
def umask() -> Iterator[None]:
    """A umask that would change every mode."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("umask")
def test_the_files_have_the_modes_of_the_reference(tmp_path: Path) -> None:
    directory = PipeDirectory.claim(str(tmp_path / "pipe"))
    listeners = [directory.listen(files.CONTROL), directory.listen(files.CONTROL_PRIVILEGED)]
    fifo = directory.open_fifo()
    directory.write_pid(12345)
    where = tmp_path / "pipe"
    assert {path.name: _mode(path) for path in where.iterdir()} == {
        "control": 0o666,
        "control_privileged": 0o755,
        "control_lock": 0o666,
        "log": 0o777,
        "nvidia-cuda-mps-control.pid": 0o644,
    }
    assert (where / files.PID).read_bytes() == b"12345"
    assert stat.S_ISFIFO((where / "log").stat().st_mode)
    assert all(stat.S_ISSOCK((where / name).stat().st_mode) for name in ("control", "control_privileged"))
    for listener in listeners:
        listener.close()
    os.close(fifo)
    directory.release()
    assert {path.name for path in where.iterdir()} == {"control", "control_privileged", "control_lock"}


def _populate(directory: PipeDirectory, pid: int) -> None:
    """Create what a daemon of this PID creates, and an unfinished state file."""
    os.close(directory.open_fifo())
    directory.write_pid(pid)
    for name in (files.STATE, files.NEW_STATE):
        Path(directory.name(name)).touch()


@pytest.mark.parametrize("handed_over", [True, False])
def test_the_state_file_stays_only_for_a_daemon_that_takes_over(tmp_path: Path, handed_over: bool) -> None:
    directory = PipeDirectory.claim(str(tmp_path))
    _populate(directory, os.getpid())
    directory.release(handed_over=handed_over)
    assert set(os.listdir(tmp_path)) == {files.LOCK, *((files.STATE,) if handed_over else ())}


@pytest.mark.parametrize("removed", ["the directory", "the lock", "the lock, twice"])
def test_a_directory_taken_by_another_daemon_is_not_changed(tmp_path: Path, removed: str) -> None:
    first = PipeDirectory.claim(str(tmp_path / "pipe"))
    _populate(first, os.getpid())
    assert not first.taken_by_another()
    if removed == "the directory":
        shutil.rmtree(first.path)
    else:
        os.unlink(first.name(files.LOCK))
    second = PipeDirectory.claim(first.path)
    _populate(second, 1)
    if removed == "the lock, twice":
        os.unlink(second.name(files.LOCK))
    there = set(os.listdir(first.path))
    assert {files.PID, files.LOG_FIFO, files.STATE} < there
    assert first.taken_by_another()
    first.release()
    assert set(os.listdir(first.path)) == there
    second.release(handed_over=True)


@pytest.mark.parametrize("pid_file", ["names it", "is gone", "is empty", "is a fifo"])
def test_a_daemon_that_only_lost_its_lock_file_cleans_up(tmp_path: Path, pid_file: str) -> None:
    directory = PipeDirectory.claim(str(tmp_path))
    _populate(directory, os.getpid())
    os.unlink(directory.name(files.LOCK))
    pid_path = Path(directory.name(files.PID))
    if pid_file != "names it":
        pid_path.unlink()
    if pid_file == "is empty":
        pid_path.touch()
    elif pid_file == "is a fifo":
        os.mkfifo(pid_path)
    assert not directory.taken_by_another()
    directory.release()
    assert os.listdir(tmp_path) == []


def test_a_second_claim_fails_until_the_first_is_released(tmp_path: Path) -> None:
    first = PipeDirectory.claim(str(tmp_path))
    with pytest.raises(AlreadyRunning):
        PipeDirectory.claim(str(tmp_path))
    first.release()
    PipeDirectory.claim(str(tmp_path)).release()
    assert (tmp_path / files.LOCK).exists()


def test_the_files_of_a_dead_daemon_are_replaced(tmp_path: Path) -> None:
    for name in (files.CONTROL, files.CONTROL_PRIVILEGED):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / name))
    (tmp_path / files.PID).write_text("99")
    (tmp_path / files.LOG_FIFO).write_text("a file where the fifo goes")
    directory = PipeDirectory.claim(str(tmp_path))
    listener = directory.listen(files.CONTROL)
    fifo = directory.open_fifo()
    directory.write_pid(7)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(directory.name(files.CONTROL))
    assert (tmp_path / files.PID).read_text() == "7"
    assert stat.S_ISFIFO((tmp_path / files.LOG_FIFO).stat().st_mode)
    listener.close()
    os.close(fifo)
    directory.release()


def test_the_fifo_never_ends(tmp_path: Path) -> None:
    directory = PipeDirectory.claim(str(tmp_path))
    fifo = directory.open_fifo()
    writer = os.open(directory.name(files.LOG_FIFO), os.O_WRONLY)
    os.write(writer, b"line\n")
    os.close(writer)
    assert os.read(fifo, 100) == b"line\n"
    with pytest.raises(BlockingIOError):
        os.read(fifo, 1)
    os.close(fifo)
    directory.release()


def _path_of(tmp_path: Path, length: int) -> str:
    path = str(tmp_path / "x")
    return path + "x" * (length - len(path))


def test_a_path_too_long_for_a_socket_says_how_long_it_may_be(tmp_path: Path) -> None:
    room = 107 - len("control_privileged") - 1
    with pytest.raises(Unusable, match=f"too long for a socket: choose a path of at most {room} bytes"):
        PipeDirectory.claim(_path_of(tmp_path, room + 1))
    longest = PipeDirectory.claim(_path_of(tmp_path, room))
    longest.listen(files.CONTROL_PRIVILEGED).close()
    longest.release()


def test_bytes_count_not_characters(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="too long"):
        PipeDirectory.claim(str(tmp_path / ("ü" * 50)))


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pipe").write_text("")
    with pytest.raises(Unusable, match="File exists") as caught:
        PipeDirectory.claim(str(tmp_path / "pipe"))
    assert caught.value.directory == str(tmp_path / "pipe")


def test_only_the_last_folder_is_created(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="No such file"):
        PipeDirectory.claim(str(tmp_path / "missing" / "pipe"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [files.CONTROL, files.LOG_FIFO, files.PID])
def test_a_folder_where_a_file_goes_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    directory = PipeDirectory.claim(str(tmp_path))
    with pytest.raises(Unusable, match=f"{name} is a directory: remove it"):
        {
            files.CONTROL: lambda: directory.listen(files.CONTROL),
            files.LOG_FIFO: directory.open_fifo,
            files.PID: lambda: directory.write_pid(1),
        }[name]()
    (tmp_path / name).rmdir()
    directory.release()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    # The folder's owner could otherwise make root open another file to every user.
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    (pipe / files.LOCK).symlink_to(secret)
    with pytest.raises(Unusable, match=f"{pipe / files.LOCK} is a symbolic link to {secret}: remove it"):
        PipeDirectory.claim(str(pipe))
    assert _mode(secret) == 0o600


def test_a_pid_file_that_is_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    (pipe / files.PID).symlink_to(secret)
    directory = PipeDirectory.claim(str(pipe))
    directory.write_pid(8)
    assert secret.read_text() == "x"
    assert (pipe / files.PID).read_text() == "8"
    directory.release()


def test_a_relative_path_is_kept_as_given_and_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = PipeDirectory.claim("pipe")
    assert (directory.given, directory.path) == ("pipe", str(tmp_path / "pipe"))
    directory.release()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Let a process of a user hold the lock of a directory, and listen there if it is a daemon; return its PID."""
    started: list[subprocess.Popen[bytes]] = []

    def hold(uid: int, *, is_daemon: bool = False) -> int:
        (tmp_path / files.LOCK).touch()
        (tmp_path / files.LOCK).chmod(0o666)
        program = (
            "import fcntl, os, socket, sys\n"
            f"lock = open({str(tmp_path / files.LOCK)!r}, 'r+')\n"
            "fcntl.flock(lock, fcntl.LOCK_EX)\n"
            f"listener = socket.socket(fileno=int(sys.argv[1]))\n"
            f"{is_daemon} and listener.listen()\n"
            f"os.setuid({uid})\n"
            "print(flush=True); sys.stdin.read()"
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(tmp_path / files.CONTROL))
            child = subprocess.Popen(
                [sys.executable, "-c", program, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
            )
        started.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child.pid

    yield hold
    for child in started:
        with child:
            child.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for several users")
def test_a_lock_that_a_stranger_holds_is_replaced(tmp_path: Path, hold: Callable[..., int]) -> None:
    hold(65534)
    directory = PipeDirectory.claim(str(tmp_path))
    with pytest.raises(AlreadyRunning):
        PipeDirectory.claim(str(tmp_path))
    assert not directory.taken_by_another()
    assert _mode(tmp_path / files.LOCK) == 0o666
    directory.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for several users")
@pytest.mark.parametrize(("uid", "is_daemon"), [(65534, True), (0, False)])
def test_a_lock_that_a_daemon_may_hold_stays_and_its_holder_is_named(
    tmp_path: Path, hold: Callable[..., int], uid: int, is_daemon: bool
) -> None:
    pid = hold(uid, is_daemon=is_daemon)
    with pytest.raises(AlreadyRunning, match=f"{tmp_path / files.LOCK} is open in process {pid} of user {uid}"):
        PipeDirectory.claim(str(tmp_path))
