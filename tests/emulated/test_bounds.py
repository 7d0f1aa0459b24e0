"""How far kernels reach beyond what was asked for: to the hardware's next unit, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from pympsd.vocabulary.settings import check_executor_settings
from pympsd.vocabulary.variables import BadSetting
from pympsd_server.backends.emulated.memory.address_space import HARDWARE, STRICT, AddressSpace, Bounds, choose_bounds
from pympsd_server.ptx.isa.faults import IllegalAddress
from tests.emulated.harness import BASE, HEADER, Device

# Stores 7 at p + offset; loads 16 bytes of shared memory at an offset.
KERNELS = (
    HEADER
    + """
.extern .shared .align 16 .b8 dynamic[];
.visible .global .align 4 .b32 table[256];
.visible .entry store(.param .u64 p, .param .u64 offset)
{
  .reg .b64 %d<3>;
  ld.param.u64 %d0, [p]; ld.param.u64 %d1, [offset]; add.s64 %d2, %d0, %d1;
  st.global.u32 [%d2], 7; ret;
}
.visible .entry wide(.param .u64 p, .param .u32 offset)
{
  .reg .b64 %d; .reg .b32 %r<6>;
  ld.param.u64 %d, [p]; ld.param.u32 %r0, [offset];
  mov.u32 %r1, dynamic; add.u32 %r0, %r0, %r1;
  st.shared.u32 [%r0+8], 7;
  ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r0];
  add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r3; add.u32 %r4, %r4, %r2;
  st.global.u32 [%d], %r4; ret;
}
"""
)


PAGE = 2 << 20


def _device(bounds: Bounds) -> Device:
    device = Device(3 * PAGE)
    device.space.bounds = bounds
    return device


@pytest.mark.parametrize(
    ("bounds", "nbytes", "end"),
    [(HARDWARE, 100, 1024), (HARDWARE, 1024, 1536), (HARDWARE, PAGE, PAGE), (STRICT, 100, 100), (STRICT, 1024, 1024)],
)
def test_of_an_allocation(bounds: Bounds, nbytes: int, end: int) -> None:
    """A GPU checks pages: one element beyond whole units is not a fault, unless the page ends there."""
    device = _device(bounds)
    module = device.load(KERNELS)
    address = device.space.allocate(nbytes, PAGE)
    other = device.put(np.full(4, 5, "u4"))
    device.launch(module, "store", 1, 1, address, end - 4)
    with pytest.raises(IllegalAddress):
        device.launch(module, "store", 1, 1, address, end)
    with pytest.raises(IllegalAddress):
        device.space.read(address, nbytes + 1)  # copies have to be exact, as the driver checks them
    np.testing.assert_array_equal(device.get(other, np.zeros(4, "u4")), np.full(4, 5, "u4"))


@pytest.mark.parametrize(("bounds", "end"), [(HARDWARE, 4096), (STRICT, 1024)], ids=["hardware", "strict"])
def test_of_a_variable(bounds: Bounds, end: int) -> None:
    """The variables of a module share pages with its code: an index that is a little too large is not a fault."""
    device = _device(bounds)
    module = device.load(KERNELS)
    table = module.address_of("table")
    device.launch(module, "store", 1, 1, table, end - 4)
    with pytest.raises(IllegalAddress):
        device.launch(module, "store", 1, 1, table, end + bounds.overrun)


def test_what_lies_beyond_the_end_is_cleared_when_it_is_freed() -> None:
    device = _device(HARDWARE)
    module = device.load(KERNELS)
    address = device.space.allocate(100)
    device.launch(module, "store", 1, 1, address, 500)
    device.space.free(address)
    assert device.space.allocate(512) == address
    assert device.space.read(address, 512) == bytes(512)


@pytest.mark.parametrize(
    ("bounds", "size", "offset", "is_reached"),
    [(HARDWARE, 28, 16, True), (HARDWARE, 28, 112, True), (HARDWARE, 28, 128, False), (STRICT, 28, 16, False)],
)
def test_of_shared_memory(bounds: Bounds, size: int, offset: int, is_reached: bool) -> None:
    device = _device(bounds)
    module = device.load(KERNELS)
    out = device.put(np.zeros(1, "u4"))
    if not is_reached:
        with pytest.raises(IllegalAddress, match="shared"):
            device.launch(module, "wide", 2, 1, out, offset, shared=size)
        return
    device.launch(module, "wide", 2, 1, out, offset, shared=size)
    assert device.get(out, np.zeros(1, "u4"))[0] == 7


def test_the_setting() -> None:
    assert choose_bounds({}) == choose_bounds({"PYMPSD_STRICT_BOUNDS": "0"}) == HARDWARE
    assert choose_bounds({"PYMPSD_STRICT_BOUNDS": "1"}) == STRICT
    with pytest.raises(BadSetting, match="0 or 1"):
        check_executor_settings({"PYMPSD_STRICT_BOUNDS": "yes"}, "emulated")


def test_an_address_space_takes_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_STRICT_BOUNDS", "1")
    assert AddressSpace(BASE, 1 << 16).bounds == STRICT
