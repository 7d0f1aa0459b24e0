"""The fake driver that the native worker calls in these tests (driver.c): its calls, and the progress of streams."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from ctypes import c_int, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError
from pympsd_server.native.states import STREAM_EVENTS, DriverCalls, StreamState

SOURCE: Final = Path(__file__).with_name("driver.c")
CONTEXT: Final = 0xC0DE
FIRST_STREAM: Final = 0x5000
FIRST_EVENT: Final = 0x7000
_KINDS: Final = 5
SET_CURRENT, LAUNCH, WRITE_VALUE, RECORD_EVENT, QUERY_EVENT = range(_KINDS)
MAX_GRID, MAX_BLOCK, MAX_THREADS, MAX_SHARED_BYTES = (1 << 31) - 1, 1024, 1024, 49152
_ALL: Final = 2**64 - 1
_SECONDS: Final = 30
_WORD_BYTES: Final = 64


class _Call(ctypes.Structure):
    _fields_ = (
        ("kind", c_uint32),
        ("flags", c_uint32),
        ("stream", c_uint64),
        ("what", c_uint64),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared_bytes", c_uint32),
        ("value", c_uint32),
        ("parameter_bytes", c_uint64),
        ("parameters", c_void_p),
    )


@frozen
class DriverCall:
    """A call of the driver; ``what``: a context, a function, an address or an event."""

    kind: int
    flags: int
    stream: int
    what: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    value: int
    parameters: bytes


def build(folder: Path) -> Path:
    """Compile the driver; return the library's path."""
    compiler = shutil.which("cc")
    assert compiler is not None
    built = folder / "driver.so"
    command = [compiler, "-std=c11", "-O1", "-shared", "-fPIC", "-pthread", str(SOURCE), "-o", str(built)]
    subprocess.run(command, check=True, timeout=_SECONDS)
    return built


@frozen(eq=False)
class FakeAccess:
    """What a worker uses of a device's native access."""

    calls: DriverCalls
    refused: Callable[[int], BackendError]


class FakeDriver:
    """The driver for all tests of a process: ``reset`` it before each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library: Any = ctypes.CDLL(str(path))
        self._library.fake_call_count.restype = c_uint64
        self._words = (c_uint32 * (_WORD_BYTES // 4 * 64))()
        self._made = 0

    def reset(self) -> None:
        """Drop all calls, streams and events; hold and refuse nothing."""
        self._library.fake_reset()
        ctypes.memset(self._words, 0, ctypes.sizeof(self._words))
        self._made = 0

    def native_access(self) -> FakeAccess:
        """Return the native access to open a worker with."""
        names = ("set_current", "launch", "write_value", "record_event", "query_event")
        addresses = {name: ctypes.cast(getattr(self._library, f"fake_{name}"), c_void_p).value for name in names}
        calls = DriverCalls(context=CONTEXT, threads_limit=MAX_THREADS, shared_limit=MAX_SHARED_BYTES, **addresses)
        calls.grid_limit[:] = [MAX_GRID, 65535, 65535]
        calls.block_limit[:] = [MAX_BLOCK, 1024, 64]
        return FakeAccess(calls, lambda code: BackendError(Result(code), "the fake driver refused it"))

    def stream(self, is_default: bool = False, blocking: bool = True) -> StreamState:
        """Return a new stream, which progresses by ``advance``."""
        number, self._made = self._made, self._made + 1
        word = ctypes.addressof(self._words) + _WORD_BYTES * number
        state = StreamState(handle=FIRST_STREAM + number, word=word, is_blocking=blocking, is_default=is_default)
        state.events[:] = [FIRST_EVENT + STREAM_EVENTS * number + index for index in range(STREAM_EVENTS)]
        return state

    # --- recorded calls

    @property
    def count(self) -> int:
        """The number of calls."""
        return int(self._library.fake_call_count())

    def calls(self, kind: int | None = None) -> list[DriverCall]:
        """Return the calls of a kind, or all, in order."""
        recorded = []
        for number in range(self.count):
            raw = _Call()
            self._library.fake_call(c_uint64(number), ctypes.byref(raw))
            if kind is None or raw.kind == kind:
                recorded.append(_call(raw))
        return recorded

    # --- behaviour

    def advance(self, stream: StreamState, count: int = _ALL) -> None:
        """Complete the next ``count`` operations of a stream, markers included."""
        self._library.fake_advance(c_uint64(stream.handle), c_uint64(count))

    def complete_immediately(self, stream: StreamState) -> None:
        """Complete all operations of a stream as soon as they are issued."""
        self._library.fake_complete_immediately(c_uint64(stream.handle))

    def refuse(self, kind: int, code: int) -> None:
        """Refuse all calls of a kind with a CUresult; 0: refuse none."""
        self._library.fake_refuse(c_uint32(kind), c_int(code))

    def hold(self, kind: int, hold: bool = True) -> None:
        """Block all calls of a kind until they are released."""
        self._library.fake_hold(c_uint32(kind), c_int(hold))

    def release_all(self) -> None:
        """Release all calls."""
        for kind in range(_KINDS):
            self.hold(kind, False)

    def wait_until_held(self, kind: int) -> None:
        """Wait until a call of the kind is held."""
        assert self._library.fake_wait_inside(c_uint32(kind), c_uint64(_SECONDS)), "no call came"

    def complete_at_query(self, stream: StreamState) -> None:
        """Complete a stream at each query of an event."""
        self._library.fake_complete_at_query(c_uint64(stream.handle))

    def flip(self, first: int, stride: int, count: int, values: tuple[int, int], head: int, end: int) -> None:
        """Alternate 32-bit words at equal distances until the 64-bit word at ``head`` has reached ``end``."""
        self._library.fake_flip(
            c_void_p(first), c_uint64(stride), c_uint64(count), *map(c_uint32, values), c_void_p(head), c_uint64(end)
        )


def _call(raw: _Call) -> DriverCall:
    parameters = ctypes.string_at(raw.parameters, raw.parameter_bytes) if raw.parameters else b""
    return DriverCall(
        raw.kind,
        raw.flags,
        raw.stream,
        raw.what,
        tuple(raw.grid),
        tuple(raw.block),
        raw.shared_bytes,
        raw.value,
        parameters,
    )
