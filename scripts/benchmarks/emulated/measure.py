"""The emulated GPU against C++ on the same processor, with whichever tier is on; and loads, first launches, stops.

Times of kernels are processor time on one thread, medians of one run, so that other work on the machine does not
count; each figure is the kernel's time over that of the same algorithm in C++ (baseline.cpp), built with
``c++ -O2 -march=native`` in the same run and run by one thread. The scan and the histogram in C++ do less work than
the kernels, hence their bounds. Kernels run until they are compiled before they are measured.

Then larger ones of them run on one thread, on two, and on as many as there are processors: wall times, in turn, the
median of their ratios. They need a quiet machine.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # behind the installed package, which has the libraries in C

from timing import Report  # noqa: E402

from pympsd.vocabulary.variables import KERNEL_THREADS, TIER, read  # noqa: E402
from pympsd_server.ptx.compiled_tier.compilation.machine_code import MachineCode  # noqa: E402
from pympsd_server.ptx.isa.faults import Cancelled  # noqa: E402
from pympsd_server.ptx.loading.linking import LoadedModule  # noqa: E402
from pympsd_server.ptx.loading.program import load_program  # noqa: E402
from tests.emulated.harness import Device, Never, batches, three  # noqa: E402

KERNELS = HERE / "kernels.ptx"
MODULE_BYTES = 26 << 20
BOUND = 1.5
BOUNDS = {"scan": 20.0, "histogram": 3.0}
"""Bounds as multiples of C++'s time, for kernels whose bound is not BOUND."""
LOAD_SECONDS, FIRST_LAUNCH_MS, STOP_MS = 2.0, 30.0, 10.0
STOPS = 50
COMPILED_SECONDS = 20.0
"""The greatest time for which a kernel runs until it is compiled."""
TWO_THREADS = 1 / 1.7
"""The bound of the time on several threads, in times on one."""
ROUNDS = 7
MULTIPROCESSORS = 132
ENDLESS = 2_000_000_000
"""Rounds of the kernel `rounds` that no tier ends during a measurement."""


