"""Products of matrices of bits: mma and wmma of .b1, which count where both bits are 1, or where they differ."""

from __future__ import annotations

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.loading.program import load_program
from tests.emulated.harness import HEADER, Device
from tests.emulated.test_matrices import Array, count_held, kernel, place_a, place_b, place_c
from tests.emulated.test_refusals import kernel as refused_kernel

AMPERE = HEADER.replace("8.0", "7.1")
SHAPES = {"m8n8k128": (8, 8, 128), "m16n8k128": (16, 8, 128), "m16n8k256": (16, 8, 256)}
WARPS = 2


def registers_of(lanes: Array) -> Array:
    """The bits of each lane as registers."""
    return np.packbits(lanes.astype("u1"), axis=1, bitorder="little").view("u4")


def count(operation: str, a: Array, b: Array) -> Array:
    """The product of two matrices of bits: how many bits are left of each row of A and column of B together."""
    pairs = a[:, :, None] ^ b[None] if operation == "xor" else a[:, :, None] & b[None]
    return pairs.sum(axis=1)


@pytest.mark.parametrize("operation", ["and", "xor"])
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_mma_of_bits_matches_whole_matrices(shape: str, operation: str) -> None:
    m, n, k = SHAPES[shape]
    rng = np.random.default_rng(m + k)
    left, right = rng.integers(0, 2, (WARPS, m, k)), rng.integers(0, 2, (WARPS, k, n))
    before = rng.integers(-9, 9, (WARPS, m, n))
    before[:, ::3] += 2**31 - 20  # some sums wrap
    fragments = [
        np.concatenate([registers_of(count_held(x, place_a, 1, m)) for x in left]),
        np.concatenate([registers_of(count_held(x, place_b, 1)) for x in right]),
        np.concatenate([count_held(x.astype("i4"), place_c) for x in before]),
    ]
    device = Device(1 << 20)
    addresses = [device.put(content) for content in (*fragments, np.zeros_like(fragments[2]))]
    text = kernel(shape, f"s32.b1.b1.s32.{operation}.popc", "", [f.shape[1] for f in fragments], [4, 4, 4])
    device.launch(device.load(text), "k", 1, 32 * WARPS, *addresses)
    actual = device.get(addresses[3], fragments[2]).reshape(WARPS, 32, -1)
    for warp in range(WARPS):
        total = (count(operation, left[warp], right[warp]) + before[warp]).astype("i4")
        np.testing.assert_array_equal(actual[warp], count_held(total, place_c))


WARP_KERNEL = """
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
{ .reg .b32 %a0, %b0, %c<2>; .reg .b64 %p<4>;
  ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [c]; ld.param.u64 %p3, [d];
  wmma.load.a.sync.aligned.row.m8n8k128.global.b1 {%a0}, [%p0], 256;
  wmma.load.b.sync.aligned.col.m8n8k128.b1 {%b0}, [%p1];
  wmma.load.c.sync.aligned.col.m8n8k128.s32 {%c0, %c1}, [%p2], 12;
  wmma.mma.@OP@.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {%c0, %c1}, {%a0}, {%b0}, {%c0, %c1};
  wmma.store.d.sync.aligned.row.m8n8k128.s32 [%p3], {%c0, %c1}, 8;
  ret; }
"""


@pytest.mark.parametrize("operation", ["and", "xor"])
def test_wmma_of_bits_matches_whole_matrices(operation: str) -> None:
    rng = np.random.default_rng(4)
    # Rows of A are 256 bits apart, columns of B follow each other, and columns of C are 12 numbers apart.
    left, right = rng.integers(0, 2, (8, 256)), rng.integers(0, 2, (8, 128))
    before = rng.integers(-1000, 1000, (8, 12)).astype("i4")
    device = Device(1 << 20)
    addresses = [device.put(registers_of(bits)) for bits in (left, right)]
    addresses += [device.put(before), device.put(np.zeros((8, 8), "i4"))]
    device.launch(device.load(AMPERE + WARP_KERNEL.replace("@OP@", operation)), "k", 1, 32, *addresses)
    expected = count(operation, left[:, :128], right.T) + before[:, :8].T
    np.testing.assert_array_equal(device.get(addresses[3], np.zeros((8, 8), "i4")), expected)


@pytest.mark.parametrize(
    "text",
    [
        "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32 {%r0, %r1}, {%r2}, {%r3}, {%r4, %r5};",
        "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.popc {%r0, %r1}, {%r2}, {%r3}, {%r4, %r5};",
        "mma.sync.aligned.m8n8k128.row.col.satfinite.s32.b1.b1.s32.xor.popc {%r0, %r1}, {%r2}, {%r3}, {%r4, %r5};",
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32.xor.popc {%r0, %r1}, {%r2}, {%r3}, {%r4, %r5};",
        "mma.sync.aligned.m8n8k256.row.col.s32.b1.b1.s32.xor.popc {%r0, %r1}, {%r2}, {%r3}, {%r4, %r5};",
        "wmma.load.a.sync.aligned.col.m8n8k128.b1 {%r0}, [%d0];",
        "wmma.load.b.sync.aligned.row.m8n8k128.b1 {%r0}, [%d0];",
        "wmma.mma.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {%r0, %r1}, {%r2}, {%r3}, {%r4, %r5};",
        "wmma.mma.xor.popc.sync.aligned.col.col.m8n8k128.s32.b1.b1.s32 {%r0, %r1}, {%r2}, {%r3}, {%r4, %r5};",
    ],
)
def test_impossible_products_of_bits_are_refused(text: str) -> None:
    with pytest.raises(InvalidPtx, match=text.split(".")[0]):
        load_program(refused_kernel(text))
