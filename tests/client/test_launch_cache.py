"""Repeated launches as a program and a (fake) executor see them: the same records as without the launch cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from attrs import define
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import wait_until

from pympsd.wire.module_layout import FunctionLayout, ModuleLayout
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.bindings import CUdeviceptr
from pympsd_client._arguments.errors import CudaError, connection_lost
from pympsd_client._connect.connection import Connection
from tests.client.conftest import ok
from tests.client.fake_executor import OPCODES, FakeExecutor
from tests.client.launch_cache_executors import ONE, Launches, launches
from tests.client.launcher_rig import SECONDS, TYPES, Number, extension, run_python

EXAMPLES = settings.default.max_examples  # fewer if the long tests are left out

__all__ = ["launches"]

R = cuda.CUresult
NAMES = (
    "f", "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes", "hStream",
    "kernelParams", "extra",
)  # fmt: skip

# --- the choice of PYMPSD_LAUNCHES

SAY = """
import inspect
from pympsd_client import driver
launch = driver.cuLaunchKernel
print(inspect.isbuiltin(launch), launch.__name__, "Start a kernel" in launch.__doc__)
"""
WITHOUT = "import sys; sys.modules['pympsd_client.native._launches'] = None\n"
INIT = """
from pympsd_client import driver, last_error
print(driver.cuInit(0)[0].name, last_error())
"""


def test_python_never_loads_the_extension() -> None:
    done = run_python(
        SAY + "import sys; print(*[name for name in sys.modules if '_launches' in name])", PYMPSD_LAUNCHES="python"
    )
    assert (done.returncode, done.stdout) == (0, "False cuLaunchKernel True\n\n"), done.stderr


@pytest.mark.parametrize("choice", [{}, *({"PYMPSD_LAUNCHES": given} for given in ("", "auto", "native"))], ids=str)
def test_the_extension_is_used_when_it_is_there(choice: dict[str, str]) -> None:
    extension()
    done = run_python(SAY, **choice)
    assert (done.returncode, done.stdout) == (0, "True cuLaunchKernel True\n"), done.stderr


@pytest.mark.parametrize("choice", [{}, {"PYMPSD_LAUNCHES": "auto"}], ids=str)
def test_without_the_extension_launches_are_made_in_python(choice: dict[str, str]) -> None:
    done = run_python(WITHOUT + SAY, **choice)
    assert (done.returncode, done.stdout) == (0, "False cuLaunchKernel True\n"), done.stderr


def test_cuinit_fails_without_the_requested_extension() -> None:
    done = run_python(WITHOUT + INIT, PYMPSD_LAUNCHES="native")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CUDA_ERROR_NOT_SUPPORTED PYMPSD_LAUNCHES is native and launches are Python's here")
    assert "install pympsd on a machine with a C compiler and Python's headers" in done.stdout


@pytest.mark.parametrize("choice", ["Native", "c", "python "])
def test_cuinit_refuses_an_unknown_choice_by_name(choice: str) -> None:
    done = run_python(INIT, PYMPSD_LAUNCHES=choice)
    output = f"CUDA_ERROR_INVALID_VALUE PYMPSD_LAUNCHES must be one of auto, native, python, not {choice!r}\n"
    assert (done.returncode, done.stdout) == (0, output), done.stderr


# --- an executor that takes launches


def _size(ctype: Any) -> int:
    return 8 if ctype is None else ctypes.sizeof(ctype)


@define(eq=False)
class Launcher:
    """A context of a fake executor, and kernels in it."""

    executor: FakeExecutor
    launches: Launches

    def kernel(self, types: tuple[Any, ...], gaps: list[int] | None = None) -> Any:
        """Load a kernel with parameters of these types; ``gaps``: bytes before each, beyond its alignment."""
        end, parameters = 0, []
        for ctype, gap in zip(types, gaps or [0] * len(types), strict=True):
            begin = -(-(end + gap) // _size(ctype)) * _size(ctype)
            end = begin + _size(ctype)
            parameters.append((begin, _size(ctype)))
        self.executor.layout = ModuleLayout(
            (FunctionLayout("kernel", tuple(parameters), end, {"SHARED_SIZE_BYTES": 0}),), ()
        )
        return ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(b"an image")), b"kernel"))

    def familiar(self, types: tuple[Any, ...], gaps: list[int] | None = None) -> Any:
        """Load such a kernel and launch it often enough to have a plan; return it."""
        kernel = self.kernel(types, gaps)
        values = tuple(1 if ctype is None else ctype(1).value for ctype in types)
        self.launches.familiar(kernel, *ONE, 0, (values, types), 0)
        return kernel

    def result_of(self, *arguments: Any, **keywords: Any) -> tuple[Any, list[bytes]]:
        """Launch; return what it returned or the type of what it raised, and the records without their numbers."""
        ok(cuda.cuCtxSynchronize())
        self.executor.seen.clear()
        try:
            answer: Any = cuda.cuLaunchKernel(*arguments, **keywords)
        except Exception as error:
            answer = type(error)
        ok(cuda.cuCtxSynchronize())
        return answer, [item.body for item in self.executor.seen if item.opcode == OPCODES["LAUNCH"]]

    def expect_the_same(self, kernel: Any, types: tuple[Any, ...], values: tuple[Any, ...], plain: bool) -> None:
        """Compare a launch with one by keywords, which the cache never takes; if ``plain``, it takes the first."""
        call = (kernel, *ONE, 0, (values, types), 0)
        before = self.launches.slow
        repeated = self.result_of(*call)
        if plain and self.launches.native:
            assert self.launches.slow == before
        assert repeated == self.result_of(**dict(zip(NAMES, call, strict=True)))


@pytest.fixture
def launcher(
    make_executor: Callable[..., FakeExecutor], fresh_process: Callable[[Connection], None], launches: Launches
) -> Launcher:
    """A context, current to the test's thread, whose records go by a ring."""
    executor = make_executor(ring=True)
    fresh_process(executor)
    ok(cuda.cuCtxCreate(None, 0, 0))
    return Launcher(executor, launches)


