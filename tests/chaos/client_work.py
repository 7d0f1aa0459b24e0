"""The work of a soak's clients: steps in a current context, which return the number of wrong values."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from pympsd_client import driver as cuda
from pympsd_client import last_error
from tests.chaos.client_protocol import Failed

PTX: Final = Path(__file__).with_name("kernels.ptx").read_bytes()
BLOCK: Final = 256
CHUNK: Final = 128 << 20
MOST: Final = 1 << 30
OUT_OF_MEMORY, NOT_SUPPORTED = 2, 801
MAJOR: Final = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
VOLTA: Final = 7
"""The compute capability."""


def check(call: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Make a driver call; return its values without the CUresult, or raise Failed."""
    result, *values = call(*arguments)
    if int(result):
        raise Failed(call.__name__, int(result), last_error())
    return values[0] if len(values) == 1 else values


class Bench:
    """A context with the module loaded, and steps in it."""

    def __init__(self, device: int, seed: int) -> None:
        """Make the context, which stays current; raise Failed."""
        self.device = device
        self.handle = check(cuda.cuCtxCreate, 0, device)
        self.source = random.Random(seed)
        self._functions: dict[str, Any] = {}

    def enter(self) -> None:
        """Make it current."""
        check(cuda.cuCtxSetCurrent, self.handle)

    def close(self) -> int:
        """Destroy it."""
        check(cuda.cuCtxDestroy, self.handle)
        return 0

    def function(self, name: str) -> Any:
        """Return a kernel."""
        if not self._functions:
            module = check(cuda.cuModuleLoadData, PTX)
            for entry in ("add", "tally", "sum256", "endless", "wild_store", "wild_load", "misaligned", "trap"):
                self._functions[entry] = check(cuda.cuModuleGetFunction, module, entry.encode())
        return self._functions[name]

    def launch(self, name: str, blocks: int, stream: Any, values: tuple[Any, ...], types: tuple[Any, ...]) -> None:
        """Launch a kernel of that many blocks."""
        function = self.function(name)
        check(cuda.cuLaunchKernel, function, blocks, 1, 1, BLOCK, 1, 1, 0, stream, (values, types), 0)

    def data(self, blocks: int) -> np.ndarray:
        """Return words that no other client has."""
        generator = np.random.default_rng(self.source.getrandbits(32))
        return generator.integers(0, 1 << 31, blocks * BLOCK, dtype=np.uint32)

    # --- steps

    def copies(self) -> int:
        """Copy to the device, on it, and back."""
        host = self.data(self.source.choice((1, 16, 256)))
        first, second = check(cuda.cuMemAlloc, host.nbytes), check(cuda.cuMemAlloc, host.nbytes)
        back = np.zeros_like(host)
        check(cuda.cuMemcpyHtoD, first, host, host.nbytes)
        check(cuda.cuMemcpyDtoD, second, first, host.nbytes)
        check(cuda.cuMemsetD32, first, 0x5A5A5A5A, host.size)
        check(cuda.cuMemcpyDtoH, back, second, host.nbytes)
        wrong = _differences(back, host)
        check(cuda.cuMemcpyDtoH, back, first, host.nbytes)
        wrong += _differences(back, np.full_like(host, 0x5A5A5A5A))
        check(cuda.cuMemFree, first)
        check(cuda.cuMemFree, second)
        return wrong

    def add(self) -> int:
        """Run a kernel over an array."""
        host, amount = self.data(self.source.choice((1, 64, 256))), self.source.getrandbits(16)
        address = check(cuda.cuMemAlloc, host.nbytes)
        check(cuda.cuMemcpyHtoD, address, host, host.nbytes)
        back = np.zeros_like(host)
        types = (None, ctypes.c_uint32, ctypes.c_uint32)
        self.launch("add", host.size // BLOCK, 0, (address, host.size, amount), types)
        check(cuda.cuCtxSynchronize)
        check(cuda.cuMemcpyDtoH, back, address, host.nbytes)
        check(cuda.cuMemFree, address)
        return _differences(back, host + np.uint32(amount))

    def tally(self) -> int:
        """Count with many threads in one counter."""
        word = check(cuda.cuMemAlloc, 4)
        check(cuda.cuMemsetD32, word, 0, 1)
        blocks, amount, times = self.source.choice((1, 8, 64)), self.source.randint(1, 99), 3
        for _ in range(times):
            self.launch("tally", blocks, 0, (word, amount), (None, ctypes.c_uint32))
        back = np.zeros(1, np.uint32)
        check(cuda.cuMemcpyDtoH, back, word, 4)
        check(cuda.cuMemFree, word)
        return int(back[0] != blocks * BLOCK * amount * times)

    def reduce(self) -> int:
        """Sum through shared memory."""
        blocks = self.source.choice((1, 16, 64))
        host = self.data(blocks)
        address, sums = check(cuda.cuMemAlloc, host.nbytes), check(cuda.cuMemAlloc, 4 * blocks)
        check(cuda.cuMemcpyHtoD, address, host, host.nbytes)
        self.launch("sum256", blocks, 0, (address, sums), (None, None))
        back = np.zeros(blocks, np.uint32)
        check(cuda.cuMemcpyDtoH, back, sums, back.nbytes)
        check(cuda.cuMemFree, address)
        check(cuda.cuMemFree, sums)
        return _differences(back, host.reshape(blocks, BLOCK).sum(1, dtype=np.uint32))

    def streams(self) -> int:
        """Work in several streams that events put in order."""
        host = self.data(8)
        address = check(cuda.cuMemAlloc, host.nbytes)
        streams = [check(cuda.cuStreamCreate, 1) for _ in range(3)]
        events = [check(cuda.cuEventCreate, 2) for _ in streams]
        check(cuda.cuMemcpyHtoDAsync, address, host, host.nbytes, streams[0])
        types = (None, ctypes.c_uint32, ctypes.c_uint32)
        for number, (stream, event) in enumerate(zip(streams, events, strict=True)):
            if number:
                check(cuda.cuStreamWaitEvent, stream, events[number - 1], 0)
            self.launch("add", host.size // BLOCK, stream, (address, host.size, number + 1), types)
            check(cuda.cuEventRecord, event, stream)
        check(cuda.cuEventSynchronize, events[-1])
        back = np.zeros_like(host)
        check(cuda.cuMemcpyDtoH, back, address, host.nbytes)
        for stream, event in zip(streams, events, strict=True):
            check(cuda.cuStreamSynchronize, stream)
            check(cuda.cuEventDestroy, event)
            check(cuda.cuStreamDestroy, stream)
        check(cuda.cuMemFree, address)
        return _differences(back, host + np.uint32(6))

    def memory(self) -> int:
        """Allocate until the device is full; check that the memory is usable and belongs to no other client."""
        _, total = check(cuda.cuMemGetInfo)
        held: list[tuple[Any, np.ndarray]] = []
        try:
            while len(held) * CHUNK < MOST:
                held.append((check(cuda.cuMemAlloc, CHUNK), self.data(1)))
                address, mark = held[-1]
                for at in (int(address), int(address) + CHUNK - mark.nbytes):
                    check(cuda.cuMemcpyHtoD, at, mark, mark.nbytes)
        except Failed as failed:
            # That is expected if a limit is reached, or other clients have the rest of the memory.
            if (failed.call, failed.code) != ("cuMemAlloc", OUT_OF_MEMORY):
                raise
        wrong = int(len(held) * CHUNK > int(total))
        for address, mark in held:
            back = np.zeros_like(mark)
            for at in (int(address), int(address) + CHUNK - mark.nbytes):
                check(cuda.cuMemcpyDtoH, back, at, mark.nbytes)
                wrong += _differences(back, mark)
            check(cuda.cuMemFree, address)
        return wrong

    def callbacks(self) -> int:
        """Run host functions in stream order, between kernels; before Volta they are refused."""
        if check(cuda.cuDeviceGetAttribute, MAJOR, self.device) < VOLTA:
            refused = int(cuda.cuLaunchHostFunc(0, print, 0)[0]) == NOT_SUPPORTED
            check(cuda.cuCtxSynchronize)  # the refusal involves no server, so it does not show an ended context
            return int(not refused)
        stream, word = check(cuda.cuStreamCreate, 1), check(cuda.cuMemAlloc, 4)
        called: list[int] = []
        last = threading.Event()
        check(cuda.cuMemsetD32, word, 0, 1)
        for number in range(4):
            self.launch("tally", 1, stream, (word, 1), (None, ctypes.c_uint32))
            check(cuda.cuLaunchHostFunc, stream, called.append, number)
        check(cuda.cuLaunchHostFunc, stream, lambda _: last.set(), 0)
        check(cuda.cuStreamSynchronize, stream)
        back = np.zeros(1, np.uint32)
        check(cuda.cuMemcpyDtoH, back, word, 4)
        check(cuda.cuStreamDestroy, stream)
        check(cuda.cuMemFree, word)
        return int(called != [0, 1, 2, 3]) + int(not last.is_set()) + int(back[0] != 4 * BLOCK)

    def idle(self) -> int:
        """Check, without other clients, that the device's used memory is the cost of one context, and is freed."""
        alone = _count_taken()
        other = check(cuda.cuCtxCreate, 0, self.device)
        both = _count_taken()
        check(cuda.cuCtxDestroy, other)
        self.enter()
        return int(both != 2 * alone) + int(_count_taken() != alone)

    def endless(self) -> int:
        """Wait for a kernel that never ends; a success is wrong."""
        self.launch("endless", 1, check(cuda.cuStreamCreate, 1), (), ())
        check(cuda.cuCtxSynchronize)
        return 1

    def fault(self, name: str) -> int:
        """Run a kernel that faults; a success after it is wrong."""
        address = check(cuda.cuMemAlloc, 64)
        takes = name in ("wild_load", "misaligned")
        self.launch(name, 1, 0, (address,) if takes else (), (None,) if takes else ())
        check(cuda.cuCtxSynchronize)
        return 1

    def synchronize(self) -> int:
        """Synchronize once more, after an error."""
        check(cuda.cuCtxSynchronize)
        return 0


def _count_taken() -> int:
    free, total = check(cuda.cuMemGetInfo)
    return int(total) - int(free)


def _differences(actual: np.ndarray, right: np.ndarray) -> int:
    return int(np.count_nonzero(actual != right))
