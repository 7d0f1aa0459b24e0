"""Repeated launches that real executors run: nothing shows which of them the launch cache made."""

from __future__ import annotations

import copy
import ctypes
import math
import pickle
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._connect.private_executor import PrivateExecutors
from pympsd_client._objects.code import launch
from tests.client.conftest import ok
from tests.client.launch_cache_executors import (
    NOTHING,
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
from tests.client.launcher_rig import SECONDS, extension
from tests.client.test_client_process import _run
from tests.client.test_client_streams import PTX, STORE, Kernels

__all__ = ["context", "counter", "devices", "executors", "launches", "stream"]

R = cuda.CUresult
INVALID_HANDLE = (R.CUDA_ERROR_INVALID_HANDLE,)


@pytest.mark.parametrize("place", ["a stream", 0, None, 1])
def test_each_launch_runs_once(launches: Launches, counter: Counter, stream: Any, place: Any) -> None:
    call = counter.on(stream if place == "a stream" else place)
    for _ in range(500):
        ok(cuda.cuLaunchKernel(*call))
    assert launches.slow == (2 if launches.native else 500)
    assert counter.count == 500


@pytest.mark.parametrize("place", [2, cuda.CU_STREAM_PER_THREAD])
def test_the_per_thread_stream_takes_the_slow_path(launches: Launches, counter: Counter, place: Any) -> None:
    for _ in range(5):
        ok(cuda.cuLaunchKernel(*counter.on(place)))
    assert launches.slow == 5
    assert counter.count == 5


def test_each_launch_has_its_own_values(launches: Launches, context: Any, stream: Any) -> None:
    kernels = Kernels()
    function = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
    addresses = [ok(cuda.cuMemAlloc(4)) for _ in range(50)]
    for types in ((ctypes.c_void_p, ctypes.c_uint), (None, ctypes.c_uint)):
        for number, address in enumerate(addresses):
            arguments = int(address) if types[0] is not None else address
            ok(cuda.cuLaunchKernel(function, *ONE, stream, ((arguments, 1000 + number), types), 0))
        assert launches.slow == (2 if launches.native else 50)
        launches.reset()
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
def test_wrong_values_of_a_repeated_launch_raise(launches: Launches, context: Any, pointer: Any, wrong: str) -> None:
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX)), b"store"))
    out = int(ok(cuda.cuMemAlloc(4)))
    launches.familiar(function, *ONE, 0, ((out, 1), (pointer, ctypes.c_uint)), 0)
    values, error = WRONG[wrong]
    with pytest.raises(error):
        cuda.cuLaunchKernel(function, *ONE, 0, (values, (pointer, ctypes.c_uint)), 0)
    ok(cuda.cuCtxSynchronize())


def test_other_forms_of_a_repeated_launch(launches: Launches, counter: Counter, stream: Any) -> None:
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
    assert launches.slow == 4


def test_culaunchkernel_can_be_pickled() -> None:
    launch = cuda.cuLaunchKernel
    assert pickle.loads(pickle.dumps(launch)) == launch
    assert copy.deepcopy(launch) == launch


# --- what invalidates plans: later launches take the slow path, which reports what is wrong


def test_a_stream_that_was_destroyed(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(stream))
    ok(cuda.cuStreamDestroy(stream))
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE
        assert "not a stream of this process" in last_error()
    assert counter.count == 3


def test_a_module_that_was_unloaded(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(stream))
    ok(cuda.cuModuleUnload(counter.module))
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE
        assert "not a kernel of this process" in last_error()
    ok(cuda.cuCtxSynchronize())


def test_a_module_unloaded_while_its_kernel_is_launched(launches: Launches, counter: Counter) -> None:
    call, real = counter.on(0), launch.launcher

    def unload_first() -> Any:  # once the kernel was found, as another thread may
        ok(cuda.cuModuleUnload(counter.module))
        return real()

    ok(cuda.cuLaunchKernel(*call))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "launcher", unload_first)
        cuda.cuLaunchKernel(*call)
    assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE


def test_a_context_that_was_destroyed(launches: Launches, context: Any, counter: Counter) -> None:
    call = launches.familiar(*counter.on(0))
    ok(cuda.cuCtxDestroy(context))
    assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_INVALID_CONTEXT,)
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE


