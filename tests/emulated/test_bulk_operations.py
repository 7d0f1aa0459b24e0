"""Bulk copies to clusters, bulk reductions, and asynchronous stores."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from pympsd.wire.tensor_map import BYTES, DataType, TensorMap, pack
from pympsd_server.ptx.isa.faults import IllegalAddress
from tests.emulated.harness import Device
from tests.emulated.tensor_machine import COMPLETE, COPY_IN, SHARED, TENSOR, Array, Machine, kernel

CLUSTER = """
mov.u32 %r11, %cluster_ctarank; setp.ne.u32 %p0, %r0, 0; @%p0 bra ready;
mbarrier.init.shared::cta.b64 [%r1], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], COUNT;
ready: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
setp.ne.or.u32 %p2, %r11, 0, %p0; @%p2 bra wait;
INSTRUCTION
wait: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0; @!%p1 bra wait;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mul.wide.u32 %d4, %r11, 1024; add.u64 %d1, %d1, %d4; setp.ge.u32 %p1, %r0, 64; @%p1 ret;
mul.lo.u32 %r3, %r0, 16; mul.wide.u32 %d4, %r0, 16; add.u64 %d4, %d1, %d4; add.u32 %r4, %r2, %r3;
ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r4]; st.global.v4.u32 [%d4], {%r5, %r6, %r7, %r8};
"""


def on_cluster(instruction: str, count: int, map: TensorMap | None, tensor: Array) -> Array:
    """Return what one instruction of the first of four blocks leaves in the first 1024 bytes of each one's memory."""
    device = Device(1 << 20)
    text = kernel(
        CLUSTER.replace("INSTRUCTION", instruction).replace("COUNT", str(count)), ".reqnctapercluster 4, 1, 1"
    )
    out, address = np.zeros((4, 1024), "u1"), device.put(tensor)
    place = device.put(out)
    numbers = device.put(np.array([0, 0, address & 0xFFFFFFFF, address >> 32, *[0] * 4], "u4"))
    packed_map = bytes(BYTES) if map is None else pack(evolve(map, address=address))
    device.launch(device.load(text), "k", 4, 128, packed_map, place, numbers)
    return device.get(place, out)


def test_one_box_for_several_blocks() -> None:
    tensor = np.arange(256, dtype="u4")
    of = TensorMap(DataType.UINT32, 0, (16, 16), (64,), (16, 16), (1, 1))
    mask = "mov.b16 %h0, 15;"
    instruction = f"{mask} {TENSOR}.2d.shared::cluster.global.tile.{COMPLETE}.multicast::cluster.L2::cache_hint"
    actual = on_cluster(f"{instruction} [%r2], [%d0, {{%r20, %r21}}], [%r1], %h0, %d1;", 1024, of, tensor)
    for block in actual:
        np.testing.assert_array_equal(block.view("u4"), tensor)


def test_a_block_outside_of_the_cluster() -> None:
    of = TensorMap(DataType.UINT32, 0, (16, 16), (64,), (16, 16), (1, 1))
    instruction = f"mov.b16 %h0, 16; {TENSOR}.2d.shared::cluster.global.tile.{COMPLETE}.multicast::cluster"
    with pytest.raises(IllegalAddress, match="a cluster has 4 blocks"):
        on_cluster(f"{instruction} [%r2], [%d0, {{%r20, %r21}}], [%r1], %h0;", 1024, of, np.zeros(256, "u4"))


def test_one_range_for_several_blocks() -> None:
    tensor = np.arange(256, dtype="u4")
    instruction = f"""ld.global.u64 %d5, [%d2+8]; mov.b16 %h0, 15;
    cp.async.bulk.shared::cluster.global.{COMPLETE}.multicast::cluster [%r2], [%d5], 1024, [%r1], %h0;"""
    for block in on_cluster(instruction, 1024, None, tensor):
        np.testing.assert_array_equal(block.view("u4"), tensor)


def test_stores_and_reductions_in_another_block() -> None:
    """The first block writes into all, 48 bytes into each: a vector, a double, and sums."""
    parts = []
    for rank in range(4):
        parts.append(f"""
        mapa.shared::cluster.u32 %r12, %r2, {rank}; mapa.shared::cluster.u32 %r13, %r1, {rank}; mov.u64 %d6, 77;
        st.async.weak.shared::cluster.{COMPLETE}.v4.b32 [%r12], {{{rank}, 1, 2, 3}}, [%r13];
        st.async.shared::cluster.{COMPLETE}.b64 [%r12+16], %d6, [%r13];
        red.async.relaxed.cluster.shared::cluster.{COMPLETE}.add.u64 [%r12+16], %d6, [%r13];
        red.async.relaxed.cluster.shared::cluster.{COMPLETE}.max.s32 [%r12+4], 9, [%r13];
        red.async.relaxed.cluster.shared::cluster.{COMPLETE}.inc.u32 [%r12+8], 9, [%r13];
        cp.reduce.async.bulk.shared::cluster.shared::cta.{COMPLETE}.add.u32 [%r12+32], [%r2], 16, [%r13];""")
    actual = on_cluster("".join(parts), 16 + 8 + 8 + 4 + 4 + 16, None, np.zeros(4, "u4"))
    for rank, block in enumerate(actual):
        assert block[:12].view("u4").tolist() == [rank if rank else 0, 9, 3]
        assert block[16:24].view("u8").tolist() == [154]
        # The first block's own vector is added after it was changed.
        assert block[32:48].view("u4").tolist() == [0, 9, 3, 3]


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize(
    ("name", "dtype"), [("add.u32", "u4"), ("add.f64", "f8"), ("add.noftz.f16", "f2"), ("max.s64", "i8")]
)
def test_bulk_reductions_in_global_memory(machine: Machine, name: str, dtype: str) -> None:
    memory, image = np.zeros(Machine.ROOM, "u1"), np.zeros(SHARED, "u1")
    old, operand = np.arange(64, dtype=dtype), np.arange(64, dtype=dtype)[::-1].copy()
    memory[: old.nbytes], image[: old.nbytes] = old.view("u1"), operand.view("u1")
    body = f"""ld.global.u64 %d5, [%d2]; bar.sync 0; setp.ne.u32 %p0, %r0, 0; @%p0 ret;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.{name} [%d5], [%r2], {old.nbytes};"""
    numbers = [machine.tensor, machine.tensor >> 32]
    after, _ = machine.run(kernel(COPY_IN + body), bytes(BYTES), memory, image, numbers)
    expected = old + operand if name.startswith("add") else np.maximum(old, operand)
    np.testing.assert_array_equal(after[: old.nbytes].view(dtype), expected)


def test_a_bulk_reduction_outside_of_the_allocations(machine: Machine) -> None:
    body = """ld.global.u64 %d5, [%d2]; setp.ne.u32 %p0, %r0, 0; @%p0 ret;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d5], [%r2], 32;"""
    nothing, end = np.zeros(Machine.ROOM, "u1"), machine.tensor + Machine.ROOM - 16
    with pytest.raises(IllegalAddress, match="outside of the allocations"):
        machine.run(kernel(body), bytes(BYTES), nothing, nothing[:SHARED], [end, end >> 32])
