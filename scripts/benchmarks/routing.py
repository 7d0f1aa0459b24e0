"""Routing: calls of cuda.bindings under pympsd-run, against the same calls of pympsd_client in the same process."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import daemon
from timing import Report, median_seconds

RUN = str(Path(sys.executable).parent / "pympsd-run")
VECTOR_ADD = Path(__file__).with_name("vector_add.ptx")
CALLS = 2000
LAUNCHES = KERNELS = 20
ALLOCATIONS = 200


def measure(report: Report) -> None:
    """Start a daemon and measure in a program of its own."""
    with daemon.running() as (env, _):
        done = subprocess.run([RUN, __file__], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    trivial, launch, graph, pool = map(float, done.stdout.split())
    report.add("cuCtxGetCurrent of cuda.bindings, routed, against pympsd_client's", trivial, 1.3, "x")
    report.add("cuLaunchKernelEx at C's pointers, routed, beyond pympsd_client's launch", launch * 1e6, 3, "us")
    report.add(f"the call of cuGraphLaunch ({KERNELS} kernels), routed, against cuLaunchKernel's", graph, 3, "x")
    report.add("cuMemAllocAsync and cuMemFreeAsync, routed, against cuMemAlloc and cuMemFree", pool, 0.3, "x")


def main() -> None:
    """Measure as a program; print the figures."""
    from cuda.bindings import driver as routed

    from pympsd_client import driver as own

    def check(answer):  # type: ignore[no-untyped-def]
        assert int(answer[0]) == 0, answer
        return answer[1] if len(answer) == 2 else None

    check(routed.cuInit(0))
    check(routed.cuCtxSetCurrent(check(routed.cuDevicePrimaryCtxRetain(0))))

    def calls(function):  # type: ignore[no-untyped-def]
        def all_of_them() -> None:
            for _ in range(CALLS):
                function()

        return median_seconds(all_of_them, 15)

    trivial = calls(routed.cuCtxGetCurrent) / calls(own.cuCtxGetCurrent)

    function = check(
        routed.cuModuleGetFunction(check(routed.cuModuleLoadData(VECTOR_ADD.read_bytes())), b"vector_add")
    )
    a, b, c = (int(check(routed.cuMemAlloc(4096))) for _ in range(3))
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    # As compiled code calls it: a configuration, and an array of pointers to the parameters.
    held = [ctype(value) for ctype, value in zip(types, (a, b, c, 32), strict=True)]
    pointers = (ctypes.c_void_p * 4)(*map(ctypes.addressof, held))
    config = (ctypes.c_uint * 14)(1, 1, 1, 32, 1, 1)
    address = int(routed.cuGetProcAddress(b"cuLaunchKernelEx", 13000, 0)[1])
    entry = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * 4)(address)
    places, handle = (ctypes.addressof(config), ctypes.addressof(pointers)), int(function)

    def launches(launch):  # type: ignore[no-untyped-def]
        def some() -> None:
            for _ in range(LAUNCHES):
                launch()

        taken = []
        for _ in range(60):
            taken.append(median_seconds(some, 1, 0) / LAUNCHES)
            check(routed.cuCtxSynchronize())
        return sorted(taken)[len(taken) // 2]

    by_pointers = launches(lambda: entry(places[0], handle, places[1], None))
    directly = launches(lambda: own.cuLaunchKernel(handle, 1, 1, 1, 32, 1, 1, 0, 0, ((a, b, c, 32), types), 0))

    stream = check(routed.cuStreamCreate(1))
    check(routed.cuStreamBeginCapture(stream, routed.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    for _ in range(KERNELS):
        check(routed.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, ((a, b, c, 32), types), 0))
    executable = check(routed.cuGraphInstantiate(check(routed.cuStreamEndCapture(stream)), 0))
    check(routed.cuGraphLaunch(executable, stream))
    one = launches(
        lambda: check(routed.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, ((a, b, c, 32), types), 0))
    )
    graph = launches(lambda: check(routed.cuGraphLaunch(executable, stream))) / one

    def allocations(allocate, free):  # type: ignore[no-untyped-def]
        def some() -> None:
            for _ in range(ALLOCATIONS):
                check(free(check(allocate())))

        return median_seconds(some, 15)

    pool = allocations(
        lambda: routed.cuMemAllocAsync(1 << 16, stream), lambda one: routed.cuMemFreeAsync(one, stream)
    )
    pool /= allocations(lambda: routed.cuMemAlloc(1 << 16), routed.cuMemFree)
    print(trivial, by_pointers - directly, graph, pool)


if __name__ == "__main__":
    main()
