"""Copies and fills of rows and slices with every kind of argument, as recorded of an H100 with driver 580.159.04.

Each line of tests/data/recorded-row-copies.jsonl is a case: number, arguments, result, and a digest of two
device and two host buffers afterwards. They were drawn at random, sides that fit and sides that do not.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pympsd_client import driver as cuda
from tests.client.conftest import ok

RECORD = Path(__file__).parents[1] / "data" / "recorded-row-copies.jsonl"
CASES = [json.loads(line) for line in RECORD.read_text().splitlines()]
SIZE = 1 << 18
PATTERN = bytes([random.Random(5).getrandbits(8)]) * SIZE
"""As it was recorded: the same byte everywhere."""
TYPES = {"H": 1, "D": 2, "U": 4}
"""CUmemorytype of host, device and unified."""
COPIES = {"2D": "cuMemcpy2D", "2DU": "cuMemcpy2DUnaligned", "2DA": "cuMemcpy2DAsync", "3D": "cuMemcpy3D"}


class Buffers:
    """Two device and two host buffers; the second ones hold the pattern backwards."""

    def __init__(self) -> None:
        self.device = [int(ok(cuda.cuMemAlloc(SIZE))) for _ in range(2)]
        self.host = [ctypes.create_string_buffer(SIZE) for _ in range(2)]
        for device, host, data in zip(self.device, self.host, (PATTERN, PATTERN[::-1]), strict=True):
            ok(cuda.cuMemcpyHtoD(device, data, SIZE))
            host.raw = data

    def digest(self) -> str:
        """Return a digest of all four."""
        digest, out = hashlib.md5(), bytearray(SIZE)
        for device in self.device:
            ok(cuda.cuMemcpyDtoH(out, device, SIZE))
            digest.update(out)
        for host in self.host:
            digest.update(host.raw)
        return digest.hexdigest()[:12]

    def free(self) -> None:
        """Free the device's."""
        for device in self.device:
            ok(cuda.cuMemFree(device))


def _copy(case: dict[str, Any], buffers: Buffers) -> int:
    is_3d = case["f"].startswith("3D")
    description = cuda.CUDA_MEMCPY3D() if is_3d else cuda.CUDA_MEMCPY2D()
    description.WidthInBytes, description.Height = case["w"], case["h"]
    if is_3d:
        description.Depth = case["d"]
    fields = ("XInBytes", "Y", "Z", "Pitch", "Height") if is_3d else ("XInBytes", "Y", "Pitch")
    for index, side in enumerate(("src", "dst")):
        kind, *values = case[side]
        setattr(description, f"{side}MemoryType", cuda.CUmemorytype(TYPES[kind]))
        for field, value in zip(fields, values, strict=True):
            setattr(description, f"{side}{field}", value)
        if kind == "H":
            setattr(description, f"{side}Host", ctypes.addressof(buffers.host[index]))
        else:
            setattr(description, f"{side}Device", cuda.CUdeviceptr(buffers.device[index]))
    name = COPIES.get(case["f"], "cuMemcpy3DAsync")
    stream = (0,) if name.endswith("Async") else ()
    return int(getattr(cuda, name)(description, *stream)[0])


def _fill(case: dict[str, Any], buffers: Buffers) -> int:
    function: Callable[..., Any] = getattr(cuda, f"cuMemsetD2D{8 * case['e']}")
    value = 0x5A if case["e"] == 1 else 0x5A5B
    return int(function(buffers.device[0] + case["off"], case["pitch"], value, case["w"], case["h"])[0])


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("kind", [*COPIES, "3DA", "set"])
def test_copies_and_fills_are_as_recorded(context: Any, kind: str) -> None:
    cases = [case for case in CASES if case[1]["f"] == kind]
    assert len(cases) > 90
    for number, case, result, digest in cases:
        buffers = Buffers()
        got = (_fill if kind == "set" else _copy)(case, buffers)
        assert (got, cuda.cuCtxSynchronize()[0]) == (result, 0), (number, case)
        assert buffers.digest() == digest, (number, case)
        buffers.free()


@pytest.mark.usefixtures("devices")
def test_pitches_are_as_recorded(context: Any) -> None:
    cases = [case for case in CASES if case[1]["f"] == "pitch"]
    assert len(cases) == 65
    for number, case, result, _ in cases:
        width, height, element = case.get("w", 100), case.get("h", 3), case.get("e", 4)
        got, address, pitch = cuda.cuMemAllocPitch(width, height, element)
        assert (int(got), pitch) == (result, case.get("got")), (number, case)
        if address is not None:
            ok(cuda.cuMemFree(address))
