"""--replace when the daemon ends at that moment, has only just started, or is stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pympsd.service.files.pipe_directory import AlreadyRunning, Unusable
from pympsd.takeover import directory_claim
from pympsd.takeover.directory_claim import DEAD_SECONDS, CannotReplace, claim, replace
from pympsd.vocabulary import files

HOLD = """
import sys
from pympsd.service.files.pipe_directory import PipeDirectory
claimed = PipeDirectory.claim(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""


GONE = str((1 << 22) + 1)
"""The PID of no process: PIDs are below 2 to the 22nd (proc(5), pid_max)."""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a pipe directory and is named by its pid file."""
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        (tmp_path / files.PID).write_text(str(process.pid))
        yield process
        process.kill()


@pytest.mark.parametrize("reaped", [True, False])
def test_a_daemon_that_ends_before_the_check_counts_as_gone(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reaped: bool
) -> None:
    check = directory_claim._check

    def ends_first(folder: str, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if reaped:
            holder.wait()
        check(folder, pid)

    monkeypatch.setattr(directory_claim, "_check", ends_first)
    replace(str(tmp_path)).release()


def test_a_daemon_that_ends_after_the_check_counts_as_gone(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = directory_claim._check

    def ends_then(folder: str, pid: int) -> None:
        check(folder, pid)
        holder.kill()
        holder.wait()

    monkeypatch.setattr(directory_claim, "_check", ends_then)
    replace(str(tmp_path)).release()


def test_a_process_that_is_not_the_daemon_is_not_signalled(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / files.PID).write_text(str(os.getppid()))
    with pytest.raises(CannotReplace, match="is not the daemon that runs"):
        replace(str(tmp_path))
    assert holder.poll() is None


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text(""), lambda path: path.write_text(GONE)])
def test_a_pid_file_that_is_not_written_yet_is_read_again(
    holder: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], object],
) -> None:
    spoil(tmp_path / files.PID)
    monkeypatch.setattr(directory_claim.time, "sleep", lambda _: (tmp_path / files.PID).write_text(str(holder.pid)))
    replace(str(tmp_path)).release()
    assert holder.wait() == -directory_claim.HAND_OVER


def test_a_daemon_that_ends_after_removing_its_pid_file_counts_as_gone(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / files.PID).unlink()
    monkeypatch.setattr(directory_claim.time, "sleep", lambda _: (holder.kill(), holder.wait()))
    replace(str(tmp_path)).release()


@pytest.mark.parametrize(
    ("text", "reason"), [("", "does not contain its PID"), (GONE, f"process {GONE}, which does not exist")]
)
def test_a_pid_file_that_is_never_written_is_an_error(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setattr(directory_claim, "LOCK_SECONDS", 0)
    (tmp_path / files.PID).write_text(text)
    with pytest.raises(CannotReplace, match=reason):
        replace(str(tmp_path))
    assert holder.poll() is None


def test_a_stopped_daemon_is_not_signalled(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
    with pytest.raises(CannotReplace, match=f"process {holder.pid}, is stopped: continue it"):
        replace(str(tmp_path))
    # A pending signal would take effect on SIGCONT.
    status = Path(f"/proc/{holder.pid}/status").read_text()
    (pending,) = (line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd"))
    assert int(pending, 16) == 0


def test_a_daemon_that_does_not_end_in_time_is_reported_to_end_later(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_claim, "HAND_OVER_SECONDS", 0.0)
    monkeypatch.setattr(directory_claim, "HAND_OVER", signal.SIGURG)  # which it ignores
    with pytest.raises(CannotReplace, match="and will end when it continues; kill -9"):
        replace(str(tmp_path))


# --- without --replace


def test_the_lock_of_a_killed_daemon_is_waited_for(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that it was just starting shares the lock until it calls exec."""
    (tmp_path / files.PID).write_text(GONE)
    waits: list[float] = []

    def goes(seconds: float) -> None:
        waits.append(seconds)
        holder.kill()
        holder.wait()

    monkeypatch.setattr(directory_claim.time, "sleep", goes)
    claim(str(tmp_path)).release()
    assert len(waits) == 1


@pytest.mark.parametrize(("pid", "seconds"), [(GONE, DEAD_SECONDS), ("", 0.0), ("1", 0.0)])
def test_a_lock_that_stays_held_belongs_to_a_running_daemon(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: str, seconds: float
) -> None:
    (tmp_path / files.PID).write_text(pid)
    waits: list[float] = []
    monkeypatch.setattr(directory_claim.time, "sleep", waits.append)
    monkeypatch.setattr(directory_claim.time, "monotonic", lambda: sum(waits))
    with pytest.raises(AlreadyRunning):
        claim(str(tmp_path))
    assert seconds <= sum(waits) <= seconds + 0.1
    assert holder.poll() is None


def test_a_socket_that_somebody_has_in_a_directory_of_no_daemon_is_not_taken(tmp_path: Path) -> None:
    """As in a container that sees the directory of a namespace only."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / files.CONTROL))
        listener.listen()
        for start in (claim, replace):
            with pytest.raises(AlreadyRunning, match=f"^process {os.getpid()} of user {os.getuid()} listens at "):
                start(str(tmp_path))
        (tmp_path / files.LOCK).touch()
        for start in (claim, replace):
            with pytest.raises(Unusable, match=f"process {os.getpid()} of user .*, which is not a daemon of this"):
                start(str(tmp_path))
        assert (tmp_path / files.CONTROL).is_socket()
    (tmp_path / files.LOCK).unlink()
    claim(str(tmp_path)).release()