def cases() -> dict[str, tuple[tuple[int, ...], tuple[int, ...], list[Any], list[int]]]:
    """Return each kernel's grid, block and arguments, and which of the arguments are results."""
    rng, n = np.random.default_rng(1), 1 << 20

    def values(*shape: int) -> Any:
        return rng.random(shape, np.float32)

    def zeros(*shape: int) -> Any:
        return np.zeros(shape, np.float32)

    matrices = [zeros(320, 640), values(320, 320), values(320, 640), 320, 640]
    numbers, counts = rng.integers(0, 256, n, np.uint8), np.zeros(256, np.uint32)
    starts, steps = np.arange(1, (1 << 17) + 1, dtype=np.uint32), np.zeros(1 << 17, np.uint32)
    prices = [values(n) * 25 + 5, values(n) * 99 + 1, values(n) * 9.75 + 0.25]
    options = [zeros(n), zeros(n), *prices, np.float32(0.02), np.float32(0.3), n]
    return {
        "vadd": ((n // 256,), (256,), [values(n), values(n), zeros(n), n], [2]),
        "matrixMul32": ((20, 10), (32, 32), matrices, [0]),
        "matmul": ((16, 16), (16, 16), [values(256, 256), values(256, 256), zeros(256, 256), 256], [2]),
        "reduce": ((256,), (256,), [values(n), zeros(1), n], [1]),
        "histogram": ((64,), (256,), [numbers, counts, n], [1]),
        "collatz": ((512,), (256,), [starts, steps, 1 << 17], [1]),
        "nbody": ((16,), (256,), [values(4096, 4), zeros(4096, 4), 4096], [1]),
        "mandelbrot": ((32, 32), (16, 16), [np.zeros((512, 512), np.int32), 512, 512, 256], [0]),
        "rounds": ((1,), (128,), [np.zeros(128, np.uint32), 100_000], [0]),
        "blackscholes": ((n // 256,), (256,), options, [0, 1]),
        "scan": ((n // 512,), (512,), [rng.integers(0, 100, n, np.int32), np.zeros(n, np.int32), n], [1]),
        "stencil": ((32, 128), (32, 8), [values(1024, 1024), zeros(1024, 1024), 1024, 1024], [1]),
    }


def measure(report: Report) -> None:
    """Measure everything; exit with a message if there is no C++ compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        sys.exit("emulated needs a C++ compiler (c++ or g++): install one, for example the package g++")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "baseline.so"
        options = ["-O2", "-march=native", "-shared", "-fPIC"]
        subprocess.run([compiler, *options, "-o", library, HERE / "baseline.cpp"], check=True)
        _kernels(report, ctypes.CDLL(str(library)))
    _threads(report)
    _loading(report)
    _stopping(report)


def _processor_ms(work: Callable[[], object], most: int = 9, seconds: float = 1.2) -> float:
    """Return the median processor time of up to `most` runs, which take some `seconds` altogether."""
    times, begin = [], time.perf_counter()
    while not times or (len(times) < most and time.perf_counter() - begin < seconds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e3


def _kernels(report: Report, library: ctypes.CDLL) -> None:
    device = Device(1 << 30)
    module = device.load(KERNELS.read_text())
    for name, (grid, block, arguments, results) in cases().items():
        on_host = [np.ascontiguousarray(a).copy() if isinstance(a, np.ndarray) else a for a in arguments]
        for_c = [_for_c(argument) for argument in on_host]
        on_device = [device.put(a) if isinstance(a, np.ndarray) else a for a in arguments]
        function = getattr(library, name)

        def launch(name: str = name, grid: Any = grid, block: Any = block, values: Any = on_device) -> None:
            device.launch(module, name, grid, block, *values)

        def call(function: Any = function, values: Any = for_c) -> None:
            function(*values)

        launch_until_compiled(launch, module, name)
        for index, argument in enumerate(arguments):  # every launch adds to some results
            if index in results:
                device.space.write(on_device[index], np.ascontiguousarray(argument).tobytes())
        launch()
        call()
        for index in results:
            actual = device.get(on_device[index], arguments[index])
            if not np.allclose(actual, on_host[index], rtol=1e-3, atol=1e-3):
                sys.exit(f"{name} does not compute what baseline.cpp computes")
        emulated, native = _processor_ms(launch), _processor_ms(call)
        what = f"{name}: {emulated:.1f} ms of processor time, in C++ {native:.1f} ms"
        report.add(what, emulated / native, BOUNDS.get(name, BOUND), "x")


def launch_until_compiled(launch: Callable[[], None], module: LoadedModule, name: str) -> bool:
    """Launch a kernel at least once, and until it is compiled; return whether it is, False if the tier is NumPy."""
    codes, end = module.program.kernels[name].translation.machine_codes, time.monotonic() + COMPILED_SECONDS
    while True:
        launch()
        if any(isinstance(code, MachineCode) for code in codes.values()):
            return True
        if read(os.environ, TIER) == "numpy" or time.monotonic() > end:
            return False


def large_cases() -> dict[str, tuple[tuple[int, ...], tuple[int, ...], list[Any]]]:
    """Return kernels that take longer than 50 ms on one thread: grid, block, arguments."""
    rng = np.random.default_rng(1)
    a, b = (rng.random((1024, 1024), np.float32) for _ in range(2))
    n = 1 << 21
    image, places = np.zeros((2048, 2048), np.int32), rng.random((16384, 4), np.float32)
    return {
        "matmul": ((64, 64), (16, 16), [a, b, np.zeros_like(a), 1024]),
        "collatz": ((n // 256,), (256,), [np.arange(1, n + 1, dtype=np.uint32), np.zeros(n, np.uint32), n]),
        "nbody": ((64,), (256,), [places, np.zeros_like(places), 16384]),
        "mandelbrot": ((128, 128), (16, 16), [image, 2048, 2048, 256]),
    }


def _threads(report: Report) -> None:
    device, processors = Device(1 << 28), len(os.sched_getaffinity(0))
    device.multiprocessors = MULTIPROCESSORS
    module = device.load(KERNELS.read_text())
    for name, (grid, block, arguments) in large_cases().items():
        values = [device.put(a) if isinstance(a, np.ndarray) else a for a in arguments]

        def launch(threads: int = 1, name: str = name, grid: Any = grid, block: Any = block, v: Any = values) -> None:
            os.environ[KERNEL_THREADS] = str(threads)
            device.launch(module, name, grid, block, *v)

        if not launch_until_compiled(launch, module, name):
            continue
        for threads in sorted({2, processors} - {1}):
            ratios, ones = [], []
            for _ in range(ROUNDS):
                one, several = (_seconds(lambda count=count: launch(count)) for count in (1, threads))  # type: ignore[misc]
                ones.append(one * 1e3)
                ratios.append(several / one)
            what = f"{name} on {threads} threads, against one ({statistics.median(ones):.0f} ms)"
            report.add(what, statistics.median(ratios), TWO_THREADS, "x")
    os.environ.pop(KERNEL_THREADS, None)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _for_c(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data_as(ctypes.c_void_p)
    return ctypes.c_float(argument) if isinstance(argument, np.floating) else ctypes.c_int(argument)


def _loading(report: Report) -> None:
    image = large_module(KERNELS.read_text(), MODULE_BYTES).encode()
    start = time.process_time()
    program = load_program(image)
    seconds = time.process_time() - start
    report.add(f"load a module of {len(image) >> 20} MB, {len(program.kernels)} kernels", seconds, LOAD_SECONDS, "s")
    device = Device()
    space = LoadedModule(program, device.space)
    _, block, arguments, _ = cases()["blackscholes"]
    values = [device.put(a[:256]) if isinstance(a, np.ndarray) else a for a in arguments[:-1]]
    start = time.process_time()
    device.launch(space, "blackscholes_1", 1, block, *values, 256)
    taken = (time.process_time() - start) * 1e3
    report.add("first launch of a kernel of it with 165 operations", taken, FIRST_LAUNCH_MS, "ms")


def large_module(ptx: str, count: int) -> str:
    """Return a module of at least that many characters, which repeats the kernels of a module under other names."""
    head, _, rest = ptx.partition(".address_size 64\n")
    entries = "|".join(re.findall(r"[.]entry (\w+)", rest))
    names = re.compile(rf"\b({entries})(?=[(_\s])")
    copies = [names.sub(rf"\1_{number}", rest) for number in range(1, count // len(rest) + 2)]
    return head + ".address_size 64\n" + "\n".join(copies)


def _stopping(report: Report) -> None:
    device = Device()
    module = device.load(KERNELS.read_text())
    out = device.put(np.zeros(128, np.uint32))
    late = []
    for _ in range(STOPS):
        (batch,) = batches(module, "rounds", three(1), three(128), (out, ENDLESS))
        start = time.perf_counter()
        batch.step(0.005, Never())
        late.append((time.perf_counter() - start - 0.005) * 1e3)
    report.add(f"the end of a time slice, the latest of {STOPS}", max(late), STOP_MS, "ms")
    late = []
    for _ in range(STOPS):
        (batch,) = batches(module, "rounds", three(1), three(128), (out, ENDLESS))
        cancel, when = threading.Event(), [0.0]

        def stop(cancel: threading.Event = cancel, when: list[float] = when) -> None:
            when[0] = time.perf_counter()
            cancel.set()

        timer = threading.Timer(0.005, stop)
        timer.start()
        try:
            batch.step(60.0, cancel)
        except Cancelled:
            late.append((time.perf_counter() - when[0]) * 1e3)
        timer.join()
    report.add(f"from cancelling a kernel to its end, the latest of {STOPS}", max(late), STOP_MS, "ms")