# --- values


class Index:
    """A number for struct, and for int() too."""

    def __index__(self) -> int:
        return 3


EDGES = [
    sign * (1 << bits) + off for bits in (7, 8, 15, 16, 31, 32, 63, 64, 128) for sign in (1, -1) for off in (-1, 0, 1)
]
SINGLE = float(np.finfo(np.float32).max)
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from(EDGES),
    st.floats(),
    st.booleans(),
    st.none(),
    st.sampled_from(["", "5", "x", b"5", (), 10**400, 1 << 1023, -(1 << 1024), SINGLE, 2 * SINGLE, -1, -1.0]),
    st.sampled_from([np.int8(-1), np.int32(7), np.uint64((1 << 64) - 1), np.float32(1.5), np.float64(2.5), np.True_]),
    st.sampled_from([ctypes.c_int(1), ctypes.c_float(1), ctypes.c_void_p(), R.CUDA_ERROR_UNKNOWN, Index()]),
    st.integers(0, (1 << 64) - 1).map(CUdeviceptr),
    st.sampled_from(EDGES).map(Number),
)


def _is_real(ctype: Any) -> bool:
    return ctype in (ctypes.c_float, ctypes.c_double)


def _limits(ctype: Any) -> tuple[int, int]:
    bits = 8 * _size(ctype)
    signed = ctype not in (None, ctypes.c_void_p) and ctype(-1).value < 0
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def _plain(ctype: Any) -> st.SearchStrategy[Any]:
    """Values that the cache takes."""
    if ctype is ctypes.c_bool:
        return st.booleans()
    if _is_real(ctype):
        # No signalling NaN: what a processor makes of it is not Python's to say.
        numbers = st.floats(width=32 if ctype is ctypes.c_float else 64).map(
            lambda number: number if number == number else np.nan
        )
        return st.one_of(numbers, st.integers(-(1 << 100), 1 << 100), st.sampled_from([SINGLE, -SINGLE]))
    least, most = _limits(ctype)
    whole = st.one_of(st.integers(least, most), st.sampled_from([least, most]))
    return st.one_of(whole, whole.map(CUdeviceptr), whole.map(Number)) if ctype is None else whole


@st.composite
def _launches(draw: st.DrawFn) -> tuple[tuple[Any, ...], list[int], tuple[Any, ...], bool]:
    """Types, gaps, values, and whether the cache takes them all."""
    types = tuple(draw(st.lists(st.sampled_from(TYPES), max_size=24)))
    gaps = draw(st.lists(st.integers(0, 9), min_size=len(types), max_size=len(types)))
    odd = draw(st.integers(0, 2 * len(types)))  # one value may be anything, so that it decides
    values = [draw(ANYTHING if place == odd else _plain(ctype)) for place, ctype in enumerate(types)]
    return types, gaps, tuple(values), odd >= len(types)


@settings(max_examples=4 * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_launches())
def test_values_are_packed_as_without_the_cache(
    launcher: Launcher, launch: tuple[tuple[Any, ...], list[int], tuple[Any, ...], bool]
) -> None:
    types, gaps, values, plain = launch
    launcher.expect_the_same(launcher.familiar(types, gaps), types, values, plain)


@pytest.mark.parametrize("ctype", TYPES, ids=lambda ctype: getattr(ctype, "__name__", "None"))
def test_every_value_at_the_edges(launcher: Launcher, ctype: Any) -> None:
    types = (ctypes.c_ubyte, ctype, ctypes.c_ubyte)
    kernel = launcher.familiar(types)
    for value in (*EDGES, 0, 1, -1):
        plain = ctype is not ctypes.c_bool and not _is_real(ctype) and _limits(ctype)[0] <= value <= _limits(ctype)[1]
        launcher.expect_the_same(kernel, types, (255, value, 254), plain or ctype is ctypes.c_double)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        *((value, True) for value in (SINGLE, -SINGLE, np.inf, -np.inf, 1e-46, -0.0, -1.0, -1, 16777217)),
        *((value, False) for value in (3.5e38, -1e300)),
    ],
)
def test_singles_at_the_edges(launcher: Launcher, value: float, fits: bool) -> None:
    types = (ctypes.c_float,)
    launcher.expect_the_same(launcher.familiar(types), types, (value,), fits)


