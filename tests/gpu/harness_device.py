"""The harness of tests/emulated on a GPU: the same kernels and the same expected values, run by the device itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import define

from tests.gpu.devices import DEVICES, Loaded, OneDevice

Array = np.ndarray[Any, Any]


@define
class GpuDevice:
    """A device like ``tests.emulated.harness.Device``, without access to the inside of the emulated device."""

    _device: OneDevice

    def __init__(self, size: int = 1 << 28) -> None:
        self._device = DEVICES.last.fresh()

    def put(self, array: Array) -> int:
        """Return the address of a copy of an array."""
        return self._device.put(array)

    def get(self, address: int, like: Array) -> Array:
        """Return the memory at an address as an array of that kind."""
        return np.frombuffer(self._device.read(address, like.nbytes), like.dtype).reshape(like.shape)

    def load(self, ptx: str) -> Loaded:
        """Load PTX."""
        return self._device.load(ptx.encode())

    def launch(self, module: Loaded, name: str, grid: Any, block: Any, *arguments: Any, shared: int = 0) -> None:
        """Launch a kernel and wait for its end."""
        self._device.launch(module, name, _three(grid), _three(block), shared, arguments)


def _three(values: int | tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*((values,) if isinstance(values, int) else values), 1, 1)[:3]
    return x, y, z
