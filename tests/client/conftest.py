"""Fake and real executors for the client's tests, and a process state that each test finds as new."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError, fail
from pympsd_client._command_stream import host_callbacks
from pympsd_client._command_stream.launch_cache import is_native
from pympsd_client._connect.connection import Connection
from pympsd_client._connect.private_executor import PrivateExecutors
from pympsd_client._objects.arrays.array import arrays, mipmapped_arrays
from pympsd_client._objects.arrays.texture import surfaces, textures
from pympsd_client._objects.code.library import kernels, libraries
from pympsd_client._objects.code.link import links
from pympsd_client._objects.code.module import functions, modules
from pympsd_client._objects.context import contexts, lost, this_thread
from pympsd_client._objects.event import events
from pympsd_client._objects.memory.allocations import allocations
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import streams
from tests.client.fake_executor import FakeExecutor

WITH_NATIVE_WORKERS: Final = frozenset(
    {
        "test_client_arrays",
        "test_client_capture",
        "test_client_graphs",
        "test_client_graphs_of_devices",
        "test_client_libraries",
        "test_client_memory",
        "test_client_modules",
        "test_client_occupancy",
        "test_client_peer_access",
        "test_client_pinned",
        "test_client_pools",
        "test_client_region_copies",
        "test_client_settings",
        "test_client_streams",
    }
)
"""The files whose tests run a second time with native workers, to which records go by the ring."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of WITH_NATIVE_WORKERS with both kinds of workers."""
    if "private" in metafunc.fixturenames:
        telling = metafunc.module.__name__.rpartition(".")[2] in WITH_NATIVE_WORKERS
        kinds = ("auto", "native") if telling else ("auto",)
        metafunc.parametrize("private", kinds, indirect=True, scope="session")


@pytest.fixture(scope="module", autouse=True)
def threads_leave_soon() -> Iterator[None]:
    """Let the threads for host functions end soon after a test, which is checked for leaked threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_callbacks, "IDLE_SECONDS", 0.02)
        yield


@pytest.fixture
def make_executor() -> Iterator[Callable[..., FakeExecutor]]:
    """Make fake executors that are ended after the test."""
    executors: list[FakeExecutor] = []

    def make(**settings: Any) -> FakeExecutor:
        executors.append(FakeExecutor(**settings))
        return executors[-1]

    yield make
    for executor in executors:
        executor.close()
    contexts.clear()
    lost.clear()


@pytest.fixture
def executor(make_executor: Callable[..., FakeExecutor]) -> FakeExecutor:
    """A fake executor that answers every record with success."""
    return make_executor()


@pytest.fixture
def fresh_process() -> Iterator[Callable[[Connection], None]]:
    """Pretend that cuInit has reached a connection; afterwards the process is as before cuInit."""
    before = process.connection, process.primaries
    tables: list[dict[int, Any]] = [contexts, libraries, kernels, links]
    tables += [
        *(
            item._objects
            for item in (
                modules,
                functions,
                streams,
                events,
                allocations,
                arrays,
                mipmapped_arrays,
                textures,
                surfaces,
            )
        )
    ]
    kept, lost_before = [dict(table) for table in tables], list(lost)
    lost.clear()
    stack = list(this_thread.stack)
    this_thread.stack.clear()
    process.connection, process.primaries = None, {}
    process.calls_back = False
    yield process._set_connection
    process.connection, process.primaries = before
    process.native, process.forked = None, False
    for table, was in zip(tables, kept, strict=True):
        table.clear()
        table.update(was)
    lost[:] = lost_before
    this_thread.stack[:] = stack
    this_thread.streams.handles.clear()
    fail(CudaError(0, ""), 0)  # no message of an earlier failure


@pytest.fixture
def press_ctrl_c() -> Iterator[Callable[[], None]]:
    """Interrupt the main thread as Ctrl-C does, again until it notices: just before a wait it would not."""
    noticed = threading.Event()

    def notice(*_: object) -> None:
        if not noticed.is_set():
            noticed.set()
            raise KeyboardInterrupt

    def press() -> None:
        while not noticed.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            noticed.wait(0.01)

    before = signal.signal(signal.SIGINT, notice)
    yield press
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def private(request: pytest.FixtureRequest) -> Iterator[PrivateExecutors]:
    """Two emulated devices on private executors: started once for each kind of workers."""
    workers = getattr(request, "param", "auto")
    if workers == "native" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler, so there are no native workers")
    connection = start_one("2xH200", workers)
    yield connection
    connection.close()


def start_one(devices: str, workers: str) -> PrivateExecutors:
    """Return a connection whose executors all run, so that no test has to start them."""
    chosen = {"PYMPSD_EMULATED_DEVICES": devices, "PYMPSD_BACKEND": "emulated", "PYMPSD_WORKER": workers}
    connection = PrivateExecutors(chosen)
    for device in connection.devices:
        opened = connection.open_context(device, 0)
        connection.close_context(device, opened.context_id)
        assert (opened.transport.writer is not None) == (workers == "native" and is_native())
    return connection


@pytest.fixture
def devices(private: PrivateExecutors, fresh_process: Callable[[Connection], None]) -> Iterator[None]:
    """CUDA initialised on two real devices; contexts left over are destroyed."""
    fresh_process(private)
    yield
    this_thread.streams.handles.clear()
    for context in tuple(contexts.values()):
        context.close(private)


@pytest.fixture
def context(devices: None) -> Any:
    """A context, current to the test's thread, on device 0."""
    return ok(cuda.cuCtxCreate(None, 0, 0))


def ok(answer: tuple[Any, ...]) -> Any:
    """Return a call's output, or its outputs; fail with the readable message when it failed."""
    assert answer[0] == cuda.CUresult.CUDA_SUCCESS, f"{answer[0].name}: {last_error()}"
    return answer[1] if len(answer) == 2 else answer[1:]
