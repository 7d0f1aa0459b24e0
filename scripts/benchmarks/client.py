"""The client: round trips, launches, a vector addition with its copies, each against a yardstick of the same run."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import daemon
import numpy as np
from timing import Report, median_seconds

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
COUNT = 1 << 20
VECTOR_ADD = Path(__file__).with_name("vector_add.ptx")


def measure(report: Report) -> None:
    """Start a daemon and measure in a client process of its own."""
    with daemon.running() as (env, _):
        done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    pair, launch, addition, plain = map(float, done.stdout.split())
    report.add("cuMemAlloc + cuMemFree, against a bare socketpair round trip", pair, 20, "x")
    report.add("cuLaunchKernel, asynchronous, until it returns", launch * 1e6, 15, "us")
    bound = 6 * plain * 1000 + 20
    report.add("vector addition of 1M floats with copies (6 x NumPy's plus 20 ms)", addition * 1000, bound, "ms")


def main() -> None:
    """Measure as a client; print the four figures."""
    from pympsd_client import driver as cuda

    def check(answer):  # type: ignore[no-untyped-def]
        assert answer[0] == cuda.CUresult.CUDA_SUCCESS, answer
        return answer[1] if len(answer) == 2 else None

    check(cuda.cuInit(0))
    context = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))
    check(cuda.cuCtxSetCurrent(context))

    def allocate_and_free() -> None:
        check(cuda.cuMemFree(check(cuda.cuMemAlloc(4096))))

    pair = median_seconds(allocate_and_free, 2000, 100) / _round_trip()

    module = check(cuda.cuModuleLoadData(VECTOR_ADD.read_bytes()))
    function = check(cuda.cuModuleGetFunction(module, b"vector_add"))
    size = COUNT * 4
    a, b, c = (check(cuda.cuMemAlloc(size)) for _ in range(3))
    types = (None, None, None, ctypes.c_int)

    launches = []
    for _ in range(40):
        start = time.perf_counter()
        for _ in range(20):
            cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, ((a, b, c, 32), types), 0)
        launches.append((time.perf_counter() - start) / 20)
        check(cuda.cuCtxSynchronize())

    rng = np.random.default_rng(1)
    x, y = rng.random((2, COUNT), np.float32)
    out = np.empty_like(x)

    def addition() -> None:
        check(cuda.cuMemcpyHtoD(a, x, size))
        check(cuda.cuMemcpyHtoD(b, y, size))
        check(cuda.cuLaunchKernel(function, COUNT // 256, 1, 1, 256, 1, 1, 0, 0, ((a, b, c, COUNT), types), 0))
        check(cuda.cuMemcpyDtoH(out, c, size))

    def plain() -> None:
        np.add(x.copy(), y.copy()).copy()

    added, plainly = median_seconds(addition, 30), median_seconds(plain, 30)
    assert np.array_equal(out, x + y)
    print(pair, sorted(launches)[len(launches) // 2], added, plainly)


def _round_trip() -> float:
    """Return the seconds of one byte there and back between two Python processes."""
    own_end, peer_end = socket.socketpair()
    child = os.fork()
    if not child:
        own_end.close()
        while data := peer_end.recv(64):
            peer_end.send(data)
        os._exit(0)
    peer_end.close()

    def once() -> None:
        own_end.send(b"x")
        own_end.recv(64)

    taken = median_seconds(once, 2000, 100)
    own_end.close()
    os.waitpid(child, 0)
    return taken


if __name__ == "__main__":
    main()
