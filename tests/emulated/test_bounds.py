"""How far kernels reach beyond what was asked for: to the end of the hardware's pages, or not at all."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pympsd.vocabulary.settings import check_executor_settings
from pympsd.vocabulary.variables import BadSetting
from pympsd_server.backends.emulated.memory.address_space import (
    HARDWARE,
    MAX_SLACK_BYTES,
    STRICT,
    AddressSpace,
    Bounds,
    choose_bounds,
)
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
    device = Device(5 * PAGE)
    device.space.bounds = bounds
    return device


@pytest.mark.parametrize(
    ("bounds", "nbytes", "low", "high"),
    [
        (HARDWARE, 100, PAGE, 2 * PAGE),
        (HARDWARE, PAGE, PAGE, 2 * PAGE),
        (HARDWARE, PAGE + 4, PAGE, 3 * PAGE),
        (STRICT, 100, PAGE, PAGE + 100),
        (STRICT, 1024, PAGE, PAGE + 1024),
    ],
)
def test_of_an_allocation(bounds: Bounds, nbytes: int, low: int, high: int) -> None:
    """A GPU checks pages of 2 MiB: what lies in the pages of an allocation is not a fault (measured on an H200)."""
    device = _device(bounds)
    module = device.load(KERNELS)
    device.space.allocate(100)
    address = device.space.allocate(nbytes, PAGE)
    first = device.space.base
    for offset in (low, high - 4):
        device.launch(module, "store", 1, 1, first, offset)
    for offset in (-4, high, *((low - 4,) if bounds == STRICT else ())):
        with pytest.raises(IllegalAddress):
            device.launch(module, "store", 1, 1, first, offset)
    with pytest.raises(IllegalAddress):
        device.space.read(address, nbytes + 1)  # copies have to be exact, as the driver checks them


@pytest.mark.parametrize("bounds", [HARDWARE, STRICT], ids=["hardware", "strict"])
def test_of_a_variable(bounds: Bounds) -> None:
    device = _device(bounds)
    module = device.load(KERNELS)
    table = module.address_of("table")
    end = 1024 if bounds == STRICT else device.space.base + 5 * PAGE - table
    device.launch(module, "store", 1, 1, table, end - 4)
    with pytest.raises(IllegalAddress):
        device.launch(module, "store", 1, 1, table, end)


def test_variables_have_other_pages_than_allocations() -> None:
    """A kernel that writes beyond an allocation, as some do unnoticed on a GPU, does not change them."""
    device = _device(HARDWARE)
    before, table = device.space.allocate(100), device.load(KERNELS).address_of("table")
    after = device.space.allocate(100)
    first, page, last = ((address - device.space.base) // PAGE for address in (before, table, after))
    assert (first, page, last) == (0, 4, 0)


def test_pages_of_a_client_without_allocations_are_not_reached() -> None:
    device = _device(HARDWARE)
    module = device.load(KERNELS)
    address = device.space.allocate(100, PAGE)
    device.launch(module, "store", 1, 1, address, 4000)
    device.space.free(address)
    with pytest.raises(IllegalAddress):
        device.launch(module, "store", 1, 1, address, 0)


def test_new_memory_is_zero_whatever_was_written_beyond_other_allocations() -> None:
    device = _device(HARDWARE)
    module = device.load(KERNELS)
    address = device.space.allocate(100)
    for offset in (500, 5000, 500_000):
        device.launch(module, "store", 1, 1, address, offset)
    other = device.space.allocate(PAGE // 2)
    assert address + 100 < other < address + 5000
    assert device.space.read(other, PAGE // 2) == bytes(PAGE // 2)


def test_memory_beyond_the_last_allocation_of_a_page_goes_back_to_the_host() -> None:
    device = _device(HARDWARE)
    module = device.load(KERNELS)
    address = device.space.allocate(100, PAGE)
    device.launch(module, "store", 1, 1, address, 500_000)
    device.space.free(address)
    whole = device.space.allocate(PAGE, PAGE)
    assert whole == address
    assert device.space.is_untouched(whole + 4096, PAGE - 4096)


def test_memory_that_others_still_use_keeps_its_contents() -> None:
    """Shared memory that its client has freed may be in a page of its own, and in one with other allocations."""
    device = _device(HARDWARE)
    shared, other = device.space.allocate(4096, PAGE), device.space.allocate(100)
    pages, _, _ = device.space.share(shared)
    device.space.write(shared, b"kept" * 1024)
    withdrawn = device.space.withdraw(shared)
    device.space.free(other)
    assert bytes(pages) == b"kept" * 1024
    device.space.reclaim(*withdrawn)
    assert bytes(pages) == bytes(4096)


@pytest.mark.parametrize("has_neighbour", [False, True])
def test_freed_memory_that_others_still_use_keeps_no_other_memory(has_neighbour: bool) -> None:
    """Not even if an allocation in the same page is freed later."""
    device = _device(HARDWARE)
    module = device.load(KERNELS)
    shared = device.space.allocate(4096, PAGE)
    neighbour = device.space.allocate(100) if has_neighbour else None
    pages, file, _ = device.space.share(shared)
    device.space.write(shared, b"kept" * 1024)
    before = os.fstat(file.descriptor).st_blocks
    for offset in (500_000, 1_000_000):
        device.launch(module, "store", 1, 1, shared, offset)
    assert os.fstat(file.descriptor).st_blocks > before
    device.space.withdraw(shared)
    if neighbour is not None:
        device.space.free(neighbour)
    assert os.fstat(file.descriptor).st_blocks <= before
    assert bytes(pages) == b"kept" * 1024


def test_a_client_cannot_use_much_memory_that_it_has_not_allocated() -> None:
    """With many pages that are almost empty, each allocation ends at its own 512-byte unit."""
    device = Device((4 + 2 * MAX_SLACK_BYTES // PAGE) * PAGE)
    device.space.bounds = HARDWARE
    module = device.load(KERNELS)
    address = device.space.allocate(100, PAGE)
    for _ in range(MAX_SLACK_BYTES // PAGE - 2):
        device.space.allocate(100, 2 * PAGE)
    device.launch(module, "store", 1, 1, address, PAGE - 4)
    more = [device.space.allocate(100, PAGE) for _ in range(3)]
    device.launch(module, "store", 1, 1, address, 508)
    with pytest.raises(IllegalAddress):
        device.launch(module, "store", 1, 1, address, 512)
    for allocation in more:
        device.space.free(allocation)
    device.launch(module, "store", 1, 1, address, PAGE - 4)


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


def test_the_setting_chooses_the_bounds() -> None:
    assert choose_bounds({}) == choose_bounds({"PYMPSD_STRICT_BOUNDS": "0"}) == HARDWARE
    assert choose_bounds({"PYMPSD_STRICT_BOUNDS": "1"}) == STRICT
    with pytest.raises(BadSetting, match="0 or 1"):
        check_executor_settings({"PYMPSD_STRICT_BOUNDS": "yes"}, "emulated")


def test_an_address_space_takes_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_STRICT_BOUNDS", "1")
    assert AddressSpace(BASE, 1 << 16).bounds == STRICT
