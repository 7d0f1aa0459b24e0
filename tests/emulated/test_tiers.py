"""Random programs (generated_kernels.py): the compiled tier gives the bits of the NumPy tier.

A kernel runs in NumPy and as machine code. Some also run as machine code in which the first instructions of each kind
are executed by NumPy's functions. PYMPSD_TEST_KERNELS sets the number of kernels of the long test.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.lowering import control_flow
from tests.emulated.conftest import use_tier
from tests.emulated.generated_kernels import BLOCKS, Kernel
from tests.emulated.harness import Device, Never, batches

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

TIERS = ()
PROGRAMS = 2
"""In a kernel: of more, LLVM's time grows faster than their number."""
KERNELS = int(os.environ.get("PYMPSD_TEST_KERNELS", "10"))
KERNELS_OF_TEST = 5
EVERY_ESCAPING = 5


def run(kernel: Kernel, text: str) -> tuple[dict[str, np.ndarray[Any, Any]], bool]:
    """Return what a kernel leaves in the present tier, by name, and whether it ran as machine code."""
    device = Device(1 << 22)
    memory = kernel.memory()
    address = device.put(memory)
    running = batches(device.load(text), "k", (BLOCKS, 1, 1), kernel.shape, (address,))
    for batch in running:
        assert batch.step(60.0, Never())
    is_compiled = all(isinstance(batch, CompiledBatch) for batch in running)
    return kernel.split(device.get(address, memory).copy()), is_compiled


def check(monkeypatch: pytest.MonkeyPatch, seed: int) -> bool:
    """Compare the tiers; return whether the kernel ran as machine code."""
    kernel = Kernel(seed, PROGRAMS)
    text = kernel.text
    use_tier(monkeypatch, "numpy")
    expected, _ = run(kernel, text)
    was_compiled = False
    for tier in ("compiled", "escaping")[: 1 if seed % EVERY_ESCAPING else 2]:
        use_tier(monkeypatch, tier, max_escapes=1)
        results, is_compiled = run(kernel, text)
        was_compiled |= is_compiled
        for name, values in expected.items():
            wrong = np.argwhere(results[name] != values)
            assert not len(wrong), f"seed {seed}, {tier}: {name}{wrong[:4].tolist()} in\n{text}"
    return was_compiled


def check_many(monkeypatch: pytest.MonkeyPatch, first: int, count: int) -> None:
    """Compare the tiers for the kernels of some seeds, most of which must be compiled."""
    compiled = [check(monkeypatch, seed) for seed in range(first, first + count)]
    assert sum(compiled) >= count // 2


def test_both_tiers_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    check_many(monkeypatch, 0, 1)


@pytest.mark.parametrize("tier", ["numpy", pytest.param("compiled", marks=pytest.mark.long(""))])
def test_long_blocks_are_split_without_a_difference(monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    use_tier(monkeypatch, tier)
    kernel = Kernel(3, 1)
    expected, _ = run(kernel, kernel.text)
    monkeypatch.setattr(control_flow, "MAX_OPERATIONS_PER_BLOCK", 2)
    results, is_compiled = run(kernel, kernel.text)
    assert is_compiled == (tier == "compiled")
    for name, values in expected.items():
        assert (results[name] == values).all(), name


@pytest.mark.long("")
@pytest.mark.parametrize("first", range(1000, 1000 + KERNELS, KERNELS_OF_TEST))
def test_many_programs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    check_many(monkeypatch, first, KERNELS_OF_TEST)
