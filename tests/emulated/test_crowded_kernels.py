"""Kernels in which lanes may wait at very many places: their text grows with the kernel, and the bits are the same.

The compiled tier chooses the next segment of such a kernel by a switch (dispatch_text.py). The tests also let it do
that for kernels that have few such places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.text import dispatch_text
from pympsd_server.ptx.compiled_tier.text.kernel_writer import write_text
from tests.emulated.conftest import use_tier
from tests.emulated.harness import HEADER, Device, Never, batches, three
from tests.emulated.test_corpus import check_recorded
from tests.emulated.test_tiers import check_many

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

TIERS = ()
THREADS, ROUNDS = 80, 6


def write_exits(count: int) -> str:
    """Return a kernel whose loop has many exits: each lane takes one, lanes meet after it, and begin again."""
    tests = "\n".join(f"xor.b32 %v, %v, {j}; setp.eq.u32 %q, %x, {j}; @%q bra OUT{j};" for j in range(count))
    exits = "\n".join(f"OUT{j}: mad.lo.u32 %v, %v, {2 * j + 3}, %x; bra JOIN;" for j in range(count))
    return f"""{HEADER}.visible .entry k(.param .u64 p)
{{ .reg .b32 %i, %v, %x, %n; .reg .b64 %a, %o; .reg .pred %q; .shared .b32 seen[{THREADS}];
mov.u32 %i, %tid.x; ld.param.u64 %a, [p]; mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; mov.u32 %v, %i;
mov.u32 %n, {ROUNDS};
AGAIN: mad.lo.u32 %x, %v, 40503, %i; shr.u32 %x, %x, 7; rem.u32 %x, %x, {count + 9};
{tests}
bra JOIN;
{exits}
JOIN: atom.shared.add.u32 %x, [seen], 1; bar.sync 0; sub.u32 %n, %n, 1; setp.ne.u32 %q, %n, 0; @%q bra AGAIN;
ld.shared.u32 %x, [seen]; add.u32 %v, %v, %x; st.global.u32 [%a], %v; ret; }}"""


def run(text: str, *, compiled: bool) -> list[int]:
    """Return what the threads of a block store, after turns as short as possible; check the tier."""
    device = Device(1 << 20)
    address = device.put(np.zeros(THREADS, "u4"))
    running = batches(device.load(text), "k", three(1), three(THREADS), (address,))
    for batch in running:
        assert isinstance(batch, CompiledBatch) == compiled
        while not batch.step(1e-5, Never()):
            pass
    results: list[int] = device.get(address, np.zeros(THREADS, "u4")).tolist()
    return results


def test_lanes_wait_at_many_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_exits(90)
    use_tier(monkeypatch, "numpy")
    expected = run(text, compiled=False)
    use_tier(monkeypatch, "compiled")
    assert run(text, compiled=True) == expected


def write_module(count: int) -> str:
    """Return the compiler's text of the kernel with so many exits."""
    translation = Device(1 << 20).load(write_exits(count)).program.kernels["k"].translation
    sizes = translation.offsets, translation.shared_bytes
    return write_text(translation.code, *sizes, (THREADS, 1, 1), has_halves=True, has_masks=True).module_text


def test_the_compilers_text_grows_with_the_kernel() -> None:
    """Not with the square of its blocks, which would be four times as much."""
    few, many = (len(write_module(count)) for count in (100, 200))
    assert many < 2.5 * few


@pytest.fixture
def every_kernel_is_crowded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the compiled tier choose segments by a switch in each kernel."""
    monkeypatch.setattr(dispatch_text, "MAX_LADDER_TESTS", -1)
    monkeypatch.setenv("PYMPSD_KERNEL_CACHE", "off")
    use_tier(monkeypatch, "compiled")


@pytest.mark.usefixtures("every_kernel_is_crowded")
@pytest.mark.parametrize("name", ["divergence", "ping_pong", "shuffle_divergent", "votes_before_sync"])
def test_same_as_recorded(name: str) -> None:
    check_recorded(name)


@pytest.mark.usefixtures("every_kernel_is_crowded")
def test_programs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    check_many(monkeypatch, 5, 1)


@pytest.mark.long("")
@pytest.mark.usefixtures("every_kernel_is_crowded")
def test_many_programs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    check_many(monkeypatch, 1000, 8)
