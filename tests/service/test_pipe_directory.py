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
    assert not first.is_taken_by_another()
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
    assert first.is_taken_by_another()
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
    assert not directory.is_taken_by_another()
    directory.release()
    assert os.listdir(tmp_path) == ([files.PID] if pid_file == "is a fifo" else [])


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
    os.mkfifo(tmp_path / files.LOG_FIFO)
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


def test_a_path_too_long_for_a_socket_reports_how_long_it_may_be(tmp_path: Path) -> None:
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


def _write(path: Path, text: str = "mine") -> None:
    path.write_text(text)
    path.chmod(0o600)


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


FOREIGN = {
    "a plain file": _write,
    "an empty directory": Path.mkdir,
    "a link": lambda path: path.symlink_to("elsewhere"),
    "a socket": _bind,
    "a FIFO": os.mkfifo,
    "a PID and more": lambda path: _write(path, "12\nnot a daemon's"),
    "a longer number": lambda path: _write(path, "1" * 30),
    "some JSON": lambda path: _write(path, '{"mine": 1}'),
    "a saved state": lambda path: _write(path, '{"backend":"emulated","boot":"x"'),
}
"""What can be in the place of a daemon's files."""
EXPECTED = {
    **dict.fromkeys((files.CONTROL, files.CONTROL_PRIVILEGED, files.OWN_CONTROL, files.KEEPER), "a socket"),
    **dict.fromkeys((files.STATE, files.NEW_STATE), "a saved state"),
    files.LOG_FIFO: "a FIFO",
}
"""What of it a daemon may have left."""


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_size


@pytest.mark.parametrize("name", files.OF_THE_DAEMON)
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_no_daemon_made_is_neither_replaced_nor_removed(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    FOREIGN[kind](path)
    if kind == EXPECTED.get(name):
        PipeDirectory.claim(str(tmp_path)).release()
        return
    before = _identity(path)
    with pytest.raises(
        Unusable, match=f"^{path} is a.*, not a daemon's .*: move it away, or choose another directory"
    ):
        PipeDirectory.claim(str(tmp_path))
    assert _identity(path) == before
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("content", ["", "12", "12\n"])
def test_the_pid_file_of_a_dead_daemon_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / files.PID).write_text(content)
    directory = PipeDirectory.claim(str(tmp_path))
    directory.write_pid(7)
    assert (tmp_path / files.PID).read_text() == "7"
    directory.release()


def test_a_file_with_a_second_name_is_not_a_lock(tmp_path: Path) -> None:
    # Its mode would change for its other name, too.
    (tmp_path / "mine").touch(mode=0o600)
    (tmp_path / files.LOCK).hardlink_to(tmp_path / "mine")
    with pytest.raises(Unusable, match="not a daemon's lock file"):
        PipeDirectory.claim(str(tmp_path))
    assert _mode(tmp_path / "mine") == 0o600


@pytest.mark.parametrize("name", [files.CONTROL, files.KEEPER, files.LOG_FIFO, files.PID])
def test_a_file_that_appears_in_the_place_of_a_socket_is_not_replaced(tmp_path: Path, name: str) -> None:
    directory = PipeDirectory.claim(str(tmp_path))
    _write(tmp_path / name)
    make = {files.LOG_FIFO: directory.open_fifo, files.PID: lambda: directory.write_pid(1)}
    with pytest.raises(Unusable, match=f"{name} is a.*, not a daemon's"):
        make.get(name, lambda: directory.listen(name))()
    directory.remove(name)
    directory.release()
    assert (tmp_path / name).read_text() == "mine"


OTHERS = 65534
"""Another user."""


def _give(path: Path) -> None:
    os.chown(path, OTHERS, OTHERS, follow_symlinks=False)


LINKS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "another user's": (lambda folder, link: _give(link), f"that user {OTHERS} made"),
    "in a folder of another user": (lambda folder, link: _give(folder), f"that user {OTHERS} can replace"),
    "in a folder that all may write": (lambda folder, link: folder.chmod(0o777), "that other users can replace"),
    "in a folder that a group may write": (
        lambda folder, link: (os.chown(folder, 0, OTHERS), folder.chmod(0o775)),
        "that other users can replace",
    ),
    "own": (lambda folder, link: None, ""),
    "own, in a sticky folder": (lambda folder, link: folder.chmod(0o1777), ""),
    "another user's, in a sticky folder": (
        lambda folder, link: (folder.chmod(0o1777), _give(link)),
        f"that user {OTHERS} made",
    ),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's links")
@pytest.mark.parametrize("place", ["the directory", "a folder above it", "behind another link"])
@pytest.mark.parametrize("link", LINKS)
def test_a_link_that_another_user_controls_is_not_followed(tmp_path: Path, link: str, place: str) -> None:
    change, reason = LINKS[link]
    target = tmp_path / "t"
    (target / "p").mkdir(parents=True)
    folder = tmp_path / "f"
    folder.mkdir()
    above = place == "a folder above it"
    (folder / "l").symlink_to(target if above else "../t/p")
    change(folder, folder / "l")
    requested_path = folder / "l" / "p" if above else folder / "l"
    if place == "behind another link":
        (tmp_path / "first").symlink_to("f/l")
        requested_path = tmp_path / "first"
    if not reason:
        PipeDirectory.claim(str(requested_path)).release()
        return
    with pytest.raises(Unusable, match=f"{folder / 'l'}: a symbolic link to .* {reason}; give the path"):
        PipeDirectory.claim(str(requested_path))
    assert os.listdir(target / "p") == []


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(Unusable, match="choose a directory that can be made or written"):
        PipeDirectory.claim(str(tmp_path / "a"))


def test_a_relative_path_is_kept_as_given_and_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = PipeDirectory.claim("pipe")
    assert (directory.requested_path, directory.path) == ("pipe", str(tmp_path / "pipe"))
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
def test_a_lock_that_another_user_holds_is_replaced(tmp_path: Path, hold: Callable[..., int]) -> None:
    hold(65534)
    directory = PipeDirectory.claim(str(tmp_path))
    with pytest.raises(AlreadyRunning):
        PipeDirectory.claim(str(tmp_path))
    assert not directory.is_taken_by_another()
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
