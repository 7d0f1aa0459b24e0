"""Real processes for the flows: a daemon in its own directory, and clients that execute one step a line."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import AnyStr

from attrs import define, field
from prepared import CLIENT, DAEMON, PreparedProcess, can_start
from readable import is_readable
from tested_machine import on_gpu, with_machine

BIN = Path(sys.executable).parent
PYMPSD = str(BIN / "pympsd")
SECONDS = 30.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) * (3 if on_gpu() else 1)
"""The absolute limit of anything a flow waits for, longer if more processes want to run than there are processors
when the tests begin, and on a GPU, because the contexts of all jobs are created one after another."""

POLL_SECONDS = 0.002
"""The pause between two polls, without which the tests take the processor from the processes they wait for."""

EXECUTORS_SECONDS = 10.0
"""The time within which executors whose server was killed must end (a GPU takes its time to release them)."""
TESTS_OWN = ("test-pipe-", "pympsd-left-by-a-test")
"""Prefixes of the files that other tests put into /dev/shm at the same time."""

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans(take_over: bool = True) -> None:
    """Become the parent of daemons, so that they are reaped immediately; or stop being their parent."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(take_over), 0, 0, 0)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, what: str = "what was waited for", seconds: float = SECONDS) -> None:  # type: ignore[no-untyped-def]
    """Poll, within the limit, for a condition that no descriptor signals."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def kill_after(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Use a process that the block ends; kill it if the block fails, because the wait for it would not end."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def suspend(pid: int) -> None:
    """Stop a process, and wait until the kernel reports it as stopped, because a signal takes time to arrive."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the stop")


def list_shared_memory() -> set[str]:
    """Return the files in /dev/shm except those of other tests, and on a GPU those of its driver.

    The semaphores of multiprocessing do not count either: pympsd has none, but other programs next to the tests do.
    """
    others = (*TESTS_OWN, "sem.mp-", *(("cuda", "nv") if on_gpu() else ()))
    return {name for name in os.listdir("/dev/shm") if not name.startswith(others)}


def children_of(pid: int) -> list[int]:
    """Return the PIDs of a process's children; raise FileNotFoundError if it has ended."""
    while True:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        # A thread that ends leaves its children to another one, which may have been read before.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@define
