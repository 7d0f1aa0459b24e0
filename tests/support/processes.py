"""Real processes for the flows: a daemon in a directory of its own, and clients that do one step a line."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from attrs import define, field
from tested_machine import on_gpu, with_machine

BIN = Path(sys.executable).parent
PYMPSD = str(BIN / "pympsd")
CLIENT = str(Path(__file__).with_name("client_program.py"))
SECONDS = 30.0
"""The absolute limit of anything a flow waits for."""

EXECUTORS_SECONDS = 10.0
"""Executors whose server was killed have so long to leave a GPU."""

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of daemons, so that they are reaped at once whatever PID 1 is; or be that no more."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, what: str = "what was waited for", seconds: float = SECONDS) -> None:  # type: ignore[no-untyped-def]
    """Look again and again, within the limit, for something that no descriptor tells."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"{what} did not happen within {seconds:.0f} s"
        os.sched_yield()


def shared_memory() -> set[str]:
    """Return what is in /dev/shm; on a GPU without what its driver keeps there, for other tests' processes too."""
    return {name for name in os.listdir("/dev/shm") if not (on_gpu() and name.startswith(("cuda", "nv")))}


def children_of(pid: int) -> list[int]:
    """Return the PIDs of a process's children."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that ended meanwhile
    return found


@define
class DaemonProcess:
    """A daemon under test and how to talk to it."""

    directory: Path
    settings: dict[str, str] = field(factory=dict)
    uid: int = 0
    command: str = PYMPSD
    pid: int = 0
    _reaper: threading.Thread | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the daemon and its tools run with."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.directory / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.directory / "log"),
            **with_machine(self.settings),
        }

    def start(self, option: str = "-d", *more: str) -> subprocess.CompletedProcess[str]:
        """Run ``pympsd -d`` as a script does, its output captured: it hangs here if the daemon kept the pipe."""
        done = self.run([option, *more])
        pid_file = self.directory / "pipe" / "nvidia-cuda-mps-control.pid"
        if done.returncode == 0 and pid_file.exists():
            self.pid = int(pid_file.read_text())
            self._reaper = threading.Thread(target=_reap, args=(self.pid,))
            self._reaper.start()
        return done

    def kill(self) -> None:
        """Kill it with -9, and reap it; what it served goes on."""
        os.kill(self.pid, signal.SIGKILL)
        self.await_end()

    def await_end(self) -> None:
        """Wait until it has ended and is reaped."""
        assert self._reaper is not None
        self._reaper.join(SECONDS)
        assert not self._reaper.is_alive(), "the daemon does not end"

    def run(self, arguments: list[str], text: str = "", uid: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command line tool with a text on standard input."""
        return subprocess.run(
            [self.command, *arguments],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            user=(self.uid if uid is None else uid) or None,
        )

    def begin(self, text: str) -> subprocess.Popen[str]:
        """Give commands over standard input, and do not wait for the answer."""
        begun = subprocess.Popen(
            [self.command],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert begun.stdin is not None
        begun.stdin.write(f"{text}\n")
        begun.stdin.close()
        begun.stdin = None  # communicate must not flush it again
        return begun

    def say(self, text: str, uid: int | None = None) -> str:
        """Give commands over standard input; return what was printed."""
        done = self.run([], text, uid)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def log(self, name: str = "control.log") -> list[str]:
        """Return the texts of a log's lines, without their stamps."""
        path = self.directory / "log" / name
        return [line.partition("] ")[2] for line in path.read_text().splitlines()] if path.exists() else []

    def servers(self) -> list[int]:
        """Return the PIDs of the servers."""
        return [int(pid) for pid in self.say("get_server_list").split()]

    def client(self, uid: int | None = None, **more: str) -> ClientProcess:
        """Start a client."""
        return ClientProcess.start({**self.environment, "PYMPSD_REQUIRE_MPS": "1", **more}, uid or self.uid)

    def stop(self) -> None:
        """End the daemon whatever state it is in, and all its servers."""
        if self.pid and alive(self.pid):
            servers = children_of(self.pid)
            self.run([], "quit -t 0\n", uid=0)
            for pid in (self.pid, *servers):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
        if self._reaper is not None:
            self._reaper.join(SECONDS)
            assert not self._reaper.is_alive(), "the daemon could not be ended"
        if on_gpu():
            _await_executors()
        for pid in children_of(os.getpid()):
            if not alive(pid):
                # An executor or server whose parent was killed: this process adopted it.
                _reap(pid)


def _await_executors() -> None:
    """Wait until those that were adopted have ended: the driver takes its time to take a GPU's memory back."""
    give_up = time.monotonic() + EXECUTORS_SECONDS
    while any(alive(pid) and _is_ours(pid) for pid in children_of(os.getpid())) and time.monotonic() < give_up:
        os.sched_yield()


def _is_ours(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == "pympsd-server\n"
    return False


def _reap(pid: int) -> None:
    # It is this process's child only because this process adopts orphans.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


@define
class ClientProcess:
    """A client under test; ``process.pid`` is what ps shows."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, environment: dict[str, str], uid: int, program: str = CLIENT) -> ClientProcess:
        """Start it with nothing but an environment."""
        process = subprocess.Popen(
            [sys.executable, program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=uid or None,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Its PID."""
        return self.process.pid

    def begin(self, step: str) -> None:
        """Tell it to do a step, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()

    def result(self) -> str:
        """Return the line of the step begun."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], SECONDS)[0], "the client does not answer"
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"the client ended: {self.process.stderr.read()}")
        return line.rstrip("\n")

    def has_result(self) -> bool:
        """Whether the step begun is done."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def do(self, step: str) -> str:
        """Do a step; return its line."""
        self.begin(step)
        return self.result()

    def connect(self, device: int = 0) -> ClientProcess:
        """Make it a client with a context."""
        assert self.do("init") == "CUDA_SUCCESS"
        assert self.do(f"ctx {device}") == "CUDA_SUCCESS"
        return self

    def end(self, number: int = 0) -> None:
        """End it, cleanly or by a signal, and reap it."""
        if self.process.poll() is None and not number:
            self.begin("exit")
        elif number:
            self.process.send_signal(number)
        self.process.communicate(timeout=SECONDS)
