"""Local memory that machine code interleaves (memory_text.py) has the bytes that the NumPy tier sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.text.kernel_writer import write_text
from pympsd_server.ptx.isa.faults import IllegalAddress
from tests.emulated.harness import HEADER, Device, Never, batches, three

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

TIERS = ()
BYTES = 64
BEGIN = """.visible .entry k(.param .u64 p)
{ .local .align 16 .b8 l[64]; .shared .b32 s[64]; .reg .b32 %i, %n, %y, %v<5>; .reg .b64 %a, %o, %w<3>, %g;
.reg .b16 %h<2>; .reg .pred %q; ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %y, %tid.y;
mad.lo.u32 %i, %y, %n, %i; mul.wide.u32 %o, %i, 64; add.s64 %a, %a, %o; cvt.u64.u32 %w0, %i;
mad.lo.s64 %w0, %w0, 0x0102030405060708, 0x1122334455667788; mov.u64 %w1, l; setp.lt.u32 %q, %i, 5; mov.u32 %v4, 0;
"""
STORES = {
    "bytes": "cvt.u16.u64 %h0, %w0; st.local.u8 [l+3], %h0; st.local.u8 [l+5], %h0; st.local.u8 [l+60], %h0;",
    "halves": "cvt.u16.u64 %h0, %w0; st.local.u16 [l+2], %h0; st.local.u16 [l+36], %h0;",
    "words": "st.local.u32 [l+8], %i; st.local.v2.u32 [l+16], {%i, %n}; st.local.v4.u32 [l+48], {%i, %n, %y, 7};",
    "long words": "st.local.u64 [l+8], %w0; st.local.v2.u64 [l+32], {%w0, %w1};",
    "mixed": """st.local.u64 [l+8], %w0; ld.local.u8 %h0, [l+9]; ld.local.s16 %h1, [l+12]; ld.local.u32 %v0, [l+12];
st.local.u16 [l+30], %h0; st.local.u16 [l], %h1; st.local.u32 [l+40], %v0;
ld.local.v4.u8 {%h0, %h1, %h0, %h1}, [l+8]; st.local.v2.u8 [l+62], {%h1, %h0};""",
    "each lane's own place": """and.b32 %v0, %i, 7; mul.wide.u32 %o, %v0, 8; add.s64 %w2, %w1, %o;
st.local.u64 [%w2], %w0; cvt.u16.u64 %h0, %w0; add.s64 %w2, %w2, 3; st.local.u8 [%w2], %h0; ld.local.u8 %h1, [%w2+-1];
st.local.u8 [l+1], %h1;""",
    "some lanes": """@%q st.local.u32 [l+4], %n; @%q st.local.u8 [l+9], 3; @!%q bra NEXT; st.local.u64 [l+24], %w0;
NEXT:""",
    "a loop": """AGAIN: mul.wide.u32 %o, %v4, 4; add.s64 %w2, %w1, %o; st.local.u32 [%w2], %i; add.u32 %v4, %v4, 3;
setp.lt.u32 %q, %v4, %i; setp.lt.and.u32 %q, %v4, 15, %q; @%q bra AGAIN;""",
}
END = "\n".join(
    f"ld.local.v4.u32 {{%v0, %v1, %v2, %v3}}, [l+{at}]; st.global.v4.u32 [%a+{at}], {{%v0, %v1, %v2, %v3}};"
    for at in range(0, BYTES, 16)
)
BLOCKS = [(64, 1, 1), (8, 1, 1), (16, 4, 1)]
APART = """@%q bra LOW; bar.sync 0; bra OUT; LOW: bar.sync 0; OUT: add.u32 %v0, %i, 1; st.local.u32 [l+4], %v0;"""
GENERIC = "cvta.local.u64 %g, %w1; st.u32 [%g+8], %i; st.local.u32 [l+12], %i;"


def run(monkeypatch: pytest.MonkeyPatch, tier: str, ptx: str, block: Any) -> np.ndarray[Any, Any]:
    """Return the local memory of the threads of a block, as the kernel copies it."""
    monkeypatch.setenv("PYMPSD_TIER", tier)
    device = Device(1 << 20)
    memory = np.zeros((int(np.prod(block)), BYTES), np.uint8)
    address = device.put(memory)
    for batch in batches(device.load(HEADER + ptx), "k", (1, 1, 1), block, (address,)):
        assert batch.step(60.0, Never())
        assert isinstance(batch, CompiledBatch) == (tier == "compiled")
    return device.get(address, memory)


def word_of(body: str, block: Any) -> int:
    """Return the bytes of the words that machine code interleaves; 0: none."""
    kernel = Device(1 << 20).load(HEADER + BEGIN + body + END + "ret; }").program.kernels["k"].translation
    return write_text(
        kernel.code, kernel.offsets, kernel.shared_bytes, three(block), has_halves=True, has_masks=True
    ).word


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("kind", STORES)
def test_elements_of_all_sizes_are_at_their_bytes(monkeypatch: pytest.MonkeyPatch, kind: str, block: Any) -> None:
    ptx = BEGIN + STORES[kind] + END + "ret; }"
    assert word_of(STORES[kind], block)
    expected = run(monkeypatch, "numpy", ptx, block)
    assert expected.any()
    np.testing.assert_array_equal(run(monkeypatch, "compiled", ptx, block), expected)


@pytest.mark.parametrize(("kind", "word"), [("words", 4), ("long words", 8)])
def test_a_block_that_bails_keeps_its_local_memory(monkeypatch: pytest.MonkeyPatch, kind: str, word: int) -> None:
    body = STORES[kind] + APART
    assert word_of(body, 32) == word
    ptx = BEGIN + body + END + "ret; }"
    expected = run(monkeypatch, "numpy", ptx, (32, 1, 1))
    np.testing.assert_array_equal(run(monkeypatch, "compiled", ptx, (32, 1, 1)), expected)


@pytest.mark.parametrize(("body", "block"), [(GENERIC, 64), (STORES["words"], 40)])
def test_memory_with_generic_addresses_or_of_incomplete_warps_is_contiguous(
    monkeypatch: pytest.MonkeyPatch, body: str, block: int
) -> None:
    assert word_of(body, block) == 0
    ptx = BEGIN + body + END + "ret; }"
    expected = run(monkeypatch, "numpy", ptx, (block, 1, 1))
    np.testing.assert_array_equal(run(monkeypatch, "compiled", ptx, (block, 1, 1)), expected)


@pytest.mark.parametrize("address", ["[%w1+64]", "[%w1+-4]", "[%w2]"])
def test_addresses_outside_are_faults(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """A uniform one, a negative one, and one of a single lane."""
    body = f"mul.wide.u32 %o, %i, 2; and.b64 %o, %o, 64; add.s64 %w2, %w1, %o; st.local.u32 {address}, %i;"
    assert word_of(body, 64)
    with pytest.raises(IllegalAddress):
        run(monkeypatch, "compiled", BEGIN + body + END + "ret; }", (64, 1, 1))


@pytest.mark.parametrize("far", ["mov.u64 %w2, 0xF0000000;", "shr.u64 %o, %w0, 63; add.s64 %w2, %o, 0xF0000000;"])
def test_a_guard_without_lanes_allows_any_address(monkeypatch: pytest.MonkeyPatch, far: str) -> None:
    """A uniform address, and one that each lane computes."""
    body = f"""st.local.u32 [l+4], %i; setp.gt.u32 %q, %i, 1000; {far} @%q ld.local.u32 %v0, [%w2];
@%q ld.local.u8 %h0, [%w2+1]; @%q st.local.u8 [%w2+2], %h0; @%q st.local.u32 [%w2], %v0; st.local.u32 [l], %v4;"""
    assert word_of(body, 64)
    ptx = BEGIN + body + END + "ret; }"
    expected = run(monkeypatch, "numpy", ptx, (64, 1, 1))
    np.testing.assert_array_equal(run(monkeypatch, "compiled", ptx, (64, 1, 1)), expected)
