"""Provisioning: the time to pass a turn between users, many clients at the same time, and ps with many clients."""

from __future__ import annotations

import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import daemon
from timing import Report, median_seconds

from pympsd.wire import messages
from pympsd.wire.messages import Versions

USERS = (10001, 10002)
CLIENTS = 48
SECONDS = 60.0
CLIENT = r"""
import json, sys, time
from pympsd_client import driver as cuda

def ran(answer):
    if answer[0]:
        raise SystemExit(str(answer[0]))

print("here", flush=True)
sys.stdin.readline()
ran(cuda.cuInit(0))
ran(cuda.cuCtxCreate(0, 0))
print(json.dumps(time.monotonic()), flush=True)
sys.stdin.readline()
"""


def measure(report: Report) -> None:
    """Measure provisioning; passing turns needs root, because only root can run clients of several users."""
    if os.geteuid() == 0:
        turns, starts = zip(*(_turn() for _ in range(5)), strict=True)
        excess = statistics.median(turn - start for turn, start in zip(turns, starts, strict=True))
        report.add("a user's last client gone to the next user's context, beyond a start", excess * 1000, 50, "ms")
        median_turn, median_start = statistics.median(turns) * 1000, statistics.median(starts) * 1000
        print(f"    (medians of 5: {median_turn:.0f} ms, a first client's own start {median_start:.0f} ms)")
    else:
        print("turns between users: not measured, it takes root")
    with daemon.running() as (env, _):
        daemon.run_command(env, f"start_server -uid {os.geteuid()}\n")
        one = _ps(env, 1)
        with _clients(env, CLIENTS) as clients:
            _all_at_once(report, clients)
            many = _ps_now(env)
        queued = statistics.median(statistics.median(_hellos_at_once(env, CLIENTS)) for _ in range(5))
        part = statistics.median(taken for _ in range(CLIENTS) for taken in _hellos_at_once(env, 1))
    report.add("the daemon's part of one client, hello to session (median)", part * 1000, 5, "ms")
    print(f"    ({CLIENTS} hellos sent together: {queued * 1000:.2f} ms at the median, because they queue)")
    report.add(f"ps with {CLIENTS} clients, against ps with one", many / one, 1.2, "x")
    print(f"    ({many * 1000:.2f} ms against {one * 1000:.2f} ms)")


def _turn() -> tuple[float, float]:
    """Return the seconds from a user's last client's end to the next user's context, and those of a start alone."""
    with daemon.running() as (env, _):
        first, second = (_Client(env, uid) for uid in USERS)
        start = _begin(first)
        first.await_context()
        alone = time.monotonic() - start
        _begin(second)
        log = Path(env["CUDA_MPS_LOG_DIRECTORY"], "control.log")
        while f"NEW CLIENT {second.process.pid} " not in log.read_text():
            time.sleep(0.001)
        gone = time.monotonic()
        first.process.kill()
        there = second.await_context()
        second.end()
        first.end()
        return there - gone, alone


def _begin(client: _Client) -> float:
    client.go()
    return time.monotonic()


class _Client:
    """A client that is loaded and waits for the command to connect."""

    def __init__(self, env: dict[str, str], uid: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user=uid,
            bufsize=0,
        )
        self._line()

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        line: bytes = self.process.stdout.readline()
        if not line:
            raise SystemExit("a client of the benchmark ended")
        return line

    def go(self) -> None:
        """Let it connect."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def await_context(self) -> float:
        """Return the time at which it had its context (monotonic seconds)."""
        return float(json.loads(self._line()))

    def end(self) -> None:
        """Let it end, and reap it."""
        self.process.communicate(timeout=SECONDS)


@contextmanager
def _clients(env: dict[str, str], count: int) -> Iterator[list[_Client]]:
    clients = [_Client(env) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.end()


def _all_at_once(report: Report, clients: list[_Client]) -> None:
    for client in clients:
        client.go()
    with_context = sum(client.await_context() > 0 for client in clients)
    report.add(f"{CLIENTS} clients at once: left without a context", CLIENTS - with_context, 0, "")


def _hellos_at_once(env: dict[str, str], count: int) -> list[float]:
    """Return the seconds to the session of each of many hellos, all sent before the first answer."""
    sockets = []
    for _ in range(count):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(Path(env["CUDA_MPS_PIPE_DIRECTORY"], "control")))
        sockets.append(sock)
    hello = messages.encode(messages.ClientHello(Versions(), os.getpid(), "bench", 0, {}))
    taken, sessions = [], []
    with selectors.DefaultSelector() as selector:
        for sock in sockets:
            sock.sendall(hello)
            selector.register(sock, selectors.EVENT_READ, time.perf_counter())
        while selector.get_map():
            for key, _ in selector.select(SECONDS):
                _, fds, _, _ = socket.recv_fds(sock_of(key), 65536, 1)
                taken.append(time.perf_counter() - key.data)
                selector.unregister(key.fileobj)
                sessions += fds
    for fd in sessions:
        os.close(fd)
    for sock in sockets:
        sock.close()
    return taken


def sock_of(key: selectors.SelectorKey) -> socket.socket:
    """Return the socket that a selector's key stands for."""
    assert isinstance(key.fileobj, socket.socket)
    return key.fileobj


def _ps(env: dict[str, str], count: int) -> float:
    with _clients(env, count) as clients:
        for client in clients:
            client.go()
        for client in clients:
            client.await_context()
        return _ps_now(env)


def _ps_now(env: dict[str, str]) -> float:
    return median_seconds(
        lambda: subprocess.run([daemon.PYMPSD], env=env, input=b"ps\n", stdout=subprocess.PIPE, check=True), 40
    )
