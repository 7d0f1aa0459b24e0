"""The control plane: starting the daemon, asking it, starting a server."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import daemon
import hostile
from timing import Report, median_seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from operators import Operator, run_on_many_connections

from pympsd.wire.messages import ClientHello, Versions, encode

DRAINED = 48
"""Clients that wait for a drain's decision: as many as a device of driver 580 has contexts for."""
PARTITIONS = 13
"""Partitions that, with those that are made before the measurement, take the 15 chunks of an H200."""
PIPELINED = 500
"""Commands sent together in the long session, so that it measures the daemon and not the round trips."""


def measure(report: Report) -> None:
    """Measure the control plane."""
    starts = []
    for _ in range(5):
        with daemon.running() as (_, taken):
            starts.append(taken * 1000)
    report.add("pympsd -d, until it returns (median of 5)", statistics.median(starts), 400, "ms")
    with daemon.running() as (env, _):
        _ask(report, env)
        _many_commands(report, env)
    with daemon.running() as (env, _):
        _many_connections(report, env)
    with daemon.running(more=("-S",)) as (env, _):
        _partitions(report, env)
    with daemon.running() as (env, _):
        _drain(report, env)
    with daemon.running() as (env, _):
        _memory(report, env)
    readies = [_server_start() for _ in range(5)]
    hostile.measure(report)
    report.add("start_server to Ready, 8 emulated devices (median of 5)", statistics.median(readies), 600, "ms")


def _ask(report: Report, env: dict[str, str]) -> None:
    bare = [sys.executable, "-I", "-S", "-c", "pass"]

    def ask() -> None:
        subprocess.run([daemon.PYMPSD], env=env, input=b"ps\n", stdout=subprocess.PIPE, check=True)

    def nothing() -> None:
        subprocess.run(bare, env=env, input=b"ps\n", stdout=subprocess.PIPE, check=True)

    seconds, base = median_seconds(ask, 60), median_seconds(nothing, 60)
    report.add("echo ps | pympsd, against the bare interpreter (-I -S -c pass)", seconds / base, 1.5, "x")
    print(f"    ({seconds * 1000:.1f} ms against {base * 1000:.1f} ms)")


def _partitions(report: Report, env: dict[str, str]) -> None:
    """Compare the commands of static partitions with ps."""

    def give(text: str) -> None:
        subprocess.run([daemon.PYMPSD], env=env, input=text.encode(), stdout=subprocess.PIPE, check=True)

    ps = median_seconds(lambda: give("ps\n"), 60)
    added = median_seconds(lambda: give("sm_partition add 0 1\n"), PARTITIONS)
    listed = median_seconds(lambda: give("lspart\n"), 60)
    report.add("sm_partition add, against echo ps", added / ps, 1.2, "x")
    report.add("lspart of an H200 full of partitions, against echo ps", listed / ps, 1.2, "x")


def _many_commands(report: Report, env: dict[str, str]) -> None:
    def session(count: int) -> float:
        text = b"get_default_active_thread_percentage\n" * count
        return median_seconds(
            lambda: subprocess.run([daemon.PYMPSD], env=env, input=text, stdout=subprocess.PIPE, check=True), 20
        )

    report.add("one session of 200 commands, beyond one command", (session(200) - session(1)) * 1000, 15, "ms")


def _many_connections(report: Report, env: dict[str, str]) -> None:
    slowest = statistics.median(max(run_on_many_connections(_control(env), 1000, "ps")) for _ in range(3))
    report.add("1,000 connections at once, the slowest answer (median of 3)", slowest, 2, "s")


def _drain(report: Report, env: dict[str, str]) -> None:
    """Measure the time from a drain's command to the refusal of the last waiting client."""
    taken = []
    for _ in range(5):
        with ExitStack() as ends, Operator.at(_control(env)) as operator:
            operator.run_command("drain --all")
            waiting = [ends.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(DRAINED)]
            for client in waiting:
                client.settimeout(30.0)
                client.connect(_control(env))
                client.sendall(encode(ClientHello(Versions(), os.getpid(), "bench", 0, {})))
            while len(operator.run_command("get_waiting_list").splitlines()) < DRAINED:
                pass
            began = time.perf_counter()
            operator.send("drain --all --new-clients=refuse")
            for client in waiting:
                client.recv(1 << 16)
            taken.append((time.perf_counter() - began) * 1000)
            operator.answer()
            operator.run_command("undrain")
    report.add(
        f"a drain's decision, until {DRAINED} clients have it (median of 5)", statistics.median(taken), 100, "ms"
    )


def _memory(report: Report, env: dict[str, str]) -> None:
    """Measure resident memory after 10,000 and after 100,000 commands."""
    pid = Path(env["CUDA_MPS_PIPE_DIRECTORY"], "nvidia-cuda-mps-control.pid").read_text()
    _give(env, 10_000)
    early = daemon.resident_mib(pid)
    _give(env, 90_000)
    late = daemon.resident_mib(pid)
    report.add("the daemon's resident memory after 100,000 commands", late, 60, "MiB")
    report.add("    of it gained since 10,000 commands", late - early, 1, "MiB")


def _give(env: dict[str, str], count: int) -> None:
    for _ in range(count // PIPELINED):
        with Operator.at(_control(env)) as operator:
            operator.send(*["get_default_active_thread_percentage"] * PIPELINED)
            for _ in range(PIPELINED):
                operator.answer()


def _control(env: dict[str, str]) -> str:
    return str(Path(env["CUDA_MPS_PIPE_DIRECTORY"], "control"))


def _server_start() -> float:
    with daemon.running("8xH200") as (env, _):
        log = Path(env["CUDA_MPS_LOG_DIRECTORY"], "control.log")
        start = time.perf_counter()
        daemon.run_command(env, "start_server -uid 0\n")
        while ": Ready" not in log.read_text():
            time.sleep(0.002)
        return (time.perf_counter() - start) * 1000