@pytest.mark.parametrize("value", [None, "5", "x", 10**400, -1, 1 << 64, float("nan"), Index(), object(), []])
def test_what_may_be_no_handle_takes_the_slow_path(launcher: Launcher, value: Any) -> None:
    kernel = launcher.familiar((None,))
    launcher.launches.reset()
    launcher.expect_the_same(kernel, (None,), (value,), False)
    assert launcher.launches.slow == 2


def test_a_launch_that_no_plan_fits_always_counts_as_slow(launcher: Launcher) -> None:
    kernel = launcher.familiar((None,))
    launcher.launches.reset()
    for _ in range(512):  # also those at which a launch sees whether a fault was reported
        launcher.result_of(kernel, *ONE, 0, ((object(),), (None,)), 0)
    assert launcher.launches.slow == 512


def test_handles_are_taken_as_int_takes_them(launcher: Launcher) -> None:
    kernel = launcher.familiar((None,))
    for value in (0, 5, True, CUdeviceptr(9), Number((1 << 64) - 1), R.CUDA_ERROR_UNKNOWN, np.uint64(8)):
        launcher.expect_the_same(kernel, (None,), (value,), True)


# --- the ring


def test_an_executor_that_sleeps_is_woken(launcher: Launcher) -> None:
    kernel = launcher.familiar((ctypes.c_uint,))
    ok(cuda.cuCtxSynchronize())
    # A call that waits rings the bell a second time, and its answer may come before that bell is counted.
    wait_until(lambda: not launcher.executor.has_unread_bells)
    for value in range(5):
        bells, seen = launcher.executor.bells, len(launcher.executor.seen)
        launcher.launches.expect_familiar(kernel, *ONE, 0, ((value,), (ctypes.c_uint,)), 0)
        wait_until(lambda seen=seen: len(launcher.executor.seen) == seen + 1)  # type: ignore[misc]
        wait_until(lambda bells=bells: launcher.executor.bells == bells + 1)  # type: ignore[misc]


def test_a_full_ring_holds_launches_up(launcher: Launcher) -> None:
    kernel, count, executor = launcher.familiar(()), 10_000, launcher.executor
    ok(cuda.cuCtxSynchronize())
    context = ok(cuda.cuCtxGetCurrent())
    executor.seen.clear()
    executor.reading.clear()

    def launch() -> int:
        ok(cuda.cuCtxSetCurrent(context))
        return [cuda.cuLaunchKernel(kernel, *ONE, 0, ((), ()), 0) for _ in range(count)].count((R.CUDA_SUCCESS,))

    with ThreadPoolExecutor(1) as thread:
        launched = thread.submit(launch)
        try:
            wait_until(lambda: executor.ring_room < 200)
            assert not launched.done()
        finally:
            executor.reading.set()
        assert launched.result(SECONDS) == count
    ok(cuda.cuCtxSynchronize())
    assert [item.opcode for item in executor.seen].count(OPCODES["LAUNCH"]) == count


# --- the executor's end


def test_after_the_executors_end_each_launch_returns_its_error(launcher: Launcher) -> None:
    kernel = launcher.familiar(())
    launcher.executor.hang_up()
    gone = (R.CUDA_ERROR_MPS_RPC_FAILURE,)
    assert cuda.cuCtxSynchronize() == gone
    message = last_error()
    for _ in range(3):
        assert cuda.cuLaunchKernel(kernel, *ONE, 0, ((), ()), 0) == gone
        assert last_error() == message


def test_a_launch_during_the_handling_of_an_end_gets_no_plan(
    make_executor: Callable[..., FakeExecutor], fresh_process: Callable[[Connection], None], launches: Launches
) -> None:
    call: list[tuple[Any, ...]] = []

    def on_end(reason: str) -> CudaError:
        for _ in range(3):  # as another thread may
            cuda.cuLaunchKernel(*call[0])
        return connection_lost(reason)

    executor = make_executor(ring=True, on_end=on_end)
    fresh_process(executor)
    ok(cuda.cuCtxCreate(None, 0, 0))
    call.append((Launcher(executor, launches).familiar(()), *ONE, 0, ((), ()), 0))
    executor.refuse_bells()
    executor.hang_up()
    assert cuda.cuCtxSynchronize() == (R.CUDA_ERROR_MPS_RPC_FAILURE,)
    assert cuda.cuLaunchKernel(*call[0]) == (R.CUDA_ERROR_MPS_RPC_FAILURE,)
