"""A fake ``cuda.bindings.driver``: no device, memory by mapped pages, streams whose work waits.

Work of a stream is done immediately, unless the stream is stalled (a long kernel) or waits for an event. Calls can be
refused with a code, and a hook can run at the beginning of one, in the thread that makes it.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections import deque
from collections.abc import Callable
from functools import wraps
from threading import Condition, Event, RLock, Thread, current_thread
from types import SimpleNamespace
from typing import Any, Final

from attrs import define, field
from cuda.bindings import driver as real

from pympsd_server.backends.interface import Status

SECONDS: Final = 30.0
"""The absolute limit of every wait here."""
MEMORY_BYTES: Final = 1 << 36
NOT_READY: Final = 600
VARIABLE_BYTES: Final = 64


class Refused(Exception):
    """Raised inside of a call (by a hook, too): the driver returns this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@define(eq=False)
class FakeEvent:
    """The number of recordings, and the latest that is passed."""

    recorded: int = 0
    passed: int = 0
    at: float = 0.0
    """When it was passed, in seconds."""


@define(eq=False)
class FakeStream:
    """Work that is not done, each with its condition."""

    stalled: bool = False
    work: deque[tuple[Callable[[], bool], Callable[[], None]]] = field(factory=deque)
    put: int = 0
    done: int = 0

    def advance(self) -> bool:
        """Do the first of its work if it is ready; return whether it was."""
        if self.stalled or not self.work or not self.work[0][0]():
            return False
        self.work.popleft()[1]()
        self.done += 1
        return True


