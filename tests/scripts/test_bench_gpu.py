"""The GPU benchmark without a GPU: its table, its verdicts, what it does when something fails, and a rehearsal.

The rehearsal has pympsd on the emulated GPU, and the native clients on a fake libcuda (fake_driver.c).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import alive

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "scripts" / "benchmarks"
sys.path.append(str(BENCHMARKS))

from gpu import measure, quality, ratios, single, throughput, ways  # noqa: E402 - found by the path above
from gpu.clients import Client, Crowd, Failure, end_all  # noqa: E402
from gpu.figures import Figures, Run  # noqa: E402
from gpu.kernels import COUNTS, KERNELS  # noqa: E402

LIMIT = 300.0
SECTIONS = list(measure.MEASURES)
NEVER = float("inf")
EVERY_WAY = (ways.ONE_CONTEXT, ways.UNBOUNDED, ways.VENDOR, ways.SLICING, ways.BINDINGS)
LATENCIES = ("launch and synchronise, p50", "launch and synchronise, p99", "asynchronous launch", "allocate and free")
COMPILER = shutil.which("cc")


def good_figures() -> Figures:
    """Figures that just reach every target."""
    figures = Figures(SECTIONS)
    for kernel in KERNELS:
        for count in map(str, COUNTS):
            figures.put(900.0, throughput.SECTION, ways.PYMPSD, kernel.name, count)
            for way in EVERY_WAY:
                reached = 112.5 if way == ways.SLICING and count != "1" else 1000.0
                figures.put(reached, throughput.SECTION, way, kernel.name, count)
    for name in LATENCIES:
        figures.put(1.5 if name.startswith("async") else 3.0, single.LATENCY, ways.PYMPSD, name)
        for way in (ways.SLICING, ways.BINDINGS):
            figures.put(1.0, single.LATENCY, way, name)
    for kind in single.KINDS:
        figures.put(8.0 if "pageable" in kind else 9.0, single.COPIES, ways.PYMPSD, kind)
        figures.put(10.0, single.COPIES, ways.SLICING, kind)
    for way in (ways.PYMPSD, ways.SLICING, ways.VENDOR):
        for situation in (quality.ALONE, quality.FULL, quality.BELOW, quality.HALVES):
            figures.put(20.0 if situation == quality.ALONE else 30.0, quality.SECTION, way, situation, "p99")
    return figures


def row_of(figures: Figures, name: str, against: str) -> ratios.Row:
    [row] = [row for row in ratios.rows(figures) if (row.what, row.against) == (name, against)]
    return row


# --- the table


def test_what_just_reaches_the_targets_meets_them() -> None:
    judged = [row for row in ratios.rows(good_figures()) if row.bound is not None]
    assert {row.verdict for row in judged} == {"met"}


def test_the_targets_are_the_requested_ones() -> None:
    targets = {(row.what, row.against): row.target for row in ratios.rows(good_figures()) if row.target}
    kernels = ["10 µs x 1 block", "100 µs x 8 blocks", "1 ms x 16 blocks", "~2 µs x 4 blocks"]
    launches = {f"launches/s, {kernel}": kernel for kernel in kernels}
    assert targets == {
        **{(name, "one context"): "at least 0.9" for name in launches},
        **{(name, "native"): "at least 0.8" for name in launches},
        ("launches/s, 10 µs x 1 block", "the vendor's MPS"): "at least 0.9 at N=1, 2, 4, 8, 16",
        ("launches/s, 100 µs x 8 blocks", "the vendor's MPS"): "at least 0.9 at N=1, 2, 4, 8, 16, 32",
        ("launches/s, 1 ms x 16 blocks", "the vendor's MPS"): "at least 0.9 at N=1, 2, 4, 8, 16, 32",
        ("launches/s, 10 µs x 1 block", "time slicing"): "at least 8 at N=16",
        ("launches/s, 100 µs x 8 blocks", "time slicing"): "at least 8 at N=16",
        ("launch and synchronise, p50", "native"): "at most 3",
        ("asynchronous launch", "cuda.bindings"): "at most 1.5",
        ("256 MiB pageable to device", "native"): "at least 0.8",
        ("256 MiB pageable to host", "native"): "at least 0.8",
        ("256 MiB pinned to device", "native"): "at least 0.9",
        ("256 MiB pinned to host", "native"): "at least 0.9",
        ("p99 of a small kernel beside a full GPU, 50 % each", "itself alone"): "at most 1.5",
    }


@pytest.mark.parametrize(
    ("figure", "value", "what", "against", "where"),
    [
        ("launches/pympsd/10 µs x 1 block/8", 899.0, "launches|s, 10 µs x 1 block", "one context", "8"),
        ("launches/time slicing/10 µs x 1 block/16", 113.0, "launches|s, 10 µs x 1 block", "time slicing", "16"),
        ("launches/time slicing/1 ms x 16 blocks/1", 1126.0, "launches|s, 1 ms x 16 blocks", "native", "1"),
        ("latency/pympsd/launch and synchronise, p50", 3.01, "launch and synchronise, p50", "native", "1"),
        ("latency/cuda.bindings/asynchronous launch", 0.99, "asynchronous launch", "cuda.bindings", "1"),
        ("copies/pympsd/pinned to host", 8.9, "256 MiB pinned to host", "native", "1"),
        ("qos/pympsd/50 % each/p99", 30.1, "p99 of a small kernel beside a full GPU, 50 % each", "itself alone", "2"),
    ],
)
def test_what_misses_a_target_is_short(figure: str, value: float, what: str, against: str, where: str) -> None:
    figures = good_figures()
    figures.put(value, *figure.split("/"))
    row = row_of(figures, what.replace("|", "/"), against)
    assert row.verdict == f"short at N={where}"
    assert "!" in ratios.table([row])


def test_a_number_of_clients_without_a_target_is_only_reported() -> None:
    figures = good_figures()
    figures.put(1.0, throughput.SECTION, ways.PYMPSD, KERNELS[0].name, "32")
    row = row_of(figures, "launches/s, 10 µs x 1 block", ways.VENDOR)
    assert (row.ratios[32], row.verdict, row.is_short(32)) == (0.001, "met", False)


def test_what_was_not_measured_is_reported_as_such() -> None:
    figures = good_figures()
    del figures.values[throughput.SECTION][ways.PYMPSD][KERNELS[1].name]["4"]
    row = row_of(figures, "launches/s, 100 µs x 8 blocks", ways.ONE_CONTEXT)
    assert (row.ratios[4], row.verdict) == (None, "not measured at N=4")
    assert "| - " in ratios.table([row])


def test_a_target_for_clients_that_did_not_run_judges_nothing() -> None:
    [row] = [
        row
        for row in ratios.rows(good_figures(), (1, 2))
        if (row.what, row.against) == ("launches/s, 10 µs x 1 block", ways.SLICING)
    ]
    assert (row.target, row.verdict, set(row.ratios)) == ("", "", {2})


def test_only_the_requested_sections_have_rows() -> None:
    figures = good_figures()
    figures.sections = [single.COPIES]
    assert [row.what for row in ratios.rows(figures)] == [f"256 MiB {kind}" for kind in single.KINDS]


def test_the_table_is_rectangular_with_a_column_for_each_number_of_clients() -> None:
    lines = ratios.table(ratios.rows(good_figures())).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [cell.strip() for cell in lines[0].split("|")[3:-3]] == [f"N={count}" for count in COUNTS]


def test_figures_are_kept_and_read_again(tmp_path: Path) -> None:
    figures = good_figures()
    figures.conditions = {"gpu": "a GPU", "counts": [1, 2], "worker": "native"}
    figures.fail("a cell", "a reason")
    figures.leave_out("a way", "it is not here")
    figures.save(tmp_path / "figures.json")
    assert Figures.load(tmp_path / "figures.json") == figures


@pytest.mark.parametrize(("worker", "status"), [("native", 0), ("python", 1), ("unknown", 1), ("mixed", 1)])
def test_a_run_of_other_than_native_workers_does_not_count(tmp_path: Path, worker: str, status: int) -> None:
    figures = good_figures()
    figures.conditions = {"counts": COUNTS, "worker": worker, "rehearsal": False, "ways": list(measure.SECTIONS_OF)}
    figures.save(tmp_path / "figures.json")
    assert measure.main(["--reprint", str(tmp_path / "figures.json")]) == status


@pytest.mark.parametrize("what", ["a missed target", "a failure"])
def test_what_went_wrong_makes_the_exit_status_1(tmp_path: Path, what: str) -> None:
    figures = good_figures()
    figures.conditions = {"counts": COUNTS, "worker": "native", "rehearsal": False, "ways": list(measure.SECTIONS_OF)}
    if what == "a failure":
        figures.fail("a cell", "a reason")
    else:
        figures.put(1.0, single.COPIES, ways.PYMPSD, "pinned to host")
    figures.save(tmp_path / "figures.json")
    assert measure.main(["--reprint", str(tmp_path / "figures.json")]) == 1


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("[a stamp] executor of device 0: command stream workers: native\n", "native"),
        ("command stream workers: python (no compiler)\n", "python"),
        ("command stream workers: native\nAnd\ncommand stream workers: python\n", "mixed"),
        ("command stream workers\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_server_log_shows_the_kind_of_worker(log: str, kind: str) -> None:
    assert ways.worker_kind(log) == kind


def test_quantiles_are_samples() -> None:
    samples = [float(number) for number in range(100, 0, -1)]
    assert (single.quantile(samples, 0.5), single.quantile(samples, 0.99)) == (51.0, 100.0)
    with pytest.raises(Failure):
        single.quantile([], 0.5)


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--only", "launches,speed"], ["--ways", "magic"], ["--counts", "4,2"], ["--counts", "0"]):
        with pytest.raises(SystemExit) as refused:
            measure.main(words)
        assert refused.value.code == 2
        assert "error: argument" in capsys.readouterr().err


def test_reprint_alone_shows_the_run_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    measure.main(["--reprint"])
    output = capsys.readouterr().out
    measure.main(["--reprint", str(ROOT / "docs" / "measured" / "gpu-h200.json")])
    assert output == capsys.readouterr().out
    assert "workers: native" in output


@pytest.mark.parametrize("words", [["bogus"], ["control", "bogus"], ["control", "gpu"], ["all"]])
def test_a_benchmark_there_is_none_of_is_refused(words: list[str]) -> None:
    done = subprocess.run([sys.executable, BENCHMARKS / "run.py", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    names = "control, named, client, routing, native, provisioning, monitoring, tracing, translator"
    assert f"{words[-1]!r} is not one of {names}" in done.stderr


# --- clients


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-u", "-c", text)


@contextmanager
def start_one(text: str) -> Iterator[Client]:
    client = Client.start(program(text), os.environ)
    try:
        yield client
    finally:
        end_all([client])


@pytest.mark.parametrize(
    ("text", "seconds", "reason"),
    [
        ("import sys; sys.exit('the GPU is away')", 30.0, "a client ended: the GPU is away"),
        ("raise SystemExit(3)", 30.0, "a client ended: status 3, without a word"),
        ("print('no', 1); input()", 30.0, "a client said 'no 1'"),
        ("input()", 0.01, "a client did not answer in time"),
        ("print('ok 1 2', end=''); raise SystemExit(3)", 30.0, "a client ended: status 3, without a word"),
    ],
)
def test_a_client_that_fails_is_a_failure_with_its_reason(text: str, seconds: float, reason: str) -> None:
    with start_one(text) as client, pytest.raises(Failure) as failed:
        client.answer(seconds)
    assert str(failed.value) == reason


def test_a_client_that_does_not_leave_is_killed() -> None:
    with start_one("print('ok'); import signal; signal.pause()") as client:
        assert client.answer(30.0) == ""
        client.process.send_signal(19)  # it is stopped: it notices nothing
        client.reap(0.01)
    assert client.process.returncode == -9


def test_a_program_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(Failure, match="does not start"):
        Client.start(("/nonexistent/program",), os.environ)


DIES = """
import sys
print("ok")
for number, line in enumerate(sys.stdin):
    if line.split()[1] == sys.argv[1]:
        sys.exit("no such kernel here")
    print("ok", 1000.0)