def test_a_context_that_another_thread_destroyed(launches: Launches, context: Any, counter: Counter) -> None:
    call = launches.familiar(*counter.on(0))
    with ThreadPoolExecutor(1) as thread:
        ok(thread.submit(cuda.cuCtxDestroy, context).result(SECONDS))
    assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED,)


@pytest.mark.parametrize("end", [cuda.cuDevicePrimaryCtxRelease, cuda.cuDevicePrimaryCtxReset])
def test_a_primary_context_that_was_opened_again(launches: Launches, devices: PrivateExecutors, end: Any) -> None:
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
    call = launches.familiar(*Counter().on(0))
    ok(end(0))
    assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED,)
    ok(cuda.cuDevicePrimaryCtxRetain(0))
    assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE
    counter = Counter()
    assert counter.count == 0
    launches.familiar(*counter.on(0))
    assert counter.count == 3
    ok(cuda.cuDevicePrimaryCtxRelease(0))


def test_less_dynamic_shared_memory_than_before(launches: Launches, counter: Counter) -> None:
    attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(cuda.cuFuncSetAttribute(counter.function, attribute, 100_000))
    call = launches.familiar(counter.function, 1, 1, 1, 1, 1, 1, 100_000, 0, NOTHING, 0)
    ok(cuda.cuFuncSetAttribute(counter.function, attribute, 99_999))
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_INVALID_VALUE,)
        assert "MAX_DYNAMIC_SHARED_SIZE_BYTES" in last_error()
    assert counter.count == 3
    ok(cuda.cuFuncSetAttribute(counter.function, attribute, 100_000))
    launches.familiar(*call)
    assert counter.count == 6


def test_a_trap_in_another_stream(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(0))
    trapped = ok(cuda.cuModuleGetFunction(counter.module, b"trapped"))
    ok(cuda.cuLaunchKernel(trapped, *ONE, stream, NOTHING, 0))
    failed = (R.CUDA_ERROR_LAUNCH_FAILED,)
    assert cuda.cuStreamSynchronize(stream) == failed
    message = last_error()
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == failed
        assert last_error() == message


def test_a_repeated_launch_with_an_illegal_address(launches: Launches, context: Any) -> None:
    other = ok(cuda.cuCtxCreate(None, 0, 1))
    call_of_other = launches.familiar(*Counter().on(0))
    ok(cuda.cuCtxSetCurrent(context))
    kernels = Kernels()
    function = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
    call = launches.familiar(function, *ONE, 0, ((int(kernels.result), 1), STORE), 0)
    launches.expect_familiar(function, *ONE, 0, ((0x1234, 1), STORE), 0)
    illegal = (R.CUDA_ERROR_ILLEGAL_ADDRESS,)
    assert cuda.cuCtxSynchronize() == illegal
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == illegal
    assert cuda.cuCtxCreate(None, 0, 0) == (*illegal, None)
    ok(cuda.cuCtxSetCurrent(other))
    assert cuda.cuLaunchKernel(*call_of_other) == illegal
    ok(cuda.cuCtxDestroy(other))


@pytest.mark.parametrize("kind", ["function", "callback"])
def test_after_the_first_host_function_all_launches_take_the_slow_path(
    launches: Launches, counter: Counter, stream: Any, kind: str
) -> None:
    call = launches.familiar(*counter.on(stream))
    output: SimpleQueue[Any] = SimpleQueue()

    def function(*arguments: Any) -> None:
        output.put((cuda.cuLaunchKernel(*call), last_error()))

    if kind == "function":
        ok(cuda.cuLaunchHostFunc(stream, function, 0))
    else:
        ok(cuda.cuStreamAddCallback(stream, function, 0, 0))
    answer, message = output.get(timeout=SECONDS)
    assert answer == (R.CUDA_ERROR_NOT_PERMITTED,)
    assert "must not make CUDA calls" in message
    launches.reset()
    for _ in range(5):
        ok(cuda.cuLaunchKernel(*call))
    assert launches.slow == 5
    assert counter.count == 8


