"""Completions of work that ended just before its context was destroyed may run late: they free nothing of others."""

from __future__ import annotations

import pytest

from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.device.context import EmulatedContext
from pympsd_server.backends.emulated.device.device import EmulatedDevice
from pympsd_server.backends.interface import BackendError, Status

PTX = b".version 7.0\n.target sm_60\n.address_size 64\n.visible .global .align 4 .u32 counter = 5;\n"


def make(device: EmulatedDevice, client: int) -> EmulatedContext:
    return device.create_context(client, Quota(0, 0, 0), lambda status: None, client)


@pytest.mark.parametrize("model", ["P100", "H200"], ids=["a space for all", "a space for each"])
def test_a_late_free_of_a_destroyed_context_frees_nothing_of_others(model: str) -> None:
    device = EmulatedDevice(describe(model)[0], 0)
    try:
        neighbour = make(device, 2)
        context = make(device, 1)
        address = context.allocate(4096)
        workspace = context.memory.borrow_workspace()
        context.memory.defer_free(address)
        module = context.load_module(PTX)
        context.destroy()
        # Before Volta these are the same addresses.
        held = [neighbour.allocate(4096) for _ in range(2)]
        neighbours = neighbour.load_module(PTX)
        free = neighbour.memory_info()
        context.memory.finish_free(address)
        context.memory.return_workspace(workspace, Status())
        context.memory.unlink(module.loaded)
        assert neighbour.memory_info() == free
        assert neighbours.loaded.allocations
        for allocation in held:
            assert neighbour.memory.space.size_of(allocation) == 4096
        for allocation in neighbours.loaded.allocations:
            assert neighbour.memory.space.size_of(allocation)
        with pytest.raises(BackendError) as refused:
            context.allocate(1)
        assert refused.value.code is Result.ERROR_CONTEXT_IS_DESTROYED
    finally:
        device.close()