"""


def run_of(*counts: int, seconds: float = 0.01, give_up: float = NEVER) -> Run:
    return Run(Figures([throughput.SECTION]), seconds, counts, give_up)


def test_a_failed_cell_is_noted_and_the_rest_measured_with_new_clients() -> None:
    run = run_of(1, 3)
    throughput.measure(run, ways.Way("a way", (*program(DIES), "100000"), os.environ))
    assert run.figures.values == {
        "launches": {
            "a way": {kernel.name: {"1": 1000.0, "3": 3000.0} for kernel in KERNELS if kernel.nanoseconds != 100_000}
        }
    }
    assert run.figures.failures == [
        {"cell": f"100 µs x 8 blocks, a way, N={count}", "reason": "a client ended: no such kernel here"}
        for count in (1, 3)
    ]


def test_a_way_that_fails_again_and_again_is_given_up() -> None:
    run = run_of(1, 2)
    throughput.measure(run, ways.Way("a way", program("raise SystemExit('away')"), os.environ))
    reasons = [failure["reason"] for failure in run.figures.failures]
    assert reasons == ["a client ended: away"] * 3 + ["given up after 3 failures"] * 5


def test_nothing_is_begun_when_the_time_is_over() -> None:
    run = run_of(1, give_up=0.0)
    throughput.measure(run, ways.Way("a way", ("/nonexistent/program",), {}))
    assert {failure["reason"] for failure in run.figures.failures} == {"out of time", "given up after 3 failures"}


def test_a_crowd_has_as_many_clients_as_work() -> None:
    crowd = Crowd(lambda: Client.start((*program(DIES), "never"), os.environ))
    try:
        for count in (1, 2, 5):
            crowd.grow(count)
            assert len(crowd.ask("launch x", 1.0)) == count == len(crowd.clients)
    finally:
        crowd.end()
    assert crowd.clients == []


def test_a_run_ends_immediately_where_the_workers_are_not_native() -> None:
    def check() -> str:
        raise ways.WrongWorker("python")

    @contextmanager
    def running() -> Iterator[ways.Way]:
        yield ways.Way(ways.PYMPSD, (*program(DIES), "never"), os.environ, check=check)

    run = run_of(1)
    with pytest.raises(SystemExit, match="not native but python"):
        measure._measure_way(run, ways.PYMPSD, running)
    assert run.figures.conditions["worker"] == "python"


def test_the_environment_of_clients_names_no_other_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_MPS_CLIENT_PRIORITY", "PYMPSD_BACKEND", "CUDA_DEVICE_MAX_CONNECTIONS"):
        monkeypatch.setenv(name, "1")
    kept = ways.plain_environment("/nowhere")
    ours = {name: value for name, value in kept.items() if name.startswith(("CUDA_MPS", "PYMPSD", "CUDA_DEV"))}
    assert ours == {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}


# --- a rehearsal

VENDOR_STAND_IN = """#!/bin/sh
if [ "$1" = -d ]; then
    echo "$CUDA_MPS_PIPE_DIRECTORY" >"$STAND_IN_NOTES/directory"
    sleep 1000 >/dev/null 2>&1 &
    echo $! >"$STAND_IN_NOTES/pid"