class DaemonProcess:
    """A daemon under test, and its commands."""

    directory: Path
    settings: dict[str, str] = field(factory=dict)
    uid: int = 0
    command: str = PYMPSD
    pid: int = 0
    _reaper: threading.Thread | None = None

    @property
    def tools_directory(self) -> Path | None:
        """The working directory of the daemon's start and its tools; None: this process's."""
        return None

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the daemon and its tools."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.directory / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.directory / "log"),
            **with_machine(self.settings),
        }

    def start(self, option: str = "-d", *more: str) -> subprocess.CompletedProcess[str]:
        """Run ``pympsd -d`` as a script does, capturing its output; this hangs if the daemon keeps the pipe open."""
        done = self._start([option, *more])
        pid_file = self.directory / "pipe" / "nvidia-cuda-mps-control.pid"
        if done.returncode == 0 and pid_file.exists():
            self.attach(int(pid_file.read_text()))
        return done

    def _start(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        if not os.path.samefile(self.command, PYMPSD) or not can_start(DAEMON, self.environment):
            return self.run(arguments)
        words = [DAEMON, f"--argv0={self.command}", *arguments]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        how = {"env": self.environment, "cwd": self.tools_directory, "user": self.uid or None, **pipes}
        process = PreparedProcess(words, text=True, **how)
        with kill_after(process):
            output, errors = process.communicate("", timeout=SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def attach(self, pid: int) -> None:
        """Use a daemon that is running."""
        self.pid = pid
        self._reaper = threading.Thread(target=_reap, args=(pid,))
        self._reaper.start()

    def kill(self) -> None:
        """Kill the daemon with -9, and reap it; its servers continue."""
        os.kill(self.pid, signal.SIGKILL)
        self.await_end()

    def await_end(self) -> None:
        """Wait until the daemon has ended, and reap it."""
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
            cwd=self.tools_directory,
        )

    def start_command(self, text: str) -> subprocess.Popen[str]:
        """Start the command line tool with command lines on its standard input; do not wait for its end."""
        process = subprocess.Popen(
            [self.command],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(f"{text}\n")
        process.stdin.close()
        process.stdin = None  # communicate must not flush it again
        return process

    def run_command(self, text: str, uid: int | None = None) -> str:
        """Run the command line tool with command lines on its standard input; return its standard output."""
        done = self.run([], text, uid)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def log(self, name: str = "control.log") -> list[str]:
        """Return the texts of a log's lines, without their stamps."""
        path = self.directory / "log" / name
        return [line.partition("] ")[2] for line in path.read_text().splitlines()] if path.exists() else []

    def keeper(self, before: int = 0) -> int:
        """Wait for a keeper other than ``before``; return its PID."""
        pids: list[int] = []

        def is_there() -> bool:
            # A child of the daemon that started it, and when that has ended, of this process.
            for parent in (self.pid, os.getpid()):
                with contextlib.suppress(FileNotFoundError):
                    pids.extend(
                        pid
                        for pid in children_of(parent)
                        if pid != before and alive(pid) and _command_of(pid) == "pympsd-keeper"
                    )
            return bool(pids)

        wait_until(is_there, "a keeper")
        return pids[0]

    def kill_keeper(self) -> int:
        """Kill the keeper with -9, if it runs; return its PID, or 0."""
        pids: list[int] = []

        def is_known() -> bool:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                try:
                    sock.connect(str(self.directory / "pipe" / "pympsd.keeper"))
                except OSError:
                    return True
                pid = int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
            # Until it listens itself, the kernel names the daemon that made the socket.
            if _command_of(pid) != "pympsd-keeper":
                return False
            pids.append(pid)
            return True

        wait_until(is_known, "the start of a keeper")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it ends by itself
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not alive(pid), "the keeper's end")
        return pids[0] if pids else 0

    def servers(self) -> list[int]:
        """Return the PIDs of the servers."""
        return [int(pid) for pid in self.run_command("get_server_list").split()]

    def wait_for_server_messages(self) -> None:
        """Wait until the daemon has handled its servers' messages, which it does before it answers this command."""
        for server in self.servers():
            assert self.run_command(f"terminate_client {server} 1") == "201\n"

    def client(self, uid: int | None = None, **more: str) -> ClientProcess:
        """Start a client."""
        return ClientProcess.start({**self.environment, "PYMPSD_REQUIRE_MPS": "1", **more}, uid or self.uid)

    def stop(self) -> None:
        """End the daemon, whatever its state, and all its servers."""
        if self.pid and alive(self.pid):
            servers: list[int] = []
            with contextlib.suppress(FileNotFoundError):  # it has ended
                servers = children_of(self.pid)
            self.run([], "quit -t 0\n", uid=0)
            for pid in (self.pid, *servers):
                with contextlib.suppress(ProcessLookupError):
                    if alive(pid):
                        os.kill(pid, signal.SIGKILL)
        if self._reaper is not None:
            self._reaper.join(SECONDS)
            assert not self._reaper.is_alive(), "the daemon could not be ended"
        self.kill_keeper()
        _await_executors()
        for pid in children_of(os.getpid()):
            if not alive(pid):
                # An executor or server whose parent was killed: this process adopted it.
                _reap(pid)


def _await_executors() -> None:
    """Wait until the adopted executors have ended, because no server waits for those of a killed server."""
    give_up = time.monotonic() + EXECUTORS_SECONDS
    while any(alive(pid) and _ends_soon(pid) for pid in children_of(os.getpid())) and time.monotonic() < give_up:
        time.sleep(POLL_SECONDS)


def _ends_soon(pid: int) -> bool:
    """Whether a process is an executor; on a GPU also a server, which leads its session."""
    with contextlib.suppress(OSError):
        return _command_of(pid) == "pympsd-server" and (on_gpu() or os.getsid(pid) != pid)
    return False


def _command_of(pid: int) -> str:
    """Return a process's name as ps shows it; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""


def _reap(pid: int) -> None:
    # It is this process's child only because this process adopts orphans.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


@define
class ClientProcess:
    """A client under test; ``process.pid`` is what ps shows."""

    process: subprocess.Popen[str]

    @classmethod
    def start(
        cls, environment: dict[str, str], uid: int, program: str = CLIENT, under: Sequence[str] = ()
    ) -> ClientProcess:
        """Start the client with only this environment; ``under``: a command that executes it."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        if not under and can_start(program, environment):
            return cls(PreparedProcess([program], env=environment, text=True, user=uid or None, **pipes))
        words = [*under, sys.executable, program]
        return cls(subprocess.Popen(words, env=environment, text=True, user=uid or None, **pipes))

    @property
    def pid(self) -> int:
        """Its PID."""
        return self.process.pid

    def send(self, step: str) -> None:
        """Send the client a step, and do not wait for its result."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()

    def result(self) -> str:
        """Wait for the result line of the step that was sent, and return the line."""
        assert self.process.stdout is not None
        assert is_readable(self.process.stdout, SECONDS), "the client does not answer"
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"the client ended: {self.process.stderr.read()}")
        return line.rstrip("\n")

    def first_error(self) -> str:
        """Synchronise until that fails, and return the error; a fault reaches its neighbours a moment later."""
        text = ""

        def failed() -> bool:
            nonlocal text
            text = self.call("sync")
            return text != "CUDA_SUCCESS"

        wait_until(failed, "the error")
        return text

    def has_result(self) -> bool:
        """Whether the client has printed the result of the step that was sent."""
        return is_readable(self.process.stdout)

    def call(self, step: str) -> str:
        """Send the client a step; return its result line."""
        self.send(step)
        return self.result()

    def connect(self, device: int = 0) -> ClientProcess:
        """Make it a client with a context."""
        assert self.call("init") == "CUDA_SUCCESS"
        assert self.call(f"ctx {device}") == "CUDA_SUCCESS"
        return self

    def end(self, number: int = 0) -> None:
        """End the client, cleanly or by a signal, and reap it."""
        if self.process.poll() is None and not number:
            with contextlib.suppress(BrokenPipeError):  # it has ended
                self.send("exit")
        elif number:
            self.process.send_signal(number)
        self.process.communicate(timeout=SECONDS)


@contextlib.contextmanager
def daemon_of_session(*, adopts: bool = False) -> Iterator[DaemonProcess]:
    """Give a daemon in a directory of its own that lasts for many tests; its programs are adopted if `adopts`."""
    adopt_orphans()
    directory = Path(tempfile.mkdtemp(prefix="pympsd-test-"))
    directory.chmod(0o755)
    for name in ("pipe", "log"):
        (directory / name).mkdir()
    running = DaemonProcess(directory)
    assert running.start().returncode == 0
    if not adopts:
        adopt_orphans(False)  # what the programs leave is not this process's
    yield running
    running.stop()
    if adopts:
        adopt_orphans(False)
    shutil.rmtree(directory)


@contextlib.contextmanager
def clients_of(daemon: DaemonProcess) -> Iterator[Callable[..., ClientProcess]]:
    """Start clients of a daemon, as ``daemon.client`` does; kill those that are left at the end."""
    client_processes: list[ClientProcess] = []

    def make(uid: int | None = None, **more: str) -> ClientProcess:
        client = daemon.client(uid, **more)
        client_processes.append(client)
        return client

    try:
        yield make
    finally:
        for client in client_processes:
            client.process.kill()
            for stream in (client.process.stdin, client.process.stdout, client.process.stderr):
                if stream is not None and not stream.closed:
                    stream.close()
            client.process.wait()
