"""What ends a plan, with real executors: what was launched before is Python's, which says what is wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError, lost
from pympsd_client._connect.private_executor import PrivateExecutors
from pympsd_client._objects import launch as launch_module
from pympsd_client._objects.context import contexts
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
    mortal,
    stream,
)
from tests.client.launch_cache_rig import SECONDS
from tests.client.ring_area import extension
from tests.client.test_client_process import _run
from tests.client.test_client_streams import STORE, Kernels

__all__ = ["context", "counter", "devices", "executors", "launches", "mortal", "stream"]

R = cuda.CUresult
INVALID_HANDLE = (R.CUDA_ERROR_INVALID_HANDLE,)


def test_a_stream_that_was_destroyed(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(stream))
    ok(cuda.cuStreamDestroy(stream))
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE
        assert "no stream of this process" in last_error()
    assert counter.count == 3


def test_a_module_that_was_unloaded(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(stream))
    ok(cuda.cuModuleUnload(counter.module))
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE
        assert "no kernel of this process" in last_error()
    ok(cuda.cuCtxSynchronize())


def test_a_module_unloaded_while_its_kernel_is_launched(launches: Launches, counter: Counter) -> None:
    call, real = counter.on(0), vars(launch_module)["launch"]

    def launch(*arguments: Any) -> None:
        # The kernel was found; as another thread may.
        ok(cuda.cuModuleUnload(counter.module))
        real(*arguments)

    ok(cuda.cuLaunchKernel(*call))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_module, "launch", launch)
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
def test_a_primary_context_that_was_opened_anew(launches: Launches, devices: PrivateExecutors, end: Any) -> None:
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


def test_a_familiar_launch_that_goes_astray(launches: Launches, context: Any) -> None:
    kernels = Kernels()
    function = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
    call = launches.familiar(function, *ONE, 0, ((int(kernels.result), 1), STORE), 0)
    launches.expect_familiar(function, *ONE, 0, ((0x1234, 1), STORE), 0)
    illegal = (R.CUDA_ERROR_ILLEGAL_ADDRESS,)
    assert cuda.cuCtxSynchronize() == illegal
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == illegal
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    counter = Counter()
    launches.familiar(*counter.on(0))
    assert counter.count == 3
    ok(cuda.cuCtxDestroy(other))


@pytest.mark.parametrize("kind", ["function", "callback"])
def test_after_the_first_host_function_all_launches_are_pythons(
    launches: Launches, counter: Counter, stream: Any, kind: str
) -> None:
    call = launches.familiar(*counter.on(stream))
    told: SimpleQueue[Any] = SimpleQueue()

    def function(*arguments: Any) -> None:
        told.put((cuda.cuLaunchKernel(*call), last_error()))

    if kind == "function":
        ok(cuda.cuLaunchHostFunc(stream, function, 0))
    else:
        ok(cuda.cuStreamAddCallback(stream, function, 0, 0))
    answer, message = told.get(timeout=SECONDS)
    assert answer == (R.CUDA_ERROR_NOT_PERMITTED,)
    assert "makes no CUDA calls" in message
    launches.in_python.clear()
    for _ in range(5):
        ok(cuda.cuLaunchKernel(*call))
    assert len(launches.in_python) == 5
    assert counter.count == 8


def test_an_executor_that_was_killed(launches: Launches, mortal: PrivateExecutors) -> None:
    ok(cuda.cuCtxCreate(None, 0, 0))
    call = launches.familiar(*Counter().on(0))
    mortal._running[0]._process.kill()
    gone = (R.CUDA_ERROR_MPS_RPC_FAILURE,)
    assert cuda.cuCtxSynchronize() == gone
    message = last_error()
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == gone
        assert last_error() == message


def test_what_is_launched_while_an_end_is_told_is_not_remembered(
    launches: Launches, mortal: PrivateExecutors
) -> None:
    context = contexts[int(ok(cuda.cuCtxCreate(None, 0, 0)))]
    call = launches.familiar(*Counter().on(0))
    transport = context.usable().transport

    def on_end(reason: str) -> CudaError:
        # As another thread may.
        for _ in range(3):
            cuda.cuLaunchKernel(*call)
        return lost(reason)

    transport.__dict__["_on_end"] = on_end
    transport._end("it has ended")
    assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_MPS_RPC_FAILURE,)


FORK = f"""
    from pympsd_client._objects import launch as launches
    calls, real = [], launches.launch
    def launch(*arguments):
        calls.append(1)
        real(*arguments)
    launches.launch = launch
    ready()
    module = cuda.cuModuleLoadData(open({str(Path(__file__).with_name("kernels.ptx"))!r}, "rb").read())[1]
    call = (cuda.cuModuleGetFunction(module, b"count")[1], 1, 1, 1, 1, 1, 1, 0, 0, ((), ()), 0)
    print(*[name(cuda.cuLaunchKernel(*call)) for _ in range(3)], flush=True)
    child = os.fork()
    if not child:
        print(name(cuda.cuLaunchKernel(*call)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(name(cuda.cuLaunchKernel(*call)), name(cuda.cuCtxSynchronize()), len(calls))
"""


@pytest.mark.parametrize(("choice", "in_python"), [("native", 2), ("python", 4)])
def test_a_forked_child_launches_nothing(choice: str, in_python: int) -> None:
    extension()
    environment = {"PYMPSD_LAUNCHES": choice, "PYMPSD_WORKER": "native"}
    done = _run(FORK, "-P", "-Wignore::RuntimeWarning", **environment)
    won = "CUDA_SUCCESS"
    lines = [f"{won} {won} {won}", "CUDA_ERROR_NOT_INITIALIZED", f"{won} {won} {in_python}", ""]
    assert done.stdout.split("\n") == lines, done.stderr
