"""Runs kernels on a small address space, for the tests of this folder."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define

from pympsd_server.backends.emulated.memory.address_space import STRICT, AddressSpace
from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.batches.selection import begin_batch, max_blocks
from pympsd_server.ptx.execution.batch import Batch
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.loading.program import Program, load_program
from pympsd_server.ptx.runtime.batch_state import LaunchSetup
from tests.gpu.devices import DEVICES

BASE = 0x6000_0000_0000
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


class Never:
    """A cancel flag that is never set."""

    def is_set(self) -> bool:
        return False


@define
class CancelAfter:
    """A cancel flag that is set once it has been looked at some number of times."""

    looks: int

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def three(values: int | tuple[int, ...]) -> tuple[int, int, int]:
    arguments = (values,) if isinstance(values, int) else values
    x, y, z = (*arguments, 1, 1)[:3]
    return x, y, z


class Device:
    """An address space with typed copies, and launches that run to the end.

    `multiprocessors`: those that blocks are spread over; one means one thread of the host, and one order of blocks.
    """

    multiprocessors = 1

    def __init__(self, size: int = 1 << 28) -> None:
        self.space = AddressSpace(BASE, size)
        self.space.bounds = STRICT  # tests of faults say exactly where memory ends

    def put(self, array: np.ndarray[Any, Any]) -> int:
        data = np.ascontiguousarray(array).tobytes()
        address = self.space.allocate(max(len(data), 1))
        self.space.write(address, data)
        return address

    def get(self, address: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.space.read(address, like.nbytes), like.dtype).reshape(like.shape)

    def load(self, ptx: str) -> LoadedModule:
        return LoadedModule(load_program(ptx.encode()), self.space)

    def launch(
        self,
        module: LoadedModule,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *arguments: Any,
        shared: int = 0,
    ) -> None:
        for batch in begin_in_turn(module, name, three(grid), three(block), arguments, shared, self.multiprocessors):
            while not batch.step(1.0, Never()):
                pass


def pack(program: Program, name: str, arguments: tuple[Any, ...]) -> bytes:
    """The parameter buffer; Python ints take the parameter's size, NumPy values their own."""
    kernel = program.kernels[name]
    buffer = bytearray(kernel.parameter_bytes)
    for (_, offset, size), value in zip(kernel.parameters, arguments, strict=True):
        if isinstance(value, int):
            data = struct.pack("<q" if value < 0 else "<Q", value)[:size]
        else:
            data = value if isinstance(value, bytes) else np.asarray(value).tobytes()
        buffer[offset : offset + len(data)] = data
    return bytes(buffer)


def batches(*launch: Any) -> list[Batch | CompiledBatch]:
    """Begin all batches of a launch, and return them; arguments as for `begin_in_turn`."""
    return list(begin_in_turn(*launch))


def begin_in_turn(
    module: LoadedModule,
    name: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: tuple[Any, ...],
    shared: int = 0,
    multiprocessors: int = 1,
) -> Iterator[Batch | CompiledBatch]:
    """Yield the batches of a launch; each begins after the one before was run, as in the scheduler."""
    cluster = module.program.kernels[name].cluster
    setup = LaunchSetup(grid, block, pack(module.program, name, arguments), shared, cluster=cluster)
    together = prod(cluster)
    total, blocks = grid[0] * grid[1] * grid[2], max_blocks(module.program.kernels[name], setup)
    blocks = max(1, blocks // together) * together
    sm_of_block = np.arange(min(blocks, total)) % multiprocessors
    first = 0
    while first < total:
        batch = begin_batch(module, name, setup, first, sm_of_block[: total - first])
        if isinstance(batch, CompiledBatch):
            batch.add_waves(max((total - first) // blocks - 1, 0), first + blocks)
        yield batch
        if isinstance(batch, CompiledBatch):
            first = batch.first_block
            if batch.finished:
                batch.keep()
        first += blocks


if DEVICES.backends and not TYPE_CHECKING:
    # scripts/test-gpu: the same tests, with a GPU in the place of the translator.
    from tests.gpu.harness_device import GpuDevice

    Device = GpuDevice
