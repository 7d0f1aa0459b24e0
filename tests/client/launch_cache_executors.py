"""Real executors, contexts and kernels for launches of both kinds, native ones and Python's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from attrs import define, field

from pympsd_client import driver as cuda
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import callback_threads, host_callbacks, launch_cache
from pympsd_client._connect.private_executor import PrivateExecutors
from pympsd_client._objects import launch as launch_module
from pympsd_client._objects.context import Connection, contexts
from pympsd_client._objects.process import process
from pympsd_client._objects.thread_local import this_thread
from tests.client.conftest import ok, started
from tests.client.ring_area import extension
from tests.client.test_client_streams import PTX


@define(eq=False)
class Launches:
    """Which launches were Python's. ``native``: whether the others may be native ones."""

    native: bool
    in_python: list[int] = field(factory=list)

    def familiar(self, *arguments: Any) -> tuple[Any, ...]:
        """Launch three times, so that the same launch is a native one from now on; return the arguments."""
        for _ in range(2):
            ok(cuda.cuLaunchKernel(*arguments))
        self.expect_familiar(*arguments)
        return arguments

    def expect_familiar(self, *arguments: Any) -> None:
        """Launch once more; it must be a native one."""
        before = len(self.in_python)
        ok(cuda.cuLaunchKernel(*arguments))
        assert (len(self.in_python) == before) == self.native


@pytest.fixture(scope="module")
def executors() -> Iterator[PrivateExecutors]:
    """Two devices with native workers, which have a ring."""
    extension()
    if not launch_cache.is_native():
        pytest.skip(f"{launch_cache.CHOICE} has all launches be Python's")
    connection = started("2xH200", "native")
    yield connection
    connection.close()


@pytest.fixture(params=[True, False], ids=["native", "python"])
def launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Every test passes with Python's launches too."""
    watched = Launches(request.param)
    real = launch_module.launch

    def launch(*arguments: Any) -> None:
        watched.in_python.append(1)
        real(*arguments)

    monkeypatch.setattr(launch_module, "launch", launch)
    monkeypatch.setattr(process, "calls_back", False)  # another test may have had a host function
    monkeypatch.setattr(callback_threads, "IDLE_S", 0.02)
    monkeypatch.setattr(host_callbacks, "IDLE_S", 0.02)
    if not watched.native:
        monkeypatch.setattr(launch_module, "launcher", lambda: None)
    launch_cache.forget()
    return watched


@pytest.fixture
def devices(
    launches: Launches, executors: PrivateExecutors, fresh_process: Callable[[Connection], None]
) -> Iterator[PrivateExecutors]:
    """CUDA initialised on them; contexts left over are destroyed."""
    yield from _initialised(executors, fresh_process)


@pytest.fixture
def mortal(launches: Launches, fresh_process: Callable[[Connection], None]) -> Iterator[PrivateExecutors]:
    """CUDA initialised on a device of the test's own, whose executor may end."""
    extension()
    if not launch_cache.is_native():
        pytest.skip(f"{launch_cache.CHOICE} has all launches be Python's")
    connection = started("1xH200", "native")
    try:
        yield from _initialised(connection, fresh_process)
    finally:
        connection.close()


def _initialised(
    executors: PrivateExecutors, fresh_process: Callable[[Connection], None]
) -> Iterator[PrivateExecutors]:
    fresh_process(executors)
    yield executors
    this_thread.streams.handles.clear()
    for context in tuple(contexts.values()):
        with contextlib.suppress(CudaError):  # its executor may have ended
            context.close(executors)


TRAP = b".visible .entry trapped()\n{\n    trap;\n    ret;\n}\n"
ONE = (1, 1, 1, 1, 1, 1, 0)
NOTHING = ((), ())


class Counter:
    """A kernel that counts how often it ran, in the current context."""

    def __init__(self) -> None:
        self.module = ok(cuda.cuModuleLoadData(PTX + TRAP))
        self.function = ok(cuda.cuModuleGetFunction(self.module, b"count"))
        self._address, _ = ok(cuda.cuModuleGetGlobal(self.module, b"counter"))
        self._start = self._read()

    def on(self, stream: Any) -> tuple[Any, ...]:
        """Return the arguments of a launch in a stream."""
        return (self.function, *ONE, stream, NOTHING, 0)

    @property
    def count(self) -> int:
        """How often it ran, all launches so far included."""
        ok(cuda.cuCtxSynchronize())
        return self._read() - self._start

    def _read(self) -> int:
        back = np.zeros(1, dtype=np.uint32)
        ok(cuda.cuMemcpyDtoH(back, self._address, 4))
        return int(back[0])


@pytest.fixture
def context(devices: PrivateExecutors) -> Any:
    """A context, current to the test's thread, on device 0."""
    return ok(cuda.cuCtxCreate(None, 0, 0))


@pytest.fixture
def counter(context: Any) -> Counter:
    """The counting kernel in that context."""
    return Counter()


@pytest.fixture
def stream(context: Any) -> Any:
    """A stream that does not wait for the default stream."""
    return ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
