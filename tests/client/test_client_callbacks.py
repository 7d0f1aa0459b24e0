"""Host functions and stream callbacks: in this process, in stream order, without holding up other streams."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from attrs import define, evolve, field
from processes import wait_until

from pympsd.wire.records import FLAG_STICKY, Record
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import host_callbacks, operations
from pympsd_client._connect.connection import Connection, VisibleDevice
from pympsd_client._connect.session import Session
from pympsd_client._objects.context import Context, contexts, this_thread
from pympsd_client._objects.memory import allocations as device_memory
from pympsd_client._objects.process import process
from tests.client.conftest import ok
from tests.client.fake_executor import OPCODES, PROPERTIES, FakeExecutor
from tests.client.test_client_process import _run
from tests.client.test_client_streams import Kernels

R = cuda.CUresult
SECONDS = 30.0
"""The absolute limit of every wait."""
HOST_FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
STREAM_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


@define(eq=False)
class Slow:
    """A host function that begins, and ends when it is released."""

    begun: threading.Event = field(factory=threading.Event)
    free: threading.Event = field(factory=threading.Event)

    def __call__(self, data: Any) -> None:
        self.begun.set()
        assert self.free.wait(SECONDS)


@pytest.fixture
def slow() -> Iterator[Slow]:
    """A slow function, released at the end of the test at the latest."""
    function = Slow()
    yield function
    function.free.set()


@pytest.fixture
def kernels(context: Any) -> Kernels:
    """The kernels of the stream tests."""
    return Kernels()


@pytest.fixture
def streams(context: Any) -> list[Any]:
    """Two streams that do not wait for the default stream."""
    return [ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2)]


# --- what is taken for a function


def test_a_c_function_is_called_by_its_address(streams: list[Any]) -> None:
    seen: list[int | None] = []
    function = HOST_FN(seen.append)
    address = ctypes.cast(function, ctypes.c_void_p).value
    data = np.zeros(4, dtype=np.uint32)
    for fn in (address, cuda.CUhostFn(address), function):
        ok(cuda.cuLaunchHostFunc(streams[0], fn, 0x1234))
    ok(cuda.cuLaunchHostFunc(streams[0], address, data))
    ok(cuda.cuLaunchHostFunc(streams[0], address, None))
    ok(cuda.cuStreamSynchronize(streams[0]))
    assert seen == [0x1234, 0x1234, 0x1234, data.ctypes.data, None]


def test_a_c_function_of_a_library_runs(streams: list[Any]) -> None:
    libc = ctypes.CDLL(None)
    libc.srand(1234)
    expected = libc.rand()
    ok(cuda.cuLaunchHostFunc(streams[0], libc.srand, 1234))
    ok(cuda.cuStreamSynchronize(streams[0]))
    assert libc.rand() == expected


def test_a_stream_callback_gets_stream_status_and_data(streams: list[Any]) -> None:
    seen: list[Any] = []
    function = STREAM_CALLBACK(lambda *arguments: seen.append(arguments))
    address = ctypes.cast(function, ctypes.c_void_p).value
    ok(cuda.cuStreamAddCallback(streams[0], cuda.CUstreamCallback(address), 77, 0))
    ok(cuda.cuStreamSynchronize(streams[0]))
    assert seen == [(int(streams[0]), 0, 77)]


def test_a_callable_is_called_with_its_data(streams: list[Any]) -> None:
    seen: list[Any] = []
    data = {"any": "object"}
    ok(cuda.cuLaunchHostFunc(streams[0], seen.append, data))
    ok(cuda.cuStreamAddCallback(streams[0], lambda *arguments: seen.append(arguments), data, 0))
    ok(cuda.cuStreamSynchronize(streams[0]))
    assert seen[0] is data
    stream, status, passed = seen[1]
    assert (int(stream), status, passed is data) == (int(streams[0]), R.CUDA_SUCCESS, True)


def test_an_object_that_is_not_a_function_is_refused(streams: list[Any]) -> None:
    for call in (
        lambda fn: cuda.cuLaunchHostFunc(streams[0], fn, 0),
        lambda fn: cuda.cuStreamAddCallback(streams[0], fn, 0, 0),
    ):
        for nothing in (0, None, cuda.CUhostFn(0)):
            assert call(nothing) == (R.CUDA_ERROR_INVALID_VALUE,)
            assert "NULL" in last_error()
        with pytest.raises(TypeError, match="an integer is required"):
            call("name")
    with pytest.raises(TypeError, match="host pointer"):
        cuda.cuLaunchHostFunc(streams[0], HOST_FN(id), {})
    assert cuda.cuStreamAddCallback(streams[0], print, 0, 1) == (R.CUDA_ERROR_INVALID_VALUE,)
    assert cuda.cuLaunchHostFunc(12345, print, 0) == (R.CUDA_ERROR_INVALID_HANDLE,)
    ok(cuda.cuStreamQuery(streams[0]))


# --- order


def test_a_function_runs_after_earlier_work_and_before_later_work(
    kernels: Kernels, streams: list[Any], slow: Slow
) -> None:
    stream, other = streams
    kernels.hold_up(stream)
    kernels.store(1, stream)
    ok(cuda.cuLaunchHostFunc(stream, slow, 0))
    kernels.store(2, stream)
    assert not slow.begun.is_set()
    kernels.let_go(other)
    assert slow.begun.wait(SECONDS)
    assert kernels.read(other) == 1
    assert cuda.cuStreamQuery(stream) == (R.CUDA_ERROR_NOT_READY,)
    slow.free.set()
    ok(cuda.cuStreamSynchronize(stream))
    assert kernels.read(other) == 2


def test_copies_and_functions_run_in_order(kernels: Kernels, streams: list[Any]) -> None:
    seen: list[int] = []
    back = np.zeros(1, dtype=np.uint32)
    for value in range(20):
        kernels.store(value, streams[0])
        ok(cuda.cuMemcpyDtoHAsync(back, kernels.result, 4, streams[0]))
        ok(cuda.cuLaunchHostFunc(streams[0], lambda _: seen.append(int(back[0])), 0))
        ok(cuda.cuStreamSynchronize(streams[0]))
    assert seen == list(range(20))


def test_functions_of_a_stream_run_in_order(streams: list[Any]) -> None:
    seen: list[int] = []
    inside = threading.Semaphore()

    def function(number: int) -> None:
        assert inside.acquire(blocking=False)
        seen.append(number)
        inside.release()

    for number in range(300):
        ok(cuda.cuLaunchHostFunc(streams[0], function, number))
    ok(cuda.cuStreamSynchronize(streams[0]))
    assert seen == list(range(300))


def test_a_slow_function_holds_up_no_other_stream(streams: list[Any], slow: Slow) -> None:
    ok(cuda.cuLaunchHostFunc(streams[0], slow, 0))
    assert slow.begun.wait(SECONDS)
    seen: list[int] = []
    more = [ok(cuda.cuStreamCreate(1)) for _ in range(3)]
    for number, stream in enumerate((streams[1], *more)):
        ok(cuda.cuLaunchHostFunc(stream, seen.append, number))
        ok(cuda.cuStreamSynchronize(stream))
    assert seen == [0, 1, 2, 3]
    assert cuda.cuStreamQuery(streams[0]) == (R.CUDA_ERROR_NOT_READY,)


def test_functions_of_several_streams_run_at_the_same_time(streams: list[Any]) -> None:
    met = threading.Barrier(2, timeout=SECONDS)
    for stream in streams:
        ok(cuda.cuLaunchHostFunc(stream, lambda _: met.wait(), 0))
    ok(cuda.cuCtxSynchronize())
    assert not met.broken


def test_the_default_stream_and_events_wait_for_a_function(streams: list[Any], slow: Slow) -> None:
    blocking, event = ok(cuda.cuStreamCreate(0)), ok(cuda.cuEventCreate(0))
    ok(cuda.cuLaunchHostFunc(blocking, slow, 0))
    ok(cuda.cuEventRecord(event, blocking))
    ok(cuda.cuStreamWaitEvent(streams[0], event, 0))
    assert slow.begun.wait(SECONDS)
    not_ready = (R.CUDA_ERROR_NOT_READY,)
    assert cuda.cuStreamQuery(0) == cuda.cuEventQuery(event) == cuda.cuStreamQuery(streams[0]) == not_ready
    ok(cuda.cuStreamQuery(streams[1]))
    slow.free.set()
    ok(cuda.cuStreamSynchronize(0))
    ok(cuda.cuEventQuery(event))
    ok(cuda.cuStreamSynchronize(streams[0]))


@pytest.mark.parametrize("special", [0, 1, 2])
def test_functions_in_the_special_streams(context: Any, special: int) -> None:
    seen: list[Any] = []
    ok(cuda.cuStreamAddCallback(special, lambda *arguments: seen.append(arguments), 0, 0))
    ok(cuda.cuStreamSynchronize(special))
    assert [(int(stream), status) for stream, status, _ in seen] == [(special, R.CUDA_SUCCESS)]


def test_functions_on_two_devices(devices: None) -> None:
    seen: list[int] = []
    for device in (0, 1):
        ok(cuda.cuCtxCreate(None, 0, device))
        ok(cuda.cuLaunchHostFunc(0, seen.append, device))
        ok(cuda.cuCtxSynchronize())
    assert seen == [0, 1]


def test_threads_launch_into_one_stream(streams: list[Any], context: Any) -> None:
    seen: list[tuple[int, int]] = []

    def work(thread: int) -> None:
        ok(cuda.cuCtxSetCurrent(context))
        for number in range(100):
            ok(cuda.cuLaunchHostFunc(streams[0], seen.append, (thread, number)))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    ok(cuda.cuStreamSynchronize(streams[0]))
    assert len(seen) == 400
    for thread in range(4):
        assert [number for item, number in seen if item == thread] == list(range(100))


def test_more_work_than_the_executor_queues_may_follow_a_slow_function(
    kernels: Kernels, streams: list[Any], slow: Slow, context: Any
) -> None:
    ok(cuda.cuLaunchHostFunc(streams[0], slow, 0))
    assert slow.begun.wait(SECONDS)

    def post() -> None:
        ok(cuda.cuCtxSetCurrent(context))
        for value in range(40_000):
            ok(cuda.cuMemsetD32Async(kernels.result, value, 1, streams[0]))

    posting = threading.Thread(target=post)
    posting.start()
    # Watch for a while: at its limit the executor would not read that the function is done.
    posting.join(0.5)
    assert posting.is_alive()
    slow.free.set()
    posting.join(SECONDS)
    assert not posting.is_alive()
    assert kernels.read(streams[0]) == 39_999


# --- what a function may not do, and what becomes of its mistakes


def test_cuda_calls_in_a_function_are_not_permitted(streams: list[Any]) -> None:
    output: SimpleQueue[Any] = SimpleQueue()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: cuda.cuCtxGetCurrent(),
        lambda: cuda.cuMemAlloc(4),
        lambda: cuda.cuStreamQuery(streams[1]),
        lambda: cuda.cuCtxSynchronize(),
        lambda: cuda.cuLaunchHostFunc(streams[1], print, 0),
        lambda: cuda.cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0),
    )

    def function(*_: Any) -> None:
        for call in calls:
            output.put((call(), last_error()))

    ok(cuda.cuLaunchHostFunc(streams[0], function, 0))
    ok(cuda.cuStreamAddCallback(streams[0], function, 0, 0))
    ok(cuda.cuStreamSynchronize(streams[0]))
    for number in range(2 * len(calls)):
        answer, reason = output.get(timeout=SECONDS)
        assert answer[0] == R.CUDA_ERROR_NOT_PERMITTED
        assert answer[1:] == ((None,) if number % len(calls) < 2 else ())
        assert "must not make CUDA calls" in reason
    ok(cuda.cuStreamQuery(streams[1]))


def test_a_function_may_initialize_the_driver_and_ask_for_its_version(streams: list[Any]) -> None:
    """Recorded on a GPU."""
    output: SimpleQueue[Any] = SimpleQueue()
    ok(cuda.cuLaunchHostFunc(streams[0], lambda _: output.put((cuda.cuInit(0), cuda.cuDriverGetVersion())), 0))
    assert output.get(timeout=SECONDS) == ((R.CUDA_SUCCESS,), cuda.cuDriverGetVersion())


def test_an_exception_of_a_function_is_reported_and_the_stream_continues(
    streams: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda report: reported.append((report.exc_type, str(report.exc_value)))
    )

    def fails(error: BaseException) -> None:
        raise error

    in_c = HOST_FN(lambda _: fails(ValueError("in C")))
    ok(cuda.cuLaunchHostFunc(streams[0], fails, ValueError("plain")))
    ok(cuda.cuLaunchHostFunc(streams[0], in_c, 0))
    ok(cuda.cuStreamAddCallback(streams[0], lambda *_: sys.exit(3), 0, 0))
    seen: list[int] = []
    ok(cuda.cuLaunchHostFunc(streams[0], seen.append, 1))
    ok(cuda.cuStreamSynchronize(streams[0]))
    assert reported == [(ValueError, "plain"), (ValueError, "in C"), (SystemExit, "3")]
    assert seen == [1]


# --- errors


def test_after_a_fault_callbacks_get_its_error_and_functions_do_not_run(
    kernels: Kernels, streams: list[Any], slow: Slow
) -> None:
    output: SimpleQueue[Any] = SimpleQueue()
    seen: list[str] = []
    ok(cuda.cuLaunchHostFunc(streams[0], slow, 0))
    assert slow.begun.wait(SECONDS)
    ok(cuda.cuLaunchHostFunc(streams[0], seen.append, "host function"))
    for number in range(3):
        ok(cuda.cuStreamAddCallback(streams[0], lambda *arguments: output.put(arguments), number, 0))
    kernels.launch(b"store", (0x7000_0000_0000, 1), (ctypes.c_void_p, ctypes.c_uint), streams[1])
    assert cuda.cuStreamSynchronize(streams[1]) == (R.CUDA_ERROR_ILLEGAL_ADDRESS,)
    slow.free.set()
    for number in range(3):
        stream, status, data = output.get(timeout=SECONDS)
        assert (int(stream), status, data) == (int(streams[0]), R.CUDA_ERROR_ILLEGAL_ADDRESS, number)
    assert seen == []
    assert cuda.cuLaunchHostFunc(streams[0], print, 0) == (R.CUDA_ERROR_ILLEGAL_ADDRESS,)
    assert cuda.cuStreamAddCallback(streams[0], print, 0, 0) == (R.CUDA_ERROR_ILLEGAL_ADDRESS,)


def test_an_earlier_error_is_not_taken_by_a_function(
    kernels: Kernels, streams: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_memory, "check_range", lambda *_: None)  # so that the executor finds it
    ok(cuda.cuMemcpyDtoDAsync(int(kernels.result), 0x6000_0000_0000 + (1 << 39), 4, streams[0]))
    ok(cuda.cuLaunchHostFunc(streams[0], len, ""))
    assert cuda.cuStreamSynchronize(streams[0]) == (R.CUDA_ERROR_INVALID_VALUE,)
    ok(cuda.cuStreamSynchronize(streams[0]))


def test_destroying_a_context_does_not_wait_for_functions(context: Any, slow: Slow) -> None:
    output: SimpleQueue[Any] = SimpleQueue()
    ok(cuda.cuLaunchHostFunc(0, slow, 0))
    assert slow.begun.wait(SECONDS)
    ok(cuda.cuStreamAddCallback(0, lambda *arguments: output.put(arguments), 0, 0))
    ok(cuda.cuCtxDestroy(context))
    slow.free.set()
    assert output.get(timeout=SECONDS)[1] == R.CUDA_ERROR_CONTEXT_IS_DESTROYED
    ok(cuda.cuCtxCreate(None, 0, 0))
    ok(cuda.cuLaunchHostFunc(0, output.put, "again"))
    ok(cuda.cuCtxSynchronize())
    assert output.get(timeout=SECONDS) == "again"


def test_a_destroyed_stream_still_runs_its_functions(streams: list[Any], slow: Slow) -> None:
    output: SimpleQueue[Any] = SimpleQueue()
    ok(cuda.cuLaunchHostFunc(streams[0], slow, 0))
    ok(cuda.cuLaunchHostFunc(streams[0], output.put, 1))
    ok(cuda.cuStreamDestroy(streams[0]))
    slow.free.set()
    assert output.get(timeout=SECONDS) == 1
    ok(cuda.cuCtxSynchronize())


# --- the command stream, with a fake executor


@pytest.fixture
def fake(
    make_executor: Callable[..., FakeExecutor], fresh_process: Callable[[Connection], None]
) -> tuple[FakeExecutor, Context]:
    """A fake executor that announces nothing by itself, and its context, which is current."""
    executor = make_executor()
    executor.reply = lambda record: (
        None if record.opcode in (OPCODES["HOST_FUNCTION"], OPCODES["ROOM"]) else executor.succeed(record)
    )
    fresh_process(executor)
    context = executor.context()
    this_thread.stack.append(context)
    return executor, context


def records_of(executor: FakeExecutor, name: str) -> list[Record]:
    return [record for record in executor.seen if record.opcode == OPCODES[name]]


def test_callbacks_get_the_error_of_an_executors_end(fake: tuple[FakeExecutor, Context]) -> None:
    executor, context = fake
    output: SimpleQueue[Any] = SimpleQueue()
    ok(cuda.cuLaunchHostFunc(0, output.put, "never"))
    ok(cuda.cuStreamAddCallback(0, lambda *arguments: output.put(arguments), 0, 0))
    context.synchronize()
    executor.hang_up()
    assert output.get(timeout=SECONDS)[1] == R.CUDA_ERROR_MPS_RPC_FAILURE
    assert output.empty()
    assert cuda.cuLaunchHostFunc(0, output.put, "never") == (R.CUDA_ERROR_MPS_RPC_FAILURE,)


def test_after_an_orderly_close_no_function_runs(fake: tuple[FakeExecutor, Context]) -> None:
    executor, context = fake
    output: SimpleQueue[Any] = SimpleQueue()
    ok(cuda.cuStreamAddCallback(0, lambda *arguments: output.put(arguments), 0, 0))
    context.synchronize()
    executor.transport.close()
    for thread in threading.enumerate():
        if thread.name.startswith("host function"):
            thread.join(SECONDS)
            assert not thread.is_alive()
    assert output.empty()


def test_an_announcement_with_the_flag_poisons_the_context(fake: tuple[FakeExecutor, Context]) -> None:
    executor, context = fake
    output: SimpleQueue[Any] = SimpleQueue()
    ok(cuda.cuStreamAddCallback(0, lambda *arguments: output.put(arguments), 0, 0))
    context.synchronize()
    (record,) = records_of(executor, "HOST_FUNCTION")
    executor.send(executor.answer(record, result=700, reason="gone wrong", flags=FLAG_STICKY))
    assert output.get(timeout=SECONDS)[1] == R.CUDA_ERROR_ILLEGAL_ADDRESS
    assert context.sticky_error is not None
    assert records_of(executor, "HOST_FUNCTION_DONE") == []


def test_a_repeated_announcement_runs_the_function_once(fake: tuple[FakeExecutor, Context]) -> None:
    executor, context = fake
    output: SimpleQueue[Any] = SimpleQueue()
    ok(cuda.cuLaunchHostFunc(0, output.put, 1))
    context.synchronize()
    (record,) = records_of(executor, "HOST_FUNCTION")
    executor.send(executor.answer(record))
    executor.send(executor.answer(record))
    assert output.get(timeout=SECONDS) == 1
    context.synchronize()
    assert output.empty()


def test_backpressure_applies_only_while_functions_are_pending(fake: tuple[FakeExecutor, Context]) -> None:
    executor, context = fake
    far = 3 * host_callbacks.ROOM_CHECK_INTERVAL
    memory = ok(cuda.cuMemAlloc(4))
    for _ in range(far):
        ok(cuda.cuMemsetD32Async(memory, 0, 1, 0))
    context.synchronize()
    assert records_of(executor, "ROOM") == []
    requests, room = threading.Event(), threading.Event()
    records: list[Record] = []

    def reply(record: Record) -> bytes | None:
        if record.opcode == OPCODES["ROOM"] and not room.is_set():
            records.append(record)
            requests.set()
            return None
        return None if record.opcode == OPCODES["HOST_FUNCTION"] else executor.succeed(record)

    executor.reply = reply
    ok(cuda.cuLaunchHostFunc(0, len, ""))
    (function,) = _list_seen(executor, context, "HOST_FUNCTION")
    executor.seen.clear()

    def post_many() -> None:
        this_thread.stack.append(context)
        for _ in range(far):
            ok(cuda.cuMemsetD32Async(memory, 0, 1, 0))

    with ThreadPoolExecutor(1) as thread:
        posting = thread.submit(post_many)
        assert requests.wait(SECONDS)
        assert len(records_of(executor, "FILL")) <= host_callbacks.ROOM_CHECK_INTERVAL
        executor.send(executor.answer(function))
        wait_until(lambda: records_of(executor, "HOST_FUNCTION_DONE"), "the end of the function")
        assert not posting.done()
        room.set()
        executor.send(executor.answer(records[0]))
        posting.result(SECONDS)
    assert len(_list_seen(executor, context, "FILL")) == far
    wait_until(lambda: executor.transport.backpressure is None, "the end of backpressure, after the function's")


def _list_seen(executor: FakeExecutor, context: Context, name: str) -> list[Record]:
    context.synchronize()
    return records_of(executor, name)


# --- pre-Volta


def test_pre_volta_clients_of_a_server_have_no_callbacks(
    make_executor: Callable[..., FakeExecutor],
    fresh_process: Callable[[Connection], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = make_executor()
    fresh_process(executor)
    old = VisibleDevice(0, 0, evolve(PROPERTIES, compute_capability=(6, 0)))
    context = Context(old, 0, primary=False)
    context.open(executor)
    this_thread.stack.append(context)
    seen: list[int] = []
    ok(cuda.cuLaunchHostFunc(0, seen.append, 1))  # without MPS
    monkeypatch.setattr(process, "connection", object.__new__(Session))
    for answer in (cuda.cuLaunchHostFunc(0, seen.append, 2), cuda.cuStreamAddCallback(0, seen.append, 2, 0)):
        assert answer == (R.CUDA_ERROR_NOT_SUPPORTED,)
        assert "not supported on pre-Volta MPS clients" in last_error()
        assert "6.0" in last_error()
    monkeypatch.undo()
    contexts.pop(context.handle)


# --- whole processes

PENDING = """
begun = threading.Event()
def slow(_):
    begun.set()
    threading.Event().wait()
