"""Compare the speed of the five study kernels with that of the study's code. Not a test.

python -m tests.emulated.bench_against_study /path/to/ptx_study.py
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulated.harness import Device

KERNELS = Path(__file__).parent / "kernels" / "bench.ptx"
N = 1 << 20


def best(run: Callable[[], Any], repeats: int = 7) -> float:
    """The shortest of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def load_study(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("ptx_study", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> list[tuple[str, Any, Any, list[Any], int]]:
    """(kernel, grid, block, arguments as arrays or ints, dynamic shared bytes)"""
    rng = np.random.default_rng(1)
    a, b, out = (rng.random(N, np.float32) for _ in range(3))
    m = [rng.random((256, 256), np.float32) for _ in range(3)]
    start, steps = np.arange(1, (1 << 17) + 1, dtype=np.uint32), np.zeros(1 << 17, np.uint32)
    total = np.zeros(1, np.float32)
    return [
        ("vadd", (N // 256,), (256,), [a, b, out, N], 0),
        ("matmul", (16, 16), (16, 16), [*m, 256], 0),
        ("reduce", (N // 256,), (256,), [a, total, N], 1024),
        ("collatz", (1 << 9,), (256,), [start, steps, 1 << 17], 0),
        ("shuffle", (N // 256,), (256,), [a, total, N], 0),
    ]


def main() -> None:
    study = load_study(sys.argv[1])
    ptx = KERNELS.read_text()
    memory = study.Memory(1 << 27)
    module = study.Module(ptx, memory)
    device = Device()
    loaded_module = device.load(ptx)
    for name, grid, block, arguments, shared in cases():
        mine = [device.put(x) if isinstance(x, np.ndarray) else x for x in arguments]
        other = []
        for x in arguments:
            if isinstance(x, np.ndarray):
                address = memory.alloc(x.nbytes)
                memory.htod(address, x)
                other.append(address)
            else:
                other.append(x)
        kernel = module.kernel(name)
        t_study = best(lambda: study.launch(kernel, grid, block, other, shared))  # noqa: B023
        t_ours = best(lambda: device.launch(loaded_module, name, grid, block, *mine, shared=shared))  # noqa: B023
        print(f"{name:8} ours {t_ours * 1e3:7.1f} ms  study {t_study * 1e3:7.1f} ms  ratio {t_ours / t_study:.2f}")


if __name__ == "__main__":
    main()
