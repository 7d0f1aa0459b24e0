"""Copies and fills of rows and slices, for scripts/record-row-copies and the test that replays what it recorded.

tests/data/recorded-row-copies.jsonl begins with a line about the recording: device, version of CUDA, and the number
of bytes after which the buffers' contents repeat. Each further line is a case: number, arguments, result, and a
digest of two device and two host buffers afterwards. The arguments were drawn at random, sides that fit and sides
that do not. Sources are the first buffers, destinations the second.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
from pathlib import Path
from typing import Any, Final, NamedTuple

RECORD: Final = Path(__file__).parents[1] / "data" / "recorded-row-copies.jsonl"
SIZE: Final = 1 << 18
"""Bytes of a buffer."""
TYPES: Final = {"H": 1, "D": 2, "U": 4}
"""CUmemorytype of host, device and unified."""
COPIES: Final = {
    "2D": "cuMemcpy2D",
    "2DU": "cuMemcpy2DUnaligned",
    "2DA": "cuMemcpy2DAsync",
    "3D": "cuMemcpy3D",
    "3DA": "cuMemcpy3DAsync",
}


class Case(NamedTuple):
    """A case, and its recorded result."""

    number: int
    arguments: dict[str, Any]
    result: int
    digest: str


def read_record(path: Path = RECORD) -> tuple[dict[str, Any], list[Case]]:
    """Return the line about the recording, and the cases."""
    about, *cases = (json.loads(line) for line in path.read_text().splitlines())
    return about, [Case(*case) for case in cases]


def call(result: tuple[Any, ...]) -> Any:
    """Return a driver function's values without its status; raise RuntimeError if it failed."""
    status, *values = result
    if status:
        raise RuntimeError(f"the driver returned {status!r}")
    return values[0] if values else None


class RowCopies:
    """Executes cases with a module that has cuda.bindings.driver's functions, in the current context."""

    def __init__(self, driver: Any, period: int) -> None:
        self._driver = driver
        pattern = random.Random(5).randbytes(period) * (SIZE // period)
        # Each buffer begins elsewhere in the pattern, so that no copy leaves a destination as it was.
        first, second, third, fourth = (pattern[start:] + pattern[:start] for start in range(0, SIZE, SIZE // 4))
        self._device_data, self._host_data = (first, second), (third, fourth)

    def carry_out(self, case: Case) -> Case:
        """Execute a case in new buffers; return it with its result and digest."""
        arguments = dict(case.arguments)
        if arguments["f"] == "pitch":
            status, address, pitch = self._driver.cuMemAllocPitch(
                arguments.get("w", 100), arguments.get("h", 3), arguments.get("e", 4)
            )
            arguments["got"] = None if status else pitch
            if not status:
                call(self._driver.cuMemFree(address))
            return Case(case.number, arguments, int(status), case.digest)
        device, host = self._allocate()
        carry_out = self._fill if arguments["f"] == "set" else self._copy
        result = carry_out(arguments, device, host)
        call(self._driver.cuCtxSynchronize())
        digest = self._digest(device, host)
        for address in device:
            call(self._driver.cuMemFree(address))
        return Case(case.number, arguments, result, digest)

    def _allocate(self) -> tuple[list[int], list[Any]]:
        device = [int(call(self._driver.cuMemAlloc(SIZE))) for _ in self._device_data]
        for address, data in zip(device, self._device_data, strict=True):
            call(self._driver.cuMemcpyHtoD(address, data, SIZE))
        return device, [ctypes.create_string_buffer(data, SIZE) for data in self._host_data]

    def _digest(self, device: list[int], host: list[Any]) -> str:
        digest, out = hashlib.md5(), bytearray(SIZE)
        for address in device:
            call(self._driver.cuMemcpyDtoH(out, address, SIZE))
            digest.update(out)
        for buffer in host:
            digest.update(buffer.raw)
        return digest.hexdigest()[:12]

    def _copy(self, arguments: dict[str, Any], device: list[int], host: list[Any]) -> int:
        driver, name = self._driver, COPIES[arguments["f"]]
        is_3d = "3D" in name
        description = driver.CUDA_MEMCPY3D() if is_3d else driver.CUDA_MEMCPY2D()
        description.WidthInBytes, description.Height = arguments["w"], arguments["h"]
        if is_3d:
            description.Depth = arguments["d"]
        fields = ("XInBytes", "Y", "Z", "Pitch", "Height") if is_3d else ("XInBytes", "Y", "Pitch")
        for index, side in enumerate(("src", "dst")):
            kind, *values = arguments[side]
            setattr(description, f"{side}MemoryType", driver.CUmemorytype(TYPES[kind]))
            for field, value in zip(fields, values, strict=True):
                setattr(description, f"{side}{field}", value)
            if kind == "H":
                setattr(description, f"{side}Host", ctypes.addressof(host[index]))
            else:
                setattr(description, f"{side}Device", driver.CUdeviceptr(device[index]))
        stream = (0,) if name.endswith("Async") else ()
        return int(getattr(driver, name)(description, *stream)[0])

    def _fill(self, arguments: dict[str, Any], device: list[int], _: list[Any]) -> int:
        element = arguments["e"]
        value = 0x5A if element == 1 else 0x5A5B
        function = getattr(self._driver, f"cuMemsetD2D{8 * element}")
        address = device[0] + arguments["off"]
        return int(function(address, arguments["pitch"], value, arguments["w"], arguments["h"])[0])
