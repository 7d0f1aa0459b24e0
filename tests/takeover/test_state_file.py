"""The state file: its mode, its atomic replacement, and every state that is refused."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field

from pympsd.devices.machine import describe
from pympsd.service.processes.status import start_time_of
from pympsd.takeover import state_file
from pympsd.takeover.state.records import PersistentNamespace, PersistentServer, PersistentState
from pympsd.takeover.state_file import StateFile, StateRefused, device_keys, list_lost_in_protocol_2, read
from pympsd.vocabulary import files
from pympsd.vocabulary.limit_table import Limits, percentages
from pympsd.vocabulary.limits import ClientPriority, PinnedMemory

DEVICES = device_keys(describe("2xH200"))
KNOWN = PersistentState(
    generation=1,
    thread_percentage=40.0,
    client_priority=1,
    memory_limits={1: 2 << 30},
    wishes=(500,),
    servers=(PersistentServer(3, os.getpid(), 500, 30.0, {0: 1 << 30}),),
)


@define
class Log:
    """Records errors."""

    errors: list[tuple[str, dict[str, Any]]] = field(factory=list)

    def error(self, event: str, **fields: object) -> None:
        """Record one."""
        self.errors.append((event, fields))


@pytest.fixture
def saved(tmp_path: Path) -> StateFile:
    """A file that holds KNOWN."""
    file = StateFile(str(tmp_path), lambda: DEVICES, Log())
    file.save(KNOWN)
    return file


def test_the_saved_state_is_read_back(saved: StateFile) -> None:
    saved_state = read(saved.folder)
    assert saved_state is not None
    assert saved_state.remembered == KNOWN
    assert saved_state.devices == DEVICES
    assert saved_state.started == {os.getpid(): start_time_of(os.getpid())}
    assert start_time_of(os.getpid()) > 0


def test_only_the_owner_may_read_the_state_file(saved: StateFile) -> None:
    status = os.lstat(os.path.join(saved.folder, files.STATE))
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert stat.S_ISREG(status.st_mode)
    assert os.listdir(saved.folder) == [files.STATE]


def test_the_state_file_is_replaced_atomically_and_only_after_a_change(saved: StateFile) -> None:
    path = Path(saved.folder) / files.STATE
    with path.open("rb") as reader:
        first = path.stat().st_ino
        saved.save(evolve(KNOWN))
        assert path.stat().st_ino == first
        saved.save(evolve(KNOWN, wishes=()))
        # A reader of the earlier file reads all of it.
        assert json.loads(reader.read())["remembered"]["wishes"] == [500]
    assert json.loads(path.read_bytes())["remembered"]["wishes"] == []


def test_the_state_file_exists_even_if_there_is_nothing_to_save(saved: StateFile) -> None:
    saved.save(PersistentState())
    assert os.listdir(saved.folder) == [files.STATE]
    saved_state = read(saved.folder)
    assert saved_state is not None
    assert (saved_state.remembered, saved_state.started) == (PersistentState(), {})


def test_the_remains_of_an_interrupted_write_are_replaced(saved: StateFile, tmp_path: Path) -> None:
    state = (tmp_path / files.STATE).read_bytes()
    for length in (0, 5, len(state) - 1):
        (tmp_path / files.NEW_STATE).write_bytes(state[:length])
        saved.save(evolve(KNOWN, wishes=(length,)))
        assert os.listdir(saved.folder) == [files.STATE]


@pytest.mark.parametrize("name", [files.STATE, files.NEW_STATE])
def test_somebodys_own_file_is_not_replaced(tmp_path: Path, name: str) -> None:
    for make in (lambda path: path.write_text("mine"), lambda path: path.symlink_to("elsewhere")):
        make(tmp_path / name)
        before = (tmp_path / name).lstat()
        file = StateFile(str(tmp_path), lambda: DEVICES, log := Log())
        file.save(KNOWN)
        assert (tmp_path / name).lstat().st_ino == before.st_ino
        ((event, fields),) = log.errors
        assert event == "state_not_written"
        assert fields["reason"].startswith(f"{tmp_path / name} is a ")
        (tmp_path / name).unlink()


def test_a_failure_is_logged_once_and_retried(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path / "gone"), lambda: DEVICES, log := Log())
    file.save(KNOWN)
    file.save(evolve(KNOWN, wishes=()))
    assert log.errors == [("state_not_written", {"reason": "No such file or directory"})]
    (tmp_path / "gone").mkdir()
    file.save(evolve(KNOWN, wishes=()))
    assert os.listdir(file.folder) == [files.STATE]


def test_a_removed_file_is_written_again(saved: StateFile) -> None:
    os.unlink(os.path.join(saved.folder, files.STATE))
    saved.save(KNOWN)
    saved_state = read(saved.folder)
    assert saved_state is not None
    assert saved_state.remembered == KNOWN


def test_in_a_folder_taken_by_another_daemon_nothing_is_changed(saved: StateFile, tmp_path: Path) -> None:
    before = (tmp_path / files.STATE).read_bytes()
    first = StateFile(saved.folder, lambda: DEVICES, log := Log(), lambda: True)
    first.save(PersistentState())
    assert (tmp_path / files.STATE).read_bytes() == before
    assert log.errors == [("state_not_written", {"reason": "another daemon has taken the pipe directory"})]


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit every file to 100 bytes, including those that pytest writes its output to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_room_a_failed_write_leaves_nothing_behind(saved: StateFile) -> None:
    with full_disk():
        saved.save(PersistentState())
    assert saved.log.errors == [("state_not_written", {"reason": "File too large"})]
    assert os.listdir(saved.folder) == [files.STATE]


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.chmod(0o640), "other than the owner"),
        (lambda path: os.link(path, path.with_name("copy")), "other than the owner"),
        (lambda path: os.chown(path, 500, 500), "belongs to user 500"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "damaged"),
        (lambda path: path.write_bytes(os.urandom(500)), "damaged"),
        (lambda path: path.write_bytes(b"[" * 100000), "damaged"),
        (lambda path: path.write_bytes(b"x" * ((4 << 20) + 1)), "longer than"),
        (lambda path: _edit(path, lambda state: state.update(format=3)), "format 3"),
        (lambda path: _edit(path, lambda state: state.update(boot="yesterday")), "was started"),
        (lambda path: _edit(path, lambda state: state.update(pid_namespace=5)), "was started"),
        (lambda path: _edit(path, lambda state: state["remembered"].update(thread_percentage=0)), "damaged"),
        (lambda path: _edit(path, lambda state: state["remembered"].update(generation=1 << 22)), "no generation"),
        (lambda path: _edit(path, lambda state: state["remembered"].update(wishes=[-7])), "no user -7"),
        (lambda path: _edit(path, lambda state: state["remembered"]["servers"][0].update(pid=1 << 31)), "no process"),
        (lambda path: (path.rename(f"{path}.x"), path.symlink_to(f"{path}.x")), "symbolic links"),
        (lambda path: (path.unlink(), path.mkdir(0o700)), "not a regular file"),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "not a regular file"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(saved: StateFile, spoil: Callable[[Path], object], reason: str) -> None:
    spoil(Path(saved.folder) / files.STATE)
    with pytest.raises(StateRefused, match=reason):
        read(saved.folder)


def test_an_impossible_state_is_not_listed_as_lost_in_protocol_2(saved: StateFile) -> None:
    saved.save(evolve(KNOWN, default_socket=False))
    assert list_lost_in_protocol_2(saved.folder, Limits()) == ["default_socket=off of context-share"]
    _edit(Path(saved.folder) / files.STATE, lambda state: state["remembered"].update(thread_percentage=0))
    assert list_lost_in_protocol_2(saved.folder, Limits()) == []


def test_a_state_file_whose_writer_runs_is_refused(saved: StateFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "DYING_SECONDS", 0)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as writer:
        written = [writer.pid, start_time_of(writer.pid)]
        _edit(Path(saved.folder) / files.STATE, lambda state: state.update(writer=written))
        with pytest.raises(StateRefused, match=f"process {writer.pid}, still runs"):
            read(saved.folder)
        os.kill(writer.pid, signal.SIGKILL)
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
        assert read(saved.folder) is not None, "a zombie no longer runs"
        writer.wait()
    assert read(saved.folder) is not None


def test_a_later_process_with_the_writers_pid_is_not_the_writer(saved: StateFile) -> None:
    _edit(Path(saved.folder) / files.STATE, lambda state: state.update(writer=[os.getppid(), 5]))
    assert read(saved.folder) is not None


def test_a_file_of_an_earlier_version_has_no_writer(saved: StateFile) -> None:
    _edit(Path(saved.folder) / files.STATE, lambda state: state.pop("writer"))
    assert read(saved.folder) is not None


def test_a_process_that_is_gone_has_no_start_time() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert start_time_of(process.pid) == -1


OLD_SERVER = {
    "name": "a",
    "uid": 500,
    "namespaces": [
        {
            "name": "default",
            "thread_percentage": 30.0,
            "pinned_memory": {"1": 1 << 30},
            "client_priority": 1,
            "clients_only": True,
            "total_memory": {"0": 2 << 30},
            "sm_partition": "p",
        },
        {"name": "hi", "thread_percentage": None},
    ],
    "max_thread_percentage": 60.0,
    "max_pinned_memory": {"0": 3 << 30},
}
OLD_RULE = {"number": 1, "limits": {"thread_percentage": {"value": 25.0}, "pinned_memory": {"0": {"value": 1 << 30}}}}


def _make_old(state: dict[str, Any]) -> None:
    """Make a state one of format 1, as pympsd wrote it before 27 November 2026."""
    state["format"] = 1
    state["remembered"].update(named_servers=[OLD_SERVER], rules=[OLD_RULE], protocol=3)


def test_limits_of_format_1_are_read(saved: StateFile) -> None:
    _edit(Path(saved.folder) / files.STATE, _make_old)
    saved_state = read(saved.folder)
    assert saved_state is not None
    (server,), (rule,) = saved_state.remembered.named_servers, saved_state.remembered.rules or ()
    one, two, three = (PinnedMemory(count << 30) for count in (1, 2, 3))
    limits = Limits(percentages(30.0), {1: one}, ClientPriority(1), {0: two}, "p")
    assert server.namespaces == (PersistentNamespace("default", limits, True), PersistentNamespace("hi"))
    assert server.maximum == Limits(percentages(60.0), {0: three})
    assert rule.limits == Limits(percentages(25.0), {0: one})
    assert saved_state.remembered.servers == KNOWN.servers


@pytest.mark.parametrize(
    "spoil", [{"max_thread_percentage": 0.0}, {"namespaces": 5}, {"max_pinned_memory": {"9": 1}}]
)
def test_limits_of_format_1_that_no_daemon_can_have_had_are_refused(
    saved: StateFile, spoil: dict[str, object]
) -> None:
    def change(state: dict[str, Any]) -> None:
        _make_old(state)
        state["remembered"]["named_servers"] = [{**OLD_SERVER, **spoil}]

    _edit(Path(saved.folder) / files.STATE, change)
    with pytest.raises(StateRefused, match="damaged"):
        read(saved.folder)
