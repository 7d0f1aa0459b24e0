"""``trace start`` and PYMPSD_TRACE: what is in the file, whoever ends."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from processes import SECONDS, ClientProcess, DaemonProcess, alive, children_of, clients_of, suspend, wait_until

from pympsd.control import RunningDaemon
from pympsd.plot.tracks import Track, read_tracks
from pympsd.service.tracing import NO_DEVICES

EXECUTED = True
"""Launches are traced if the variable is set when a client is imported."""

pytestmark = pytest.mark.long

NOBODY = pwd.getpwnam("nobody").pw_uid
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
MakeClient = Callable[..., ClientProcess]


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[MakeClient]:
    """Make clients of the daemon."""
    with clients_of(daemon) as make:
        yield make


@pytest.fixture
def trace(directory: Path) -> Path:
    """Return where the trace is to be."""
    return directory / "trace.json"


def start(daemon: DaemonProcess, trace: Path) -> None:
    """Begin a trace."""
    done = daemon.run(["trace", "start", str(trace)])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def stop(daemon: DaemonProcess, trace: Path) -> dict[str, Track]:
    """Complete a trace; return its tracks by title, without the PIDs of clients' titles."""
    done = daemon.run(["trace", "stop"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = trace.read_text()
    assert json.loads(text)
    tracks = read_tracks([text])
    for track in tracks:
        assert all(entry.began <= entry.ended for entry in track.slices)
        if ": client" not in track.title:
            assert all(entry.ended <= later.began + 0.01 for entry, later in pairwise(track.slices)), track.title
    return {track.title: track for track in tracks}


def find_tracks(tracks: dict[str, Track], text: str) -> list[Track]:
    """Return the tracks that have a text in their titles."""
    return [track for title, track in tracks.items() if text in title]


def test_a_trace_has_clients_servers_and_what_devices_do(
    daemon: DaemonProcess, client: MakeClient, trace: Path
) -> None:
    early = client().connect()
    start(daemon, trace)
    late = client().connect()
    for program in (early, late):
        assert program.call("add") == RIGHT
        program.end()
    tracks = stop(daemon, trace)
    (status,) = find_tracks(tracks, "server uid_")
    assert [entry.name for entry in status.slices] == ["ACTIVE"]
    (work,) = find_tracks(tracks, "device 0: NVIDIA H200: work")
    assert {entry.client for entry in work.slices} == {early.pid, late.pid}
    for program in (early, late):
        (mps,) = find_tracks(tracks, f"client {program.pid}:")[:1]
        assert mps.slices[-1].name == f"client of uid_{os.geteuid()}"
        (stream,) = find_tracks(
            {title: track for title, track in tracks.items() if str(program.pid) in title}, "stream 0"
        )
        assert {"add_one", "copy"} <= {entry.name for entry in stream.slices}


def test_turns_waits_and_faults(make_daemon: Callable[..., DaemonProcess], trace: Path) -> None:
    daemon = make_daemon()
    assert daemon.start().returncode == 0
    start(daemon, trace)
    with clients_of(daemon) as client:
        first = client(0).connect()
        second = client(NOBODY)
        second.send("init")
        wait_until(lambda: "is waiting for its turn" in "".join(daemon.log()))
        first.end()
        assert second.result() == "CUDA_SUCCESS"
        assert second.call("ctx 0") == "CUDA_SUCCESS"
        second.call("trap")
        second.call("sync")
        second.end()
        tracks = stop(daemon, trace)
    (turns,) = find_tracks(tracks, "MPS control daemon: turns")
    assert [entry.name.partition(",")[0] for entry in turns.slices] == ["uid_0", f"uid_{NOBODY}"]
    (mps,) = (track for track in find_tracks(tracks, f"client {second.pid}:") if track.name == "MPS")
    assert [entry.name for entry in mps.slices] == ["waits for a server", f"client of uid_{NOBODY}"]
    assert [moment.name for track in tracks.values() for moment in track.moments] == ["fault"]
    (status,) = find_tracks(tracks, f"server uid_{NOBODY}")
    assert "FAULT" in [entry.name for entry in status.slices]


def test_servers_of_protocol_3(make_daemon: Callable[..., DaemonProcess], trace: Path) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "-p", "3").returncode == 0
    start(daemon, trace)
    for name in "ab":
        assert daemon.run(["server", "create", name]).returncode == 0
    with clients_of(daemon) as client:
        pipe = daemon.environment["CUDA_MPS_PIPE_DIRECTORY"]
        client_process = client(CUDA_MPS_PIPE_DIRECTORY=f"{pipe}/b").connect()
        assert client_process.call("add") == RIGHT
        client_process.end()
        tracks = stop(daemon, trace)
    assert len(find_tracks(tracks, "MPS control daemon: server ")) == 2
    assert find_tracks(tracks, "device 0: NVIDIA H200: work")


def test_wrong_trace_commands_are_refused(daemon: DaemonProcess, trace: Path) -> None:
    def get_refusal(*words: str, uid: int | None = None) -> str:
        done = daemon.run(["trace", *words], uid=uid)
        assert done.returncode == 1
        return done.stdout + done.stderr

    assert get_refusal("stop") == "There is no trace: begin one with 'trace start FILE'.\n"
    trace.write_text("mine")
    assert get_refusal("start", str(trace)) == f"{trace} exists: remove it, or name another file.\n"
    assert trace.read_text() == "mine"
    assert "No such file or directory" in get_refusal("start", f"{trace.parent}/no/such/folder")
    assert "give an absolute path" in daemon.run_command("trace start here.json")
    assert get_refusal("start") == "'trace start' needs <file>.\n"
    trace.unlink()
    start(daemon, trace)
    assert f"A trace is written to {trace}" in get_refusal("start", f"{trace}.2")
    if os.geteuid() == 0:
        assert "rivileges" in get_refusal("stop", uid=NOBODY)
    stop(daemon, trace)


def test_a_relative_path_is_that_of_the_tool(
    daemon: DaemonProcess, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    start(daemon, Path("here.json"))
    stop(daemon, directory / "here.json")


@pytest.mark.parametrize("name", ["a b.json", "a  b.json", "a=b c.json", "-- a.json"])
def test_a_path_may_have_blanks(
    daemon: DaemonProcess, directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    path = directory / name
    if not name.startswith("-"):
        start(daemon, Path(name))
        stop(daemon, path)
        path.unlink()
    assert RunningDaemon(daemon.environment["CUDA_MPS_PIPE_DIRECTORY"]).command(f"trace start {path}") == ""
    stop(daemon, path)


def test_help_needs_no_daemon(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    for words in (["trace", "--help"], ["trace", "start", "--help"]):
        done = daemon.run(words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("trace start <file>\n")


def test_a_trace_that_was_removed_is_missed(daemon: DaemonProcess, trace: Path) -> None:
    for lose in (trace.unlink, lambda: trace.rename(trace.with_suffix(".moved"))):
        start(daemon, trace)
        lose()
        done = daemon.run(["trace", "stop"])
        assert done.returncode == 1
        assert done.stdout == f"{trace} was removed or moved while the trace was written and no longer exists.\n"
    assert json.loads(trace.with_suffix(".moved").read_text())


@pytest.mark.long
def test_a_stopped_server_is_named(daemon: DaemonProcess, client: MakeClient, trace: Path) -> None:
    start(daemon, trace)
    assert client().connect().call("add") == RIGHT
    (server,) = daemon.servers()
    suspend(server)
    done = daemon.run(["trace", "stop"])
    os.kill(server, signal.SIGCONT)
    assert (done.returncode, done.stdout) == (0, "")
    text = "did not answer within 5 s: its kernels and copies may be missing.\n"
    assert done.stderr == f"server {server} {text}"
    assert json.loads(trace.read_text())


def test_a_trace_ends_with_the_daemon_that_is_replaced(
    make_daemon: Callable[..., DaemonProcess], trace: Path
) -> None:
    daemon = make_daemon()
    assert daemon.start().returncode == 0
    with clients_of(daemon) as client:
        client_process = client().connect()
        start(daemon, trace)
        assert client_process.call("add") == RIGHT
        done = daemon.start("-d", "--replace")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == f"the trace {trace} ended with the daemon before: begin another with 'trace start'\n"
        assert f"Trace {trace} ends because this daemon is exiting" in daemon.log()
        assert json.loads(trace.read_text())
        assert client_process.call("add") == RIGHT
        assert daemon.start("-d", "--replace").stderr == "", "it is reported once"


def test_an_executor_that_is_killed_leaves_whole_lines(
    daemon: DaemonProcess, client: MakeClient, trace: Path
) -> None:
    start(daemon, trace)
    client_process = client().connect()
    assert client_process.call("add") == RIGHT
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    os.kill(executor, 9)
    wait_until(lambda: not alive(executor))
    client_process.end()
    another = client().connect()
    assert another.call("add") == RIGHT
    stop(daemon, trace)
    work = [track for track in read_tracks([trace.read_text()]) if track.title == "device 0: NVIDIA H200: work"]
    assert len({track.process for track in work}) == 2


def test_a_daemon_that_ends_completes_its_trace(daemon: DaemonProcess, client: MakeClient, trace: Path) -> None:
    start(daemon, trace)
    client_process = client().connect()
    assert client_process.call("add") == RIGHT
    daemon.run(["quit", "-t", "0"])
    daemon.await_end()
    assert json.loads(trace.read_text())


def test_a_trace_ends_with_its_daemon(
    make_daemon: Callable[..., DaemonProcess], trace: Path, directory: Path
) -> None:
    daemon = make_daemon()
    assert daemon.start().returncode == 0
    start(daemon, trace)
    with clients_of(daemon) as client:
        client_process = client().connect()
        assert client_process.call("add") == RIGHT
        daemon.kill()
        assert daemon.start().returncode == 0
        wait_until(lambda: len(daemon.servers()) == 1)
        second = directory / "second.json"
        start(daemon, second)
        text = trace.read_text()
        assert client_process.call("add") == RIGHT
        assert find_tracks(stop(daemon, second), "stream 0")
        assert trace.read_text() == text
    assert read_tracks([text])


def test_the_calls_of_a_program(daemon: DaemonProcess, client: MakeClient, trace: Path) -> None:
    client_process = client(PYMPSD_TRACE=str(trace)).connect()
    assert client_process.call("add") == RIGHT
    another = client(PYMPSD_TRACE=str(trace)).connect()
    client_process.end()
    another.end()
    tracks = {track.title: track for track in read_tracks([trace.read_text()])}
    (calls,) = find_tracks(tracks, f"client {client_process.pid}:")
    assert {"cuInit", "cuLaunchKernel", "cuMemcpyDtoH"} <= {call.name for call in calls.slices}
    assert find_tracks(tracks, f"client {another.pid}:")


def test_an_impossible_trace_is_reported_once(daemon: DaemonProcess, client: MakeClient, trace: Path) -> None:
    client_process = client(PYMPSD_TRACE=f"{trace}/no").connect()
    assert client_process.call("add") == RIGHT
    _, output = client_process.process.communicate(timeout=SECONDS)
    assert output.startswith(f"PYMPSD_TRACE={trace}/no: ")
    assert output.endswith("; the program continues without a trace\n")
    assert output.count("\n") == 1


CALL = """
import resource
from pympsd_client import driver
driver.cuDriverGetVersion()
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # as a full disk
for _ in range(9):
    driver.cuDriverGetVersion()
"""


def run_traced(path: Path) -> str:
    """Run a program whose disk is full after the first call; return what it reports on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        env={**os.environ, "PYMPSD_TRACE": str(path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


def test_a_full_disk_is_reported_at_the_programs_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.touch()  # an empty file is as good as none
    assert run_traced(path) == (f"PYMPSD_TRACE={path}: File too large; the trace lacks the calls from then on\n")
    assert path.read_bytes().startswith(b"[\n{")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("file", "the file is not a trace"),
        ("link", "the path is a symbolic link"),
        ("fifo", "the path is not a regular file"),
    ],
)
def test_a_programs_trace_replaces_and_follows_nothing(tmp_path: Path, kind: str, reason: str) -> None:
    path, other = tmp_path / "trace.json", tmp_path / "other"
    other.write_text("[\n")
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    output = run_traced(path)
    assert output.startswith(f"PYMPSD_TRACE={path}: {reason}; give the path of a new or empty file, or of a trace;")
    assert output.count("\n") == 1
    assert other.read_text() == "[\n"
    assert kind != "file" or path.read_text() == "mine"


def test_a_trace_without_emulated_devices_is_refused_with_what_is_missing(
    start_driver_daemon: Callable[..., DaemonProcess], trace: Path
) -> None:
    daemon = start_driver_daemon()
    done = daemon.run(["trace", "start", str(trace)])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{NO_DEVICES}\n")
    stop(daemon, trace)
