"""scripts/bench vendor without a GPU: its table, its bounds, and a rehearsal with a fake server and client.

In the rehearsal a second pympsd stands for the vendor's daemon; join.c runs on a fake libcuda (fake_driver.c).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_mps.install import install

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "scripts" / "benchmarks"
sys.path.append(str(BENCHMARKS))

from beside_vendor import inference, rows, sections  # noqa: E402 - found by the path above
from gpu import ways  # noqa: E402
from gpu.figures import Figures  # noqa: E402
from gpu.kernels import COUNTS, KERNELS  # noqa: E402

LIMIT = 120.0
CLIENT = Path(__file__).with_name("fake_bench_client.py")
COMPILER = shutil.which("cc")


def good_figures() -> Figures:
    """Figures that just reach every bound."""
    figures = Figures(list(sections.SECTIONS))
    for daemon, rate, time in ((ways.PYMPSD, 970.0, 1.05), (ways.VENDOR, 1000.0, 1.0)):
        for number in range(3):
            for kernel in KERNELS:
                for count in COUNTS:
                    cell = (sections.LAUNCHES, sections.round_of(daemon, number), kernel.name, str(count))
                    figures.put(rate, *cell)
        figures.put(time, sections.JOIN, daemon, "cuInit to first kernel, p50")
        figures.put(time, sections.JOIN, daemon, "cuInit, p50")
        figures.put(time**2 if time > 1 else 1.0025, sections.ARRIVAL, daemon, "until all have a context")
        figures.put(20.0, sections.TURN, daemon, sections.EXIT_TO_START)
        figures.put(50.0, sections.TURN, daemon, sections.EXIT_TO_SUCCESS)
        figures.put(0.0, sections.IDLE, daemon, "wake-ups")
        figures.put(16.0, sections.PS, daemon, "echo ps |")
        for count in map(str, inference.COUNTS):
            figures.put(rate, inference.SECTION, daemon, inference.RATE, count, "0")
    figures.put(10.0, sections.PS, sections.BARE, "echo ps |")
    return figures


def test_what_just_reaches_the_bounds_meets_them() -> None:
    judged = [row for row in rows.rows(good_figures(), COUNTS) if row.bound is not None]
    assert {row.verdict for row in judged} == {"met"}
    assert [row.target for row in judged] == [
        "at most 1.6",
        "at most 1.05",
        "at most 20",
        "at most 1.1",
        "at most 0",
        *["at least 0.97"] * (len(KERNELS) + 1),
    ]


@pytest.mark.parametrize(
    ("value", "figure"),
    [
        (16.1, (sections.PS, ways.PYMPSD, "echo ps |")),
        (1.06, (sections.JOIN, ways.PYMPSD, "cuInit to first kernel, p50")),
        (20.1, (sections.TURN, ways.PYMPSD, sections.EXIT_TO_START)),
        (1.2, (sections.ARRIVAL, ways.PYMPSD, "until all have a context")),
        (1.0, (sections.IDLE, ways.PYMPSD, "wake-ups")),
        (960.0, (inference.SECTION, ways.PYMPSD, inference.RATE, "8", "0")),
    ],
)
def test_what_misses_a_bound_is_short(value: float, figure: tuple[str, ...]) -> None:
    figures = good_figures()
    figures.put(value, *figure)
    missed = [row for row in rows.rows(figures, COUNTS) if row.target and row.verdict != "met"]
    assert [row.verdict.partition(" ")[0] for row in missed] == ["short"]


def test_the_median_of_the_rounds_is_judged() -> None:
    figures = good_figures()
    for number, rate in ((0, 100.0), (1, 960.0)):
        cell = (sections.LAUNCHES, sections.round_of(ways.PYMPSD, number), KERNELS[1].name, "8")
        figures.put(rate, *cell)
    [row] = [row for row in rows.rows(figures, COUNTS) if row.what == f"launches/s, {KERNELS[1].name}"]
    assert row.verdict == "short at N=8"


def test_what_was_not_measured_is_reported_as_such() -> None:
    figures = Figures([sections.JOIN, sections.TURN, sections.LAUNCHES])
    assert {row.verdict for row in rows.rows(figures, (1,)) if row.bound is not None} == {"not measured at N=1"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach (pytest's own is 0700)."""
    with tempfile.TemporaryDirectory(prefix="pympsd-test-") as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """What the benchmark runs with: a fake server, and pympsd under the name of the vendor's daemon."""
    server = install(folder, start_seconds=0.05)
    control = folder / "nvidia-cuda-mps-control"
    pympsd = Path(sys.executable).with_name("pympsd")
    settings = f"PYMPSD_BACKEND=vendor PYMPSD_VENDOR_SERVER={server} PYMPSD_LOG_DIALECT=r580"
    control.write_text(f'#!/bin/sh\n{settings} exec {pympsd} "$@"\n')
    control.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYMPSD_VENDOR_SERVER": str(server)}


