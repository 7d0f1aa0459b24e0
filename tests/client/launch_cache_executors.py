"""Real executors, contexts and kernels for launches with and without the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from attrs import define, field

from pympsd_client import driver as cuda
from pympsd_client._command_stream import host_callbacks, launch_cache
from pympsd_client._command_stream import host_callbacks as callback_threads
from pympsd_client._connect.connection import Connection
from pympsd_client._connect.private_executor import PrivateExecutors
from pympsd_client._objects.code import launch as launch_module
from pympsd_client._objects.context import contexts, this_thread
from tests.client.conftest import ok, start_one
from tests.client.launcher_rig import extension
from tests.client.test_client_streams import PTX


@define(eq=False)
class Launches:
    """The launches that took the slow path. ``native``: whether repeated ones skip it."""

    native: bool
    _before: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from now on."""
        self._before = _misses()

    @property
    def slow(self) -> int:
        """Return the number of launches that took the slow path."""
        return _misses() - self._before

    def familiar(self, *arguments: Any) -> tuple[Any, ...]:
        """Launch three times, so that the cache has a plan for it from now on; return the arguments."""
        for _ in range(2):
            ok(cuda.cuLaunchKernel(*arguments))
        self.expect_familiar(*arguments)
        return arguments

    def expect_familiar(self, *arguments: Any) -> None:
        """Launch once more; it must skip the slow path."""
        before = self.slow
        ok(cuda.cuLaunchKernel(*arguments))
        assert (self.slow == before) == self.native


def _misses() -> int:
    cache = launch_cache.launcher()
    assert cache is not None
    return cache.misses


def require_cache() -> None:
    """Skip the test when this process has no launch cache."""
    extension()
    if not launch_cache.is_native():
        pytest.skip("PYMPSD_LAUNCHES has all launches take the slow path")


@pytest.fixture(scope="module")
def executors() -> Iterator[PrivateExecutors]:
    """Two devices with native workers, which have a ring."""
    require_cache()
    connection = start_one("2xH200", "native")
    yield connection
    connection.close()


@pytest.fixture(params=[True, False], ids=["native", "python"])
def launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Every test passes without the cache too."""
    require_cache()
    monkeypatch.setattr(callback_threads, "IDLE_SECONDS", 0.02)
    monkeypatch.setattr(host_callbacks, "IDLE_SECONDS", 0.02)
    if not request.param:
        monkeypatch.setattr(launch_module, "launcher", lambda: None)
    launch_cache.invalidate()
    return Launches(request.param)


@pytest.fixture
def devices(
    launches: Launches, executors: PrivateExecutors, fresh_process: Callable[[Connection], None]
) -> Iterator[PrivateExecutors]:
    """CUDA initialised on them; contexts left over are destroyed."""
    fresh_process(executors)
    yield executors
    this_thread.streams.handles.clear()
    for context in tuple(contexts.values()):
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
        """Return how often it ran, all launches until now included."""
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