else
    read -r said && echo "$said" >>"$STAND_IN_NOTES/said" && echo 4711
fi
"""


@pytest.fixture
def fake_drivers(tmp_path: Path) -> dict[str, str]:
    """An environment with a driver and a vendor's daemon that only look so; the daemon never ends by itself."""
    if COMPILER is None:
        pytest.skip("the native clients need a C compiler")
    source = str(Path(__file__).with_name("fake_driver.c"))
    words = [COMPILER, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", "libcuda.so.1", source, "-ldl"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=LIMIT)
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(VENDOR_STAND_IN)
    control.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PATH": path, "STAND_IN_NOTES": str(tmp_path)}


def rehearse(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "run.py"), "gpu", "--backend", "emulated", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.long
def test_a_rehearsal_measures_everything_and_leaves_no_process(fake_drivers: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "figures.json"
    options = "--ways pympsd,bindings,slicing,vendor,prototype --counts 1,2 --seconds 0.05 --commit abc"
    done = rehearse(fake_drivers, *options.split(), "--json", str(place))
    assert done.returncode == 0, (done.stdout, done.stderr)
    figures = Figures.load(place)
    assert (figures.failures, figures.left_out, figures.conditions["commit"]) == ([], [], "abc")
    rows = ratios.rows(figures, (1, 2))
    assert [row for row in rows if None in row.ratios.values()] == []
    against = {row.against for row in rows}
    assert against == {ways.ONE_CONTEXT, ways.VENDOR, ways.SLICING, ways.BINDINGS, "native", "itself alone"}
    pid = int((tmp_path / "pid").read_text())
    assert f"(left behind, and killed: {pid})" in done.stdout
    assert not alive(pid)
    assert not Path((tmp_path / "directory").read_text().strip()).exists()
    assert (tmp_path / "said").read_text().splitlines()[-1] == "quit -t 2"
    assert json.loads(place.read_text())["cores"] >= 1


def test_native_clients_that_fail_are_reported_with_the_drivers_error(
    fake_drivers: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "figures.json"
    environment = {**fake_drivers, "DRIVER_STAND_IN_FAILS": "1"}
    words = ["--ways", "slicing", "--only", "launches,copies", "--counts", "1", "--json", str(place)]
    done = rehearse(environment, *words)
    assert done.returncode == 1
    reasons = {failure["reason"] for failure in Figures.load(place).failures}
    assert reasons == {"a client ended: cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED", "given up after 3 failures"}
