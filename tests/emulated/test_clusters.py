"""Clusters: their ids, barriers, and the shared memory of other blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import IllegalAddress
from tests.emulated.harness import HEADER, Device

Array = np.ndarray[Any, Any]
HOPPER = HEADER.replace("8.0", "8.3").replace("sm_80", "sm_90")
REGISTERS = ".reg .b32 %r<30>; .reg .b64 %d<12>; .reg .pred %p<4>;"
NAMES = [f"%{name}.{axis}" for name in ("ctaid", "clusterid", "cluster_ctaid", "nclusterid") for axis in "xyz"]
NAMES += [f"%cluster_nctaid.{axis}" for axis in "xyz"] + ["%cluster_ctarank", "%cluster_nctarank"]


def run(body: str, grid: tuple[int, int, int], threads: int, words: int, cluster: str) -> Array:
    """Run `body` with %d0 the output; %r0 is the thread, %r1 the block's number in the grid, x fastest."""
    directive = f".explicitcluster .reqnctapercluster {cluster}" if cluster else ""
    text = (
        f"{HOPPER}.visible .entry k(.param .u64 a) {directive} {{ {REGISTERS} .shared .align 16 .b32 s[64];\n"
        "ld.param.u64 %d0, [a]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y;"
        " mov.u32 %r3, %ctaid.y; mad.lo.u32 %r1, %r1, %r2, %r3; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x;"
        " mad.lo.u32 %r1, %r1, %r2, %r3;\n"
        f"{body}\nret; }}\n"
    )
    device = Device(1 << 22)
    out = np.zeros((int(np.prod(grid)), threads, words), "u4")
    address = device.put(out)
    device.launch(device.load(text), "k", grid, threads, address)
    return device.get(address, out)


AT = "mov.u32 %r4, %ntid.x; mad.lo.u32 %r5, %r1, %r4, %r0; mul.wide.u32 %d1, %r5, WORDS; add.u64 %d1, %d0, %d1;"


