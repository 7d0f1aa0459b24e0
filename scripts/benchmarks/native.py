"""Native programs: a C program under pympsd-run against a Python program of pympsd_client, with one daemon."""

from __future__ import annotations

import ctypes
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import daemon
from timing import Report, median_seconds

import pympsd_client

BIN = Path(sys.executable).parent
HERE = Path(__file__)
LIBRARIES = Path(pympsd_client.__file__).parent / "native" / "libraries"
LAUNCHES, TIMES, RUNS = 20, 60, 7


def measure(report: Report) -> None:
    """Compile the program, start a daemon, and run both programs in turn."""
    with tempfile.TemporaryDirectory() as folder, daemon.running() as (env, _):
        program = f"{folder}/native"
        libraries = [f"-L{LIBRARIES}", "-l:libcuda.so.1"]
        subprocess.run(
            ["cc", "-O2", "-D_GNU_SOURCE", "-o", program, str(HERE.with_suffix(".c")), *libraries], check=True
        )
        figures = []
        for _ in range(RUNS + 1):  # the first starts the server
            native = _run([str(BIN / "pympsd-run"), program], env)
            python = _run([sys.executable, str(HERE)], env)
            figures.append((native[0] - python[0], native[1], native[2] - python[1]))
    init, current, launch = (statistics.median(column) for column in zip(*figures[1:], strict=True))
    report.add("cuInit of a C program (processor time), beyond a Python program's", init, 0.25, "s")
    report.add("cuCtxGetCurrent of a C program", current * 1e6, 0.7, "us")
    report.add("cuLaunchKernel of a C program, beyond pympsd_client's launch", launch * 1e6, 3, "us")


def _run(command: list[str], env: dict[str, str]) -> list[float]:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    """Measure as a program of pympsd_client; print the processor time of cuInit and the seconds of a launch."""
    from pympsd_client import driver

    def check(answer):  # type: ignore[no-untyped-def]
        assert int(answer[0]) == 0, answer
        return answer[1] if len(answer) == 2 else None

    _ = driver.cuInit, driver.cuLaunchKernel
    start = time.process_time()  # starting an interpreter is work; the daemon's part is waiting
    check(driver.cuInit(0))
    init = time.process_time() - start
    check(driver.cuCtxCreate(None, 0, 0))
    header = (HERE.parents[2] / "tests" / "native_programs" / "driver.h").read_text()
    text = header[header.index("*const TWICE") :]
    ptx = "".join(re.findall(r'"(.*)"', text)).replace("\\n", "\n").encode()
    function = int(check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(ptx)), b"twice")))
    values = ((int(check(driver.cuMemAlloc(128))),), (ctypes.c_void_p,))

    def launches() -> None:
        for _ in range(LAUNCHES):
            driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, values, 0)

    taken = []
    for _ in range(TIMES):
        taken.append(median_seconds(launches, 1, 0) / LAUNCHES)
        check(driver.cuCtxSynchronize())
    print(init, statistics.median(taken))


if __name__ == "__main__":
    main()
