"""Launches that real executors take: nobody can tell which were native."""

from __future__ import annotations

import copy
import ctypes
import math
import pickle
import struct
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from tests.client.conftest import ok
from tests.client.launch_cache_executors import (
    ONE,
    Counter,
    Launches,
    context,
    counter,
    devices,
    executors,
    launches,
    stream,
)
from tests.client.test_client_streams import PTX, Kernels

__all__ = ["context", "counter", "devices", "executors", "launches", "stream"]


@pytest.mark.parametrize("place", ["a stream", 0, None, 1])
def test_each_launch_runs_once(launches: Launches, counter: Counter, stream: Any, place: Any) -> None:
    call = counter.on(stream if place == "a stream" else place)
    for _ in range(500):
        ok(cuda.cuLaunchKernel(*call))
    assert len(launches.in_python) == (2 if launches.native else 500)
    assert counter.count == 500


@pytest.mark.parametrize("place", [2, cuda.CU_STREAM_PER_THREAD])
def test_the_threads_own_stream_is_pythons(launches: Launches, counter: Counter, place: Any) -> None:
    for _ in range(5):
        ok(cuda.cuLaunchKernel(*counter.on(place)))
    assert len(launches.in_python) == 5
    assert counter.count == 5


def test_each_launch_has_its_own_values(launches: Launches, context: Any, stream: Any) -> None:
    kernels = Kernels()
    function = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
    addresses = [ok(cuda.cuMemAlloc(4)) for _ in range(50)]
    for types in ((ctypes.c_void_p, ctypes.c_uint), (None, ctypes.c_uint)):
        for number, address in enumerate(addresses):
            given = int(address) if types[0] is not None else address
            ok(cuda.cuLaunchKernel(function, *ONE, stream, ((given, 1000 + number), types), 0))
        assert len(launches.in_python) == (2 if launches.native else 50)
        launches.in_python.clear()
        back = np.zeros(1, dtype=np.uint32)
        for number, address in enumerate(addresses):
            ok(cuda.cuMemcpyDtoHAsync(back, address, 4, stream))
            ok(cuda.cuStreamSynchronize(stream))
            assert back[0] == 1000 + number
            ok(cuda.cuMemsetD32(address, 0, 1))


STORED = struct.Struct("=B7xdH2xfq")
KEPT = (ctypes.c_ubyte, ctypes.c_double, ctypes.c_ushort, ctypes.c_float, ctypes.c_longlong)


def test_values_arrive_with_all_their_bytes(launches: Launches, context: Any) -> None:
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX)), b"keep"))
    out = ok(cuda.cuMemAlloc(STORED.size))
    back = bytearray(STORED.size)
    sent = [
        (200, -2.5, 60000, 0.25, -7), (0, 1e300, 0, -0.0, (1 << 63) - 1), (255, 5, 65535, 3, -(1 << 63)),
        (1, math.inf, 2, -math.inf, 3), (254, 2.0**-1074, 1, 2.0**-149, -1),
    ]  # fmt: skip
    launches.familiar(function, *ONE, 0, ((out, *sent[0]), (None, *KEPT)), 0)
    for values in sent:
        launches.expect_familiar(function, *ONE, 0, ((out, *values), (None, *KEPT)), 0)
        ok(cuda.cuMemcpyDtoH(back, out, STORED.size))
        assert STORED.unpack(back) == values


WRONG: dict[str, tuple[tuple[Any, ...], Any]] = {
    "fewer values": ((0,), TypeError),
    "no values": ((), TypeError),
    "more values": ((0, 1, 2), TypeError),
    "None as a pointer": ((None, 1), TypeError),
    "a list as a pointer": (([], 1), TypeError),
    "a float as a number": ((0, 1.5), TypeError),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("pointer", [None, ctypes.c_void_p], ids=["None", "c_void_p"])
def test_wrong_values_of_a_familiar_launch_raise(launches: Launches, context: Any, pointer: Any, wrong: str) -> None:
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX)), b"store"))
    out = int(ok(cuda.cuMemAlloc(4)))
    launches.familiar(function, *ONE, 0, ((out, 1), (pointer, ctypes.c_uint)), 0)
    values, error = WRONG[wrong]
    with pytest.raises(error):
        cuda.cuLaunchKernel(function, *ONE, 0, (values, (pointer, ctypes.c_uint)), 0)
    ok(cuda.cuCtxSynchronize())


def test_other_ways_to_say_a_familiar_launch(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(stream))
    names = "f gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ sharedMemBytes hStream kernelParams extra"
    ok(cuda.cuLaunchKernel(**dict(zip(names.split(), call, strict=True))))
    ok(cuda.cuLaunchKernel(*call[:9], 0, 0))
    ok(cuda.cuLaunchKernel(*call[:9], None, 0))
    with pytest.raises(TypeError):
        cuda.cuLaunchKernel(*call[:10])
    assert counter.count == 6


def test_a_kernel_with_more_parameters_than_a_plan_has_room_for(launches: Launches, context: Any) -> None:
    count = 130
    declared = ", ".join(f".param .u8 p{number}" for number in range(count)).encode()
    module = ok(cuda.cuModuleLoadData(PTX + b".visible .entry many(" + declared + b")\n{\n    ret;\n}\n"))
    function = ok(cuda.cuModuleGetFunction(module, b"many"))
    for _ in range(4):
        ok(cuda.cuLaunchKernel(function, *ONE, 0, ((1,) * count, (ctypes.c_ubyte,) * count), 0))
    ok(cuda.cuCtxSynchronize())
    assert len(launches.in_python) == 4


def test_the_door_can_be_pickled() -> None:
    door = cuda.cuLaunchKernel
    assert pickle.loads(pickle.dumps(door)) == door
    assert copy.deepcopy(door) == door
