"""Accesses that a GPU would fault on: the code, the message, and that nothing was written."""

from __future__ import annotations

import numpy as np
import pytest

from pympsd_server.backends.emulated.memory.address_space import AddressSpace
from pympsd_server.ptx.isa.faults import DeviceFault, IllegalAddress, MisalignedAddress
from tests.emulated.harness import BASE, HEADER, Device

# Thread i stores i (as b32) at p + i * stride + offset.
STORE = """
.visible .entry store(.param .u64 p, .param .u32 stride, .param .u64 offset)
{
  .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p;
  ld.param.u64 %d0, [p]; ld.param.u32 %r0, [stride]; ld.param.u64 %d1, [offset];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %d2, %r1, %r0;
  add.s64 %d0, %d0, %d2; add.s64 %d0, %d0, %d1;
  @GUARD@ st@SPACE@.u32 [%d0], %r1;
  ret;
}
"""


def store(space: str = ".global", guard: str = "") -> str:
    return HEADER + STORE.replace("@SPACE@", space).replace("@GUARD@", guard)


@pytest.mark.parametrize("space", [".global", ""])
@pytest.mark.parametrize(
    ("stride", "offset", "fault", "code"),
    [
        (4, 4, IllegalAddress, 700),
        (4, -4, IllegalAddress, 700),
        (4, 1 << 40, IllegalAddress, 700),
        (4, -BASE, IllegalAddress, 700),
        (0, 2**63 - BASE - 4, IllegalAddress, 700),
        (0, 2**63 - 4, IllegalAddress, 700),
        (3, 0, MisalignedAddress, 716),
        (0, 2, MisalignedAddress, 716),
    ],
)
def test_bad_stores_fault(space: str, stride: int, offset: int, fault: type[DeviceFault], code: int) -> None:
    """Nothing of the warp is written; other warps may have been quicker."""
    device = Device(1 << 20)
    before = np.full(32, 7, "u4")
    address = device.put(before)
    module = device.load(store(space))
    with pytest.raises(fault, match="store") as caught:
        device.launch(module, "store", 1, 32, address, stride, offset)
    assert caught.value.code == code
    assert caught.value.kernel == "store"
    np.testing.assert_array_equal(device.get(address, before), before)
    device.launch(module, "store", 1, 32, address, 4, 0)
    np.testing.assert_array_equal(device.get(address, before), np.arange(32))


def test_freed_memory_is_inaccessible() -> None:
    device = Device(1 << 20)
    module = device.load(store())
    address = device.space.allocate(256)
    device.space.free(address)
    with pytest.raises(IllegalAddress, match=f"{address:#x}"):
        device.launch(module, "store", 1, 1, address, 4, 0)


def test_other_spaces_are_inaccessible() -> None:
    mine, other = Device(1 << 20), AddressSpace(BASE, 1 << 20)
    theirs = [other.allocate(4096) for _ in range(3)][-1]
    module = mine.load(store())
    with pytest.raises(IllegalAddress):
        mine.launch(module, "store", 1, 1, theirs, 4, 0)
    assert other.read(theirs, 4) == bytes(4)


def test_masked_lanes_may_hold_bad_addresses() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(8, "u4"))
    module = device.load(store(guard="setp.lt.u32 %p, %r1, 8; @%p"))
    device.launch(module, "store", 1, 64, address, 4, 0)
    np.testing.assert_array_equal(device.get(address, np.zeros(8, "u4")), np.arange(8))


PARAMETER = "mov.b64 %d1, p; cvta.param.u64 %d0, %d1; mov.u32 %r0, 7;"


@pytest.mark.parametrize(
    "text",
    [
        "st.u32 [%d0+4], %r0;",
        "st.v4.u32 [%d0], {%r0, %r0, %r0, %r0};",
        "atom.add.u32 %r0, [%d0+8], %r0;",
        "red.add.u32 [%d0], %r0;",
        "setp.eq.u32 %p, %r1, 5; @%p st.u8 [%d0+1], %r0;",
        "setp.eq.u32 %p, %r1, 5; selp.b64 %d0, %d0, %d2, %p; st.u32 [%d0], %r0;",
    ],
)
def test_parameters_are_not_written(text: str) -> None:
    """Not at generic addresses, the only ones by which a store can name them."""
    device = Device(1 << 20)
    address = device.put(np.zeros(64, "u4"))
    declarations = ".reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p; mov.u32 %r1, %tid.x; ld.param.u64 %d2, [p];"
    ptx = f"{HEADER}.visible .entry k(.param .align 16 .b8 p[16])\n{{ {declarations} {PARAMETER}\n{text}\nret; }}\n"
    with pytest.raises(IllegalAddress, match="kernels cannot write their parameters") as caught:
        device.launch(device.load(ptx), "k", 1, 40, address.to_bytes(16, "little"))
    if "setp" in text:
        assert caught.value.thread == (5, 0, 0)


def test_an_mbarrier_that_is_only_read_may_be_a_parameter() -> None:
    """Its state has no meaning; but both tiers find the address valid."""
    text = f"{PARAMETER} mbarrier.test_wait.b64 %p, [%d0], %d1; mbarrier.inval.b64 [%d0];"
    declarations = ".reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p;"
    device = Device(1 << 20)
    device.launch(
        device.load(f"{HEADER}.visible .entry k(.param .u64 p)\n{{ {declarations}\n{text}\nret; }}"), "k", 1, 40, 0
    )


def body(text: str) -> str:
    declarations = ".reg .b32 %r<4>; .reg .b64 %d<4>; .shared .b8 s[64]; .local .b8 l[16];"
    return f"{HEADER}.visible .entry k()\n{{ {declarations}\n{text}\nret; }}\n"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("trap;", 719, "trap"),
        ("mov.u32 %r0, s; ld.shared.u32 %r1, [%r0+64];", 700, "shared"),
        ("mov.u32 %r0, s; ld.shared.u32 %r1, [%r0+2];", 716, "shared"),
        ("mov.u64 %d0, l; st.local.u64 [%d0+16], %d0;", 700, "local"),
        ("mov.u64 %d0, s; cvta.shared.u64 %d0, %d0; st.u32 [%d0+64], 1;", 700, "shared"),
        ("mov.u64 %d0, 0; ld.u32 %r0, [%d0];", 700, "address 0x0"),
        ("mov.u64 %d0, 0; atom.global.add.u32 %r0, [%d0], 1; red.global.add.u32 [%d0], %r0;", 700, "0x0"),
        ("bar.sync 20;", 719, "barrier 20"),
    ],
)
def test_other_faults_have_a_code_and_a_message(text: str, code: int, words: str) -> None:
    device = Device(1 << 20)
    module = device.load(body(text))
    with pytest.raises(DeviceFault, match=words) as caught:
        device.launch(module, "k", 2, 48)
    assert caught.value.code == code