@pytest.mark.parametrize(("cluster", "size"), [("2, 3, 1", (2, 3, 1)), ("2, 1, 2", (2, 1, 2)), ("", (1, 1, 1))])
def test_threads_read_the_ids_of_their_cluster(cluster: str, size: tuple[int, int, int]) -> None:
    grid = (4, 3, 2)
    body = AT.replace("WORDS", str(4 * len(NAMES)))
    for index, name in enumerate(NAMES):
        body += f"mov.u32 %r6, {name}; st.global.u32 [%d1+{4 * index}], %r6;"
    actual = run(body, grid, 3, len(NAMES), cluster)
    for number in range(24):
        block = (number % 4, number // 4 % 3, number // 12)
        corner = [b // s for b, s in zip(block, size, strict=True)]
        inside = [b % s for b, s in zip(block, size, strict=True)]
        counts = [g // s for g, s in zip(grid, size, strict=True)]
        rank = inside[0] + size[0] * (inside[1] + size[1] * inside[2])
        expected = [*block, *corner, *inside, *counts, *size, rank, size[0] * size[1] * size[2]]
        assert actual[number].tolist() == [expected] * 3


EXCHANGE = (
    AT.replace("WORDS", "16")
    + """
mov.u32 %r6, s; mul.lo.u32 %r7, %r0, 4; add.u32 %r7, %r6, %r7;
mad.lo.u32 %r8, %r1, 1000, %r0; st.shared.u32 [%r7], %r8;
barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
mov.u32 %r9, %cluster_ctarank; mov.u32 %r10, %cluster_nctarank; add.u32 %r11, %r9, 1; rem.u32 %r11, %r11, %r10;
mapa.shared::cluster.u32 %r12, %r7, %r11; ld.shared::cluster.u32 %r13, [%r12];
getctarank.shared::cluster.u32 %r14, %r12; getctarank.shared::cluster.u32 %r15, %r7;
cvt.u64.u32 %d2, %r7; cvta.shared.u64 %d3, %d2; mapa.u64 %d4, %d3, %r11; ld.u32 %r16, [%d4];
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
// Everybody adds to the first word of the first block.
mov.u32 %r17, 0; mapa.shared::cluster.u32 %r18, %r6, %r17; atom.shared::cluster.add.u32 %r19, [%r18], 1;
barrier.cluster.arrive.relaxed; barrier.cluster.wait;
ld.shared::cluster.u32 %r20, [%r18];
sub.u32 %r16, %r16, %r13; add.u32 %r14, %r14, %r16; shl.b32 %r15, %r15, 8; or.b32 %r14, %r14, %r15;
st.global.v4.u32 [%d1], {%r13, %r14, %r20, %r9};
"""
)


@pytest.mark.parametrize("blocks", [2, 4, 8])
def test_blocks_read_and_write_each_others_memory(blocks: int) -> None:
    threads = 40
    actual = run(EXCHANGE, (16, 1, 1), threads, 4, f"{blocks}, 1, 1")
    for number in range(16):
        rank, first = number % blocks, number - number % blocks
        other = (rank + 1) % blocks
        for thread in range(threads):
            expected = [(first + other) * 1000 + thread, rank << 8 | other, first * 1000 + blocks * threads, rank]
            assert actual[number, thread].tolist() == expected


def test_exited_threads_hold_up_no_cluster() -> None:
    body = (
        AT.replace("WORDS", "4")
        + "and.b32 %r6, %r1, 1; setp.eq.u32 %p0, %r6, 1; @%p0 ret; setp.gt.u32 %p1, %r0, 5; @%p1 ret;"
        " barrier.cluster.arrive; barrier.cluster.wait; st.global.u32 [%d1], 1;"
    )
    actual = run(body, (4, 1, 1), 40, 1, "2, 1, 1")
    assert actual[:, :, 0].tolist() == [[int(b % 2 == 0 and t <= 5) for t in range(40)] for b in range(4)]


def test_a_rank_outside_of_the_cluster_faults() -> None:
    body = (
        "mov.u32 %r6, s; mov.u32 %r7, 2; mapa.shared::cluster.u32 %r8, %r6, %r7; ld.shared::cluster.u32 %r9, [%r8];"
    )
    with pytest.raises(IllegalAddress, match="a cluster has 2 blocks"):
        run(body + "st.global.u32 [%d0], %r9;", (2, 1, 1), 1, 1, "2, 1, 1")


def test_bulk_copies_and_arrivals_in_another_block() -> None:
    """Block 0 sends its memory to block 1, whose mbarrier counts the bytes; block 1 arrives at that of block 0."""
    body = (
        AT.replace("WORDS", "4")
        + """
    .shared .align 8 .b64 bar; mov.u32 %r6, bar; mov.u32 %r7, s; mov.u32 %r8, %cluster_ctarank;
    setp.ne.u32 %p0, %r0, 0;
    mul.lo.u32 %r9, %r0, 4; add.u32 %r10, %r7, %r9; mad.lo.u32 %r11, %r8, 100, %r0; st.shared.u32 [%r10], %r11;
    @!%p0 mbarrier.init.shared::cta.b64 [%r6], 1;
    @!%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r6], 128;
    barrier.cluster.arrive; barrier.cluster.wait;
    xor.b32 %r12, %r8, 1; mapa.shared::cluster.u32 %r13, %r6, %r12; mapa.shared::cluster.u32 %r14, %r7, %r12;
    add.u32 %r14, %r14, 128;
    @!%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r14], [%r7], 128, [%r13];
    @!%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r13];
    again: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r6], 0;
    @!%p1 bra again;
    ld.shared.u32 %r15, [%r10+128]; st.global.u32 [%d1], %r15;
    """
    )
    actual = run(body, (2, 1, 1), 32, 1, "2, 1, 1")
    assert actual[0, :, 0].tolist() == [100 + t for t in range(32)]
    assert actual[1, :, 0].tolist() == list(range(32))


SUMS = (
    AT.replace("WORDS", "4")
    + """
mov.u32 %r6, s; and.b32 %r7, %r0, 7; shl.b32 %r7, %r7, 2; add.u32 %r6, %r6, %r7; mov.u32 %r9, %cluster_ctarank;
barrier.cluster.arrive; barrier.cluster.wait; xor.b32 %r9, %r9, 1; mapa.shared::cluster.u32 %r10, %r6, %r9;
add.u32 %r11, %r9, %r0; red.shared::cluster.add.u32 [%r10], %r11; red.shared::cluster.add.u32 [%r10+64], 1;
barrier.cluster.arrive; barrier.cluster.wait;
ld.shared.u32 %r12, [%r6]; ld.shared.u32 %r13, [%r6+64];
mad.lo.u32 %r12, %r13, 10000, %r12; st.global.u32 [%d1], %r12;
"""
)


@pytest.mark.parametrize("tier", ["numpy", "compiled"], indirect=True)
def test_whole_warps_add_to_the_memory_of_the_block_before_and_of_the_one_behind(tier: str) -> None:
    actual = run(SUMS, (4, 1, 1), 64, 1, "2, 1, 1")
    for block in range(4):
        sums = [sum(block % 2 + t for t in range(i & 7, 64, 8)) + 80000 for i in range(64)]
        assert actual[block, :, 0].tolist() == sums
