"""Finalizers run at any allocation, in the thread that makes it: none waits for a lock that its own thread holds."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
from attrs import define, field

from pympsd_client import driver as cuda
from pympsd_client._graphs.executable import Executable
from pympsd_client._graphs.user_objects import UserObject
from pympsd_client._objects.context import Context
from pympsd_client._objects.memory.allocations import Allocations
from pympsd_client._objects.memory.pinned import Pinned
from pympsd_client._objects.pools.graph_memory import GraphAllocation, GraphMemoryUse
from pympsd_client._objects.process import Primary
from tests.client.conftest import ok

R = cuda.CUresult
SECONDS = 30.0


@define(eq=False)
class Finalizer:
    """Calls ``run`` once, before the line number ``at`` of those that a call executes in the given code."""

    run: Callable[[], Any]
    at: int
    codes: frozenset[CodeType]
    passed: int = field(default=0, init=False)

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        """Trace a call."""
        return self.line if frame.f_code in self.codes else None

    def line(self, frame: FrameType, event: str, argument: object) -> Any:
        """Count a line, and call ``run`` at the chosen one."""
        if event == "line":
            self.passed += 1
            if self.passed == self.at:
                self.run()
        return self.line


def codes_of(*classes: type) -> frozenset[CodeType]:
    members = [member for item in classes for member in vars(item).values()]
    return frozenset(member.__code__ for member in members if hasattr(member, "__code__"))


def at_every_line(context: Any, classes: tuple[type, ...], prepare: Callable[[], tuple[Any, Any, Any]]) -> int:
    """Run a finalizer at each line that a call executes in the methods of ``classes``; return the number of lines.

    ``prepare`` is called for each line, and returns the call, the finalizer, and a check to make afterwards.
    """
    codes, lines = codes_of(*classes), 0

    def work() -> None:
        nonlocal lines
        ok(cuda.cuCtxSetCurrent(context))
        passed = at = 1
        while at <= passed:
            call, run, check = prepare()
            finalizer = Finalizer(run, at, codes)
            sys.settrace(finalizer.enter)
            try:
                call()
            finally:
                sys.settrace(None)
            if finalizer.passed < at:
                run()
            check()
            passed, at = finalizer.passed, at + 1
        lines = passed

    failed: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=caught, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "the finalizer waits for its own thread"
    if failed:
        raise failed[0]
    return lines


@pytest.mark.parametrize("is_clone", [True, False])
def test_finalizers_free_graph_memory(context: Any, is_clone: bool) -> None:
    def count_used() -> int:
        attribute = cuda.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
        return int(ok(cuda.cuDeviceGetGraphMemAttribute(0, attribute)))

    def graph() -> Any:
        description = cuda.CUDA_MEM_ALLOC_NODE_PARAMS()
        description.poolProps.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        description.poolProps.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        description.bytesize = 64
        created = ok(cuda.cuGraphCreate(0))
        ok(cuda.cuGraphAddMemAllocNode(created, None, 0, description))
        return created

    def prepare() -> tuple[Any, Any, Any]:
        before, first = count_used(), graph()
        second = ok(cuda.cuGraphClone(first)) if is_clone else graph()

        def check() -> None:
            assert count_used() == before

        return lambda: ok(cuda.cuGraphDestroy(first)), lambda: ok(cuda.cuGraphDestroy(second)), check

    assert at_every_line(context, (GraphMemoryUse, GraphAllocation), prepare) > 3


def test_an_executable_graph_destroyed_while_it_is_launched(context: Any) -> None:
    stream, word = ok(cuda.cuStreamCreate(1)), ok(cuda.cuMemAlloc(4))
    graph, fill = ok(cuda.cuGraphCreate(0)), cuda.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = word, 3, 4, 1, 1
    node = ok(cuda.cuGraphAddMemsetNode(graph, None, 0, fill, context))

    def prepare() -> tuple[Any, Any, Any]:
        executable, answers = ok(cuda.cuGraphInstantiate(graph, 0)), []

        def call() -> None:
            answers.append(cuda.cuGraphExecMemsetNodeSetParams(executable, node, fill, context))
            answers.append(cuda.cuGraphLaunch(executable, stream))

        def check() -> None:
            assert {item[0] for item in answers} <= {R.CUDA_SUCCESS, R.CUDA_ERROR_INVALID_VALUE}
            cuda.cuStreamSynchronize(stream)  # INVALID_HANDLE if it was destroyed just before it was launched
            ok(cuda.cuStreamSynchronize(stream))

        return call, lambda: cuda.cuGraphExecDestroy(executable), check

    assert at_every_line(context, (Executable,), prepare) > 10


@pytest.mark.parametrize(("finalize", "users"), [("cuDevicePrimaryCtxRelease", 2), ("cuDevicePrimaryCtxReset", 1)])
def test_a_primary_context(context: Any, finalize: str, users: int) -> None:
    def prepare() -> tuple[Any, Any, Any]:
        for _ in range(users):
            ok(cuda.cuDevicePrimaryCtxRetain(0))

        def check() -> None:
            assert ok(cuda.cuDevicePrimaryCtxGetState(0))[1] == 0
            assert cuda.cuDevicePrimaryCtxRelease(0) == (R.CUDA_ERROR_INVALID_CONTEXT,)

        return lambda: ok(cuda.cuDevicePrimaryCtxRelease(0)), lambda: ok(getattr(cuda, finalize)(0)), check

    assert at_every_line(context, (Primary, Context), prepare) >= 5


def test_page_locked_memory(context: Any) -> None:
    def prepare() -> tuple[Any, Any, Any]:
        first, result = ok(cuda.cuMemHostAlloc(64, 0)), []

        def check() -> None:
            is_host = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
            for address, freed in ((int(first), True), (int(result[0]), False)):
                assert (cuda.cuPointerGetAttribute(is_host, address)[0] != R.CUDA_SUCCESS) == freed
            ok(cuda.cuMemFreeHost(result[0]))

        return (
            lambda: result.append(ok(cuda.cuMemHostAlloc(1 << 16, 0))),
            lambda: ok(cuda.cuMemFreeHost(first)),
            check,
        )

    assert at_every_line(context, (Pinned,), prepare) > 10


def test_allocations_in_order(context: Any) -> None:
    attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT

    def prepare() -> tuple[Any, Any, Any]:
        first, second = int(ok(cuda.cuMemAlloc(4))), int(ok(cuda.cuMemAlloc(4)))

        def finalize() -> None:
            ok(cuda.cuPointerGetAttribute(attribute, first))
            ok(cuda.cuMemFree(first))

        def check() -> None:
            assert cuda.cuPointerGetAttribute(attribute, first)[0] == R.CUDA_ERROR_INVALID_VALUE
            ok(cuda.cuMemFree(second))

        return lambda: ok(cuda.cuPointerGetAttribute(attribute, second)), finalize, check

    assert at_every_line(context, (Allocations,), prepare) > 3


@pytest.mark.parametrize("call", ["cuUserObjectRetain", "cuUserObjectRelease"])
def test_finalizers_release_user_objects(context: Any, call: str) -> None:
    ended = threading.Event()
    destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: ended.set())
    address = ctypes.cast(destroy, ctypes.c_void_p).value

    def prepare() -> tuple[Any, Any, Any]:
        ended.clear()
        item = ok(cuda.cuUserObjectCreate(7, address, 2, 1))

        def check() -> None:
            if call == "cuUserObjectRetain":
                assert not ended.is_set()
                ok(cuda.cuUserObjectRelease(item, 2))
            assert ended.wait(SECONDS)

        return lambda: ok(getattr(cuda, call)(item, 1)), lambda: ok(cuda.cuUserObjectRelease(item, 1)), check

    assert at_every_line(context, (UserObject,), prepare) > 3