@pytest.fixture
def program(folder: Path) -> Path:
    """The fake program, for --program."""
    launcher = folder / "program"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -B {CLIENT} "$@"\n')
    launcher.chmod(0o755)
    return launcher


def bench(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark."""
    command = [sys.executable, str(BENCHMARKS / "run.py"), "vendor", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)


@pytest.mark.long
def test_a_rehearsal_measures_every_row(environment: dict[str, str], program: Path, tmp_path: Path) -> None:
    place = tmp_path / "figures.json"
    short = ("--seconds", "0.05", "--counts", "2", "--rounds", "2", "--json", str(place))
    done = bench(environment, "--program", str(program), *short)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = Figures.load(place)
    assert figures.failures == []
    assert "left behind" not in done.stdout
    keys = {name: set(figures.values[name]) for name in figures.values}
    both = {ways.PYMPSD, ways.VENDOR}
    assert keys == {
        sections.PS: {*both, sections.BARE},
        sections.JOIN: both,
        sections.ARRIVAL: both,
        sections.IDLE: both,
        sections.LAUNCHES: {sections.round_of(daemon, number) for daemon in both for number in (0, 1)},
        **({sections.TURN: both} if os.geteuid() == 0 else {}),
    }
    assert figures.get(sections.IDLE, ways.PYMPSD, "processes") >= 1.0  # type: ignore[operator]
    again = bench(environment, "--reprint", str(place))
    assert again.stdout.strip() in done.stdout


@pytest.mark.long
def test_only_what_is_requested(environment: dict[str, str], program: Path, tmp_path: Path) -> None:
    place = tmp_path / "figures.json"
    done = bench(environment, "--program", str(program), "--only", "ps", "--json", str(place))
    assert (done.returncode, json.loads(place.read_text())["sections"]) == (0, ["ps"])


def test_without_the_drivers_programs_nothing_is_measured(tmp_path: Path, program: Path) -> None:
    environment = {**os.environ, "PYMPSD_VENDOR_SERVER": "/nowhere/nvidia-cuda-mps-server"}
    done = bench(environment, "--program", str(program), "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 1
    assert "not measured: everything that follows" in done.stdout


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_the_joining_program_on_a_fake_driver(tmp_path: Path) -> None:
    source = BENCHMARKS / "beside_vendor" / "join.c"
    program = ways.build(source, str(tmp_path))
    library = tmp_path / "libcuda.so.1"
    words = [str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("fake_driver.c"))]
    subprocess.run(words, check=True, timeout=LIMIT)
    done = subprocess.run(
        [program, str(BENCHMARKS / "gpu" / "spin.ptx")],
        env={"LD_LIBRARY_PATH": str(tmp_path)},
        input="join\n",
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    ready, answer = done.stdout.splitlines()
    word, *times = answer.split()
    assert (ready, word, sorted(times, key=int)) == ("ok", "ok", times)