FORK = f"""
    from pympsd_client._command_stream.launch_cache import launcher
    ready()
    module = cuda.cuModuleLoadData(open({str(Path(__file__).with_name("kernels.ptx"))!r}, "rb").read())[1]
    call = (cuda.cuModuleGetFunction(module, b"count")[1], 1, 1, 1, 1, 1, 1, 0, 0, ((), ()), 0)
    print(*[name(cuda.cuLaunchKernel(*call)) for _ in range(3)], flush=True)
    child = os.fork()
    if not child:
        print(name(cuda.cuLaunchKernel(*call)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(name(cuda.cuLaunchKernel(*call)), name(cuda.cuCtxSynchronize()), launcher() and launcher().misses)
"""


@pytest.mark.parametrize(("choice", "misses"), [("native", 2), ("python", None)])
def test_a_forked_child_launches_nothing(choice: str, misses: int | None) -> None:
    extension()
    environment = {"PYMPSD_LAUNCHES": choice, "PYMPSD_WORKER": "native"}
    done = _run(FORK, "-P", "-Wignore::RuntimeWarning", **environment)
    won = "CUDA_SUCCESS"
    lines = [f"{won} {won} {won}", "CUDA_ERROR_NOT_INITIALIZED", f"{won} {won} {misses}", ""]
    assert done.stdout.split("\n") == lines, done.stderr


# --- threads


def test_another_current_context_is_an_error(launches: Launches, context: Any, counter: Counter) -> None:
    call = launches.familiar(*counter.on(0))

    def elsewhere() -> list[tuple[Any, ...]]:
        answers = [cuda.cuLaunchKernel(*call)]
        other = ok(cuda.cuCtxCreate(None, 0, 1))
        answers.append(cuda.cuLaunchKernel(*call))
        ok(cuda.cuCtxPushCurrent(context))
        answers.append(cuda.cuLaunchKernel(*call))
        ok(cuda.cuCtxPopCurrent())
        answers.append(cuda.cuLaunchKernel(*call))
        ok(cuda.cuCtxDestroy(other))
        return answers

    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(elsewhere).result(SECONDS)
    assert [answer[0] for answer in answers] == [
        R.CUDA_ERROR_INVALID_CONTEXT, R.CUDA_ERROR_INVALID_HANDLE, R.CUDA_SUCCESS, R.CUDA_ERROR_INVALID_HANDLE,
    ]  # fmt: skip
    launches.familiar(*call)
    assert counter.count == 7


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_threads", "devices")
def test_threads_launch_in_contexts_of_their_own(launches: Launches) -> None:
    def work(number: int) -> bool:
        context = ok(cuda.cuCtxCreate(None, 0, number % 2))
        kernels, counter, stream = Kernels(), Counter(), ok(cuda.cuStreamCreate(1))
        store = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
        sent = np.random.default_rng(number).integers(0, 256, 100_000, np.uint8)
        back, address = np.zeros_like(sent), ok(cuda.cuMemAlloc(sent.nbytes))
        right = True
        for value in range(100):
            ok(cuda.cuLaunchKernel(*counter.on(stream)))
            ok(cuda.cuLaunchKernel(store, *ONE, stream, ((int(kernels.result), 1000 * number + value), STORE), 0))
            if value % 5 == number:
                ok(cuda.cuMemcpyHtoD(address, sent, sent.nbytes))
                ok(cuda.cuMemcpyDtoH(back, address, sent.nbytes))
                right = right and bool((sent == back).all()) and kernels.read(stream) == 1000 * number + value
        right = right and counter.count == 100
        ok(cuda.cuCtxDestroy(context))
        return right

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4), timeout=SECONDS)) == [True] * 4
    assert (launches.slow < 800) == launches.native


@pytest.mark.usefixtures("busy_threads")
def test_threads_launch_in_one_context_while_plans_are_invalidated(
    launches: Launches, context: Any, counter: Counter
) -> None:
    def work(number: int) -> None:
        ok(cuda.cuCtxSetCurrent(context))
        stream = ok(cuda.cuStreamCreate(1))
        for turn in range(300):
            ok(cuda.cuLaunchKernel(*counter.on(stream)))
            if turn % 50 == 10 * number:
                ok(cuda.cuStreamDestroy(ok(cuda.cuStreamCreate(1))))
        ok(cuda.cuStreamSynchronize(stream))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4), timeout=SECONDS)) == [None] * 4
    assert counter.count == 1200
    assert (launches.slow < 600) == launches.native
