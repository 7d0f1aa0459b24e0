"""The effect of two hostile users on an honest one: a connect, and ``echo ps | pympsd``, against a quiet daemon.

Both in one run: windows with and without the hostile users follow each other, and the ratio is the median of theirs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import daemon
from timing import Report, median_seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from operators import Operator

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "tests" / "support" / "hostile_program.py")
ROUNDS = 15
CONNECTS, QUESTIONS = 100, 10
"""How often each is measured in a window."""
CONNECTIONS = 500
"""Those of each kind that the hostile users try to keep."""
KINDS = {10001: ("servers", "namespaces"), 10002: ("unresponsive", "idle", "half_frames", "unread", "garbage")}
QUIET_SECONDS = 5.0
"""Seconds until the servers that one hostile user makes have started; their start is not measured."""


def measure(report: Report) -> None:
    """Measure with a daemon of protocol 3, in which users can make servers."""
    with daemon.running(protocol=3) as (env, _):
        control = str(Path(env["CUDA_MPS_PIPE_DIRECTORY"], "control"))

        def connect() -> None:
            with Operator.at(control) as operator:
                operator.run_command("get_default_active_thread_percentage")

        def ask() -> None:
            subprocess.run([daemon.PYMPSD], env=env, input=b"ps\n", stdout=subprocess.PIPE, check=True)

        with _hostile(control, {10001: KINDS[10001]}):
            time.sleep(QUIET_SECONDS)
        ratios = [_ratios(control, connect, ask) for _ in range(ROUNDS)]
    for index, what in enumerate(("a connect and an answer", "echo ps | pympsd")):
        those = [ratio[index] for ratio in ratios]
        report.add(f"{what} beside two hostile users, against without", statistics.median(those), 1.5, "x")
        print(f"    (from {min(those):.2f} to {max(those):.2f})")


def _ratios(control: str, connect: Callable[[], None], ask: Callable[[], None]) -> tuple[float, float]:
    quiet = median_seconds(connect, CONNECTS), median_seconds(ask, QUESTIONS)
    with _hostile(control, KINDS):
        with_others = median_seconds(connect, CONNECTS), median_seconds(ask, QUESTIONS)
    return with_others[0] / quiet[0], with_others[1] / quiet[1]


@contextmanager
def _hostile(control: str, users: dict[int, tuple[str, ...]]) -> Iterator[None]:
    """Let users do what they can during a block, which begins when they have tried everything once."""
    programs = [
        subprocess.Popen(
            [sys.executable, PROGRAM, control, str(CONNECTIONS), *kinds],
            env={"PYTHONPATH": str(ROOT)}, user=uid, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for uid, kinds in users.items()
    ]  # fmt: skip
    try:
        for program in programs:
            assert program.stdout is not None
            program.stdout.readline()
        yield
    finally:
        for program in programs:
            program.kill()
            program.communicate()