def _call(method: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """Make a method a call of the driver, which returns (code, values ...)."""

    @wraps(method)
    def make_answer(driver: FakeDriver, *arguments: Any) -> tuple[Any, ...]:
        try:
            driver.before(method.__name__, arguments)
            with driver.changed:
                value = method(driver, *arguments)
                driver.advance()
        except Refused as refused:
            return refused.code, None
        if value is None:
            return (0,)
        return (0, *value) if isinstance(value, tuple) else (0, value)

    return make_answer


class FakeDriver:
    """Stands for the module. Types and numbers are those of the real one."""

    def __init__(self) -> None:
        self.changed = Condition(RLock())
        """Held during a call; notified after each."""
        self.codes: dict[str, int] = {}
        """By call: the code that it returns."""
        self.hooks: dict[str, Callable[..., object]] = {}
        """By call: called first, with its arguments and without a lock. It may raise Refused."""
        self.calls: dict[str, int] = {}
        """The number of calls, by name."""
        self.streams: dict[int, FakeStream] = {}
        self.events: dict[int, FakeEvent] = {}
        self.physical: dict[int, int] = {}
        """Sizes of device memory, by handle."""
        self.mapped: dict[int, bytearray] = {}
        """By address; variables of modules too."""
        self.modules: dict[int, dict[str, int]] = {}
        """Loaded ones, with the addresses of the variables that were queried."""
        self.registered: dict[int, int] = {}
        """Registered host memory, with its sizes."""
        self.faults: list[str] = []
        """Accesses of device memory that is not mapped."""
        self._kept: list[Any] = []
        self._numbers = itertools.count(0x10000, 16)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            raise NotImplementedError(name)
        return getattr(real, name)

    # --- for tests

    def stall(self, stream: Any) -> None:
        """Let the work of a stream, also later work, wait for ``run``."""
        with self.changed:
            self.streams[int(stream)].stalled = True

    def run(self, *streams: Any) -> None:
        """Do the work of these streams, or of all of them."""
        with self.changed:
            for handle in map(int, streams or tuple(self.streams)):
                self.streams[handle].stalled = False
            self.advance()

    def waiting(self, stream: Any) -> int:
        """Return the amount of work of a stream that is not done."""
        with self.changed:
            return len(self.streams[int(stream)].work)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds that calls of the driver bring about."""
        give_up = time.monotonic() + SECONDS
        with self.changed:
            while not holds():
                assert time.monotonic() < give_up, "it never came"
                self.changed.wait(0.01)  # some of it comes a moment after the call

    def bytes_at(self, address: int, count: int) -> bytes:
        """Return the contents of device memory."""
        with self.changed:
            memory, start = self._memory(address, count, "the test")
            return bytes(memory[start : start + count])

    @property
    def memory_bytes(self) -> int:
        """Device memory that was created and not released."""
        return sum(self.physical.values())

    # --- inside

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Count a call and run its hook; raise Refused if it has a code."""
        with self.changed:
            self.calls[name] = self.calls.get(name, 0) + 1
        # Each looked up once: the test may take it away.
        if (hook := self.hooks.get(name)) is not None:
            hook(*arguments)
        if code := self.codes.get(name, 0):
            raise Refused(code)

    def advance(self) -> None:
        """Do all work that is ready. The lock is held."""
        while any([stream.advance() for stream in self.streams.values()]):  # noqa: C419 - each has its turn
            pass
        self.changed.notify_all()

    def _put(self, handle: Any, act: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        stream = self.streams[int(handle)]
        stream.work.append((ready, act))
        stream.put += 1

    def _wait_for(self, *streams: FakeStream) -> None:
        until = [(stream, stream.put) for stream in streams]
        give_up = time.monotonic() + SECONDS
        while any(stream.done < put for stream, put in until):
            assert self.changed.wait(give_up - time.monotonic()), "a call waited for work that was never done"

    def _memory(self, address: int, count: int, user: str) -> tuple[bytearray, int]:
        for start, memory in self.mapped.items():
            if start <= address and address + count <= start + len(memory):
                return memory, address - start
        self.faults.append(f"{user} at {address:#x}, {count} bytes")
        return bytearray(count), 0

    def _write(self, address: int, content: bytes, user: str) -> None:
        memory, start = self._memory(address, len(content), user)
        memory[start : start + len(content)] = content

    def _read(self, address: int, count: int, user: str) -> bytes:
        memory, start = self._memory(address, count, user)
        return bytes(memory[start : start + count])

    # --- the device

    @_call
    def cuInit(self, flags: int) -> None: ...

    @_call
    def cuGetErrorName(self, code: int) -> bytes:
        return f"CUresult {int(code)}".encode()

    @_call
    def cuGetErrorString(self, code: int) -> bytes:
        return b"fake"

    @_call
    def cuDeviceGetCount(self) -> int:
        return 1

    @_call
    def cuDeviceGet(self, number: int) -> int:
        return number

    @_call
    def cuDeviceGetUuid(self, device: int) -> Any:
        return SimpleNamespace(bytes=bytes(16))

    @_call
    def cuDevicePrimaryCtxRetain(self, device: int) -> int:
        return 0x77

    @_call
    def cuCtxSetCurrent(self, context: int) -> None: ...

    @_call
    def cuCtxGetStreamPriorityRange(self) -> tuple[int, int]:
        return 0, -5

    @_call
    def cuMemGetInfo(self) -> tuple[int, int]:
        return MEMORY_BYTES - self.memory_bytes, MEMORY_BYTES

    @_call
    def cuDeviceGetDevResource(self, device: int, kind: Any) -> int:
        return 1

    @_call
    def cuDevSmResourceSplitByCount(self, groups: int, *how: Any) -> tuple[Any, ...]:
        return [0] * groups, groups, None

    # --- memory

    @_call
    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> int:
        return address

    @_call
    def cuMemAddressFree(self, address: int, size: int) -> None: ...

    @_call
    def cuMemGetAllocationGranularity(self, kind: Any, flag: Any) -> int:
        return 2 << 20

    @_call
    def cuMemCreate(self, size: int, kind: Any, flags: int) -> int:
        handle = next(self._numbers)
        self.physical[handle] = size
        return handle

    @_call
    def cuMemRelease(self, handle: int) -> None:
        del self.physical[handle]

    @_call
    def cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> None:
        assert self.physical[handle] == size
        assert not any(start < address + size and address < start + len(at) for start, at in self.mapped.items())
        self.mapped[address] = bytearray(size)

    @_call
    def cuMemUnmap(self, address: int, size: int) -> None:
        assert len(self.mapped.pop(address)) == size

    @_call
    def cuMemSetAccess(self, *how: Any) -> None: ...

    @_call
    def cuMemHostRegister(self, address: int, size: int, flags: int) -> None:
        assert address not in self.registered
        self.registered[address] = size

    @_call
    def cuMemHostUnregister(self, address: int) -> None:
        self._wait_for(*self.streams.values())
        del self.registered[address]

    @_call
    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        self._kept.append(ctypes.create_string_buffer(size))
        return ctypes.addressof(self._kept[-1])

    # --- modules

    @_call
    def cuModuleLoadData(self, image: bytes) -> int:
        handle = next(self._numbers)
        self.modules[handle] = {}
        return handle

    @_call
    def cuModuleUnload(self, module: int) -> None:
        self._wait_for(*self.streams.values())
        for address in self.modules.pop(module).values():
            del self.mapped[address]

    @_call
    def cuModuleGetFunction(self, module: int, name: bytes) -> int:
        return next(self._numbers)

    @_call
    def cuModuleGetFunctionCount(self, module: int) -> int:
        return 0

    @_call
    def cuModuleGetGlobal(self, module: int, name: bytes) -> tuple[int, int]:
        variables = self.modules[module]
        if name.decode() not in variables:
            address = variables[name.decode()] = 0x7F0000000000 + 0x100 * next(self._numbers)
            self.mapped[address] = bytearray(VARIABLE_BYTES)
        return variables[name.decode()], VARIABLE_BYTES

    # --- streams and events

    @_call
    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> int:
        return self._new_stream()

    def _new_stream(self) -> int:
        handle = next(self._numbers)
        self.streams[handle] = FakeStream()
        return handle

    @_call
    def cuStreamCreate(self, flags: int) -> int:
        return self._new_stream()

    @_call
    def cuStreamDestroy(self, stream: int) -> None:
        del self.streams[int(stream)]

    @_call
    def cuStreamQuery(self, stream: int) -> None:
        if self.streams[int(stream)].work:
            raise Refused(NOT_READY)

    @_call
    def cuStreamSynchronize(self, stream: int) -> None:
        self._wait_for(self.streams[int(stream)])

    @_call
    def cuEventCreate(self, flags: int) -> int:
        handle = next(self._numbers)
        self.events[handle] = FakeEvent()
        return handle

    @_call
    def cuEventDestroy(self, event: int) -> None:
        del self.events[int(event)]

    @_call
    def cuEventRecord(self, event: int, stream: int) -> None:
        recorded = self.events[int(event)]
        recorded.recorded += 1
        number = recorded.recorded

        def act() -> None:
            recorded.passed, recorded.at = number, time.perf_counter()

        self._put(stream, act)

    @_call
    def cuEventQuery(self, event: int) -> None:
        queried = self.events[int(event)]
        if queried.passed < queried.recorded:
            raise Refused(NOT_READY)

    @_call
    def cuEventElapsedTime(self, start: int, end: int) -> float:
        return (self.events[int(end)].at - self.events[int(start)].at) * 1000

    @_call
    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        target = self.events[int(event)]
        number = target.recorded
        self._put(stream, lambda: None, lambda: target.passed >= number)

    # --- work

    @_call
    def cuMemsetD8Async(self, address: int, value: int, count: int, stream: int) -> None:
        self._fill(address, value, 1, count, stream)

    @_call
    def cuMemsetD16Async(self, address: int, value: int, count: int, stream: int) -> None:
        self._fill(address, value, 2, count, stream)

    @_call
    def cuMemsetD32Async(self, address: int, value: int, count: int, stream: int) -> None:
        self._fill(address, value, 4, count, stream)

    def _fill(self, address: int, value: int, width: int, count: int, stream: int) -> None:
        self._put(stream, lambda: self._write(address, value.to_bytes(width, "little") * count, "a fill"))

    @_call
    def cuMemsetD2D8Async(self, address: int, pitch: int, value: int, width: int, height: int, stream: int) -> None:
        self._fill_rows(address, pitch, value, 1, width, height, stream)

    @_call
    def cuMemsetD2D16Async(self, address: int, pitch: int, value: int, width: int, height: int, stream: int) -> None:
        self._fill_rows(address, pitch, value, 2, width, height, stream)

    @_call
    def cuMemsetD2D32Async(self, address: int, pitch: int, value: int, width: int, height: int, stream: int) -> None:
        self._fill_rows(address, pitch, value, 4, width, height, stream)

    def _fill_rows(
        self, address: int, pitch: int, value: int, element: int, width: int, height: int, stream: int
    ) -> None:
        assert pitch >= element * width
        for row in range(height):
            self._fill(address + row * pitch, value, element, width, stream)

    @_call
    def cuMemcpy3DAsync(self, parameters: Any, stream: int) -> None:
        to, start = (self._rows(parameters, side) for side in ("dst", "src"))
        width, on_host = int(parameters.WidthInBytes), real.CUmemorytype.CU_MEMORYTYPE_HOST

        def act() -> None:
            for target, source in zip(to, start, strict=True):
                if parameters.srcMemoryType == on_host:
                    row = ctypes.string_at(source, width)
                else:
                    row = self._read(source, width, "a copy of rows")
                if parameters.dstMemoryType == on_host:
                    ctypes.memmove(target, row, width)
                else:
                    self._write(target, row, "a copy of rows")

        self._put(stream, act)

    def _rows(self, parameters: Any, side: str) -> list[int]:
        width, height, depth = int(parameters.WidthInBytes), int(parameters.Height), int(parameters.Depth)
        pitch, slice_rows = (int(getattr(parameters, f"{side}{name}")) for name in ("Pitch", "Height"))
        assert width
        assert pitch >= width
        assert depth == 1 or slice_rows >= height
        is_host = getattr(parameters, f"{side}MemoryType") == real.CUmemorytype.CU_MEMORYTYPE_HOST
        base = int(getattr(parameters, f"{side}Host" if is_host else f"{side}Device"))
        rows = [base + (layer * slice_rows + row) * pitch for layer in range(depth) for row in range(height)]
        if is_host and not any(at <= base and rows[-1] + width <= at + size for at, size in self.registered.items()):
            self.faults.append(f"a copy of rows at {base:#x}, which are in no one registration")
        return rows

    @_call
    def cuMemcpyHtoDAsync(self, address: int, source: int, count: int, stream: int) -> None:
        self._put(stream, lambda: self._write(address, ctypes.string_at(source, count), "a copy to the device"))

    @_call
    def cuMemcpyDtoHAsync(self, target: int, address: int, count: int, stream: int) -> None:
        def act() -> None:
            ctypes.memmove(target, self._read(address, count, "a copy from the device"), count)

        self._put(stream, act)

    @_call
    def cuMemcpyDtoDAsync(self, address: int, source: int, count: int, stream: int) -> None:
        def act() -> None:
            self._write(address, self._read(source, count, "a copy"), "a copy")

        self._put(stream, act)


@define(eq=False)
class Recorder:
    """A completion that records its results, in order."""

    statuses: list[Status] = field(factory=list)
    _called: Condition = field(factory=Condition, init=False)

    def __call__(self, status: Status) -> None:
        """Record a result."""
        with self._called:
            self.statuses.append(status)
            self._called.notify_all()

    def wait(self, count: int = 1) -> list[Status]:
        """Return the results as soon as there are ``count``."""
        with self._called:
            assert self._called.wait_for(lambda: len(self.statuses) >= count, SECONDS), f"only {self.statuses}"
            return list(self.statuses)


@define(eq=False)
class Gate:
    """A hook that blocks its callers (in threads of this name only) until it is opened."""

    thread: str = "worker"
    entered: Event = field(factory=Event)
    _open: Event = field(factory=Event)

    def __call__(self, *arguments: Any) -> None:
        """Block."""
        if current_thread().name == self.thread:
            self.entered.set()
            assert self._open.wait(SECONDS)

    def wait(self) -> None:
        """Wait until a caller is blocked."""
        assert self.entered.wait(SECONDS)

    def open(self) -> None:
        """Release all callers."""
        self._open.set()


class Worker(Thread):
    """A thread named "worker" that makes one call."""

    def __init__(self, do: Callable[[], Any]) -> None:
        super().__init__(name="worker", daemon=True)
        self._do = do
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Make the call."""
        try:
            self._result = self._do()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        """Wait for its end; return its result, or raise its exception."""
        self.join(SECONDS)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._result