ready()
stream = cuda.cuStreamCreate(1)[1]
print(name(cuda.cuLaunchHostFunc(stream, slow, 0)), name(cuda.cuLaunchHostFunc(stream, slow, 0)))
begun.wait()
"""


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "os._exit(0)"])
def test_a_function_that_never_ends_does_not_keep_the_process_alive(end: str) -> None:
    done = _run(f"{PENDING}\nsys.stdout.flush()\n{end}", "-Wignore::RuntimeWarning")
    assert (done.stdout, done.stderr, done.returncode) == ("CUDA_SUCCESS CUDA_SUCCESS\n", "", 0)


def test_a_child_forked_while_a_function_runs_gets_an_error_and_ends() -> None:
    program = f"""{PENDING}
sys.stdout.flush()
child = os.fork()
if not child:
    print(*map(name, (cuda.cuLaunchHostFunc(stream, slow, 0), cuda.cuCtxSynchronize(), cuda.cuStreamQuery(stream))))
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), name(cuda.cuStreamQuery(stream)))
"""
    done = _run(program, "-Wignore::RuntimeWarning")
    posted, child, parent = done.stdout.splitlines()
    assert posted == "CUDA_SUCCESS CUDA_SUCCESS"
    assert set(child.split()) == {"CUDA_ERROR_NOT_INITIALIZED"}
    assert (parent, done.stderr, done.returncode) == ("5 CUDA_ERROR_NOT_READY", "", 0)


def test_a_function_may_fork() -> None:
    program = """
    statuses = []
    def forks(_):
        child = os.fork()
        if not child:
            return
        statuses.append(os.waitpid(child, 0)[1])
    ready()
    cuda.cuLaunchHostFunc(0, forks, 0)
    print(name(cuda.cuCtxSynchronize()), name(cuda.cuMemAlloc(4)), len(statuses))
    """
    done = _run(program, "-Wignore::RuntimeWarning")
    assert (done.stdout, done.stderr, done.returncode) == ("CUDA_SUCCESS CUDA_SUCCESS 1\n", "", 0)


def test_functions_run_in_a_child_forked_before_cuinit() -> None:
    program = """
    child = os.fork()
    seen = []
    ready()
    cuda.cuLaunchHostFunc(0, seen.append, 1)
    print(name(cuda.cuCtxSynchronize()), seen, flush=True)
    if child:
        print(os.waitpid(child, 0)[1])
    """
    done = _run(program, "-Wignore::RuntimeWarning")
    assert done.stdout.splitlines() == ["CUDA_SUCCESS [1]", "CUDA_SUCCESS [1]", "0"]


def test_ctrl_c_while_a_function_runs() -> None:
    program = """
    import signal
    free = threading.Event()
    seen = []
    ready()
    for _ in range(3): cuda.cuLaunchHostFunc(0, lambda _: seen.append(free.wait()), 0)
    def interrupt(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 1)  # again: one just before the wait would go unnoticed
        cuda.cuCtxSynchronize()
    except KeyboardInterrupt:
        print("interrupted", name(cuda.cuStreamQuery(0)))
    free.set()
    print(name(cuda.cuCtxSynchronize()), seen)
    """
    done = _run(program, "-Wignore::RuntimeWarning")
    assert done.stdout.splitlines() == ["interrupted CUDA_ERROR_NOT_READY", "CUDA_SUCCESS [True, True, True]"]
    assert (done.stderr, done.returncode) == ("", 0)


class _Transport:
    """A command stream whose answers to ROOM let a finalizer make a call of its own."""

    closed = False

    def __init__(self) -> None:
        self.backpressure: Callable[[bytes], None] | None = None
        self.ended = threading.Event()
        self.requests = 0
        self._numbers = iter(range(1, 100))

    def sequence(self) -> int:
        return next(self._numbers)

    def expect(self, sequence: int, gate: Any = None) -> None: ...

    def discard(self, sequence: int) -> None: ...

    def post(self, record: bytes, urgent: bool = False) -> None: ...

    def wait(self, gate: Any, ready: Callable[[], bool]) -> None:
        self.ended.wait(SECONDS)
        raise CudaError(4, "the command stream is closed")

    def answer(self, sequence: int) -> None:
        self.requests += 1
        if self.requests == 1 and self.backpressure is not None:
            self.backpressure(_RECORD)  # a collected handle is destroyed while this one waits


_RECORD: bytes = operations.SYNCHRONIZE_CONTEXT.record(1, 1)


def test_a_handle_that_is_collected_during_an_allocation_can_be_destroyed() -> None:
    transport: Any = _Transport()
    callbacks = host_callbacks.HostCallbacks(transport)
    callbacks.launch(host_callbacks.PendingCallback(Any, 1, 0, lambda status: None, False))
    thread = threading.Thread(
        target=lambda: [transport.backpressure(_RECORD) for _ in range(host_callbacks.ROOM_CHECK_INTERVAL + 1)],
        daemon=True,
    )
    thread.start()
    thread.join(5)
    transport.closed = True
    transport.ended.set()
    assert not thread.is_alive(), "it waits for itself"
    assert transport.requests == 2
