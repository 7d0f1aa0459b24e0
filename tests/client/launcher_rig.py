"""A Launcher over a ring in the test's own memory: what takes the slow path goes to a list."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from pympsd.wire.module_layout import FunctionLayout
from pympsd.wire.ring_layout import AREA_BYTES, ASLEEP, DATA, HEAD, RING_BYTES, TAIL
from pympsd_client._arguments.bindings import CUdeviceptr
from pympsd_client._command_stream.kernel_parameters import LAUNCH_BYTES, code_of, packer_for_types, record_bytes
from pympsd_client._command_stream.operations import LAUNCH_OPCODE, SEQUENCE_AT

SECONDS: Final = 30.0
"""The absolute limit of every wait."""
DONE: Final = ("done",)
SLOW: Final = ("slow",)
RUNG: Final = ("rung",)
FUNCTION: Final = 0x1000_0000_0001
STREAM: Final = 0x2000_0000_0001
SIZES: Final = (2, 3, 4, 32, 2, 1, 64)
_GUARD: Final = 256
_FILL: Final = 0xAA


def extension() -> Any:
    """Return the module in C; fail when it is missing and could have been built."""
    try:
        from pympsd_client.native import _launches
    except ImportError as error:
        header = Path(sysconfig.get_path("include"), "Python.h")
        if sysconfig.get_config_var("Py_GIL_DISABLED") or shutil.which("cc") is None or not header.exists():
            pytest.skip("there is no C compiler, no Python.h or no GIL, so all launches are Python's")
        pytest.fail(f"it could have been built here, but launches are Python's: {error}")
    return _launches


class Area:
    """The ring's memory as both sides see it, with guard bytes around it."""

    def __init__(self, native: Any) -> None:
        self.memory: Final = (ctypes.c_char * (AREA_BYTES + 2 * _GUARD))()
        ctypes.memset(self.memory, _FILL, len(self.memory))
        self.address: Final = ctypes.addressof(self.memory) + _GUARD
        area = memoryview(self.memory).cast("B")[_GUARD : _GUARD + AREA_BYTES]
        self.words: Final = area[:DATA].cast("Q")
        self.data: Final = area[DATA:]
        self.words[ASLEEP // 8] = 0
        self.begin_at(0)
        self.writer: Final = native.Writer(self.memory, self.address, DATA, RING_BYTES, TAIL, HEAD, ASLEEP)

    def begin_at(self, position: int, used: int = 0) -> None:
        """Set the ring's position in bytes, ``used`` of them not taken yet."""
        self.words[TAIL // 8], self.words[HEAD // 8] = position, position - used

    def take(self) -> bytes:
        """Take all records, as the executor does."""
        head, tail = self.words[HEAD // 8], self.words[TAIL // 8]
        assert head <= tail <= head + RING_BYTES
        self.words[HEAD // 8] = tail
        start, end = head % RING_BYTES, head % RING_BYTES + tail - head
        return bytes(self.data[start:end]) + bytes(self.data[: max(0, end - RING_BYTES)])

    def everything(self) -> bytes:
        """Return all bytes, the guard bytes too."""
        return bytes(self.memory)


class Kernel:
    """A kernel whose parameters have these types, and the records that Python makes of its launches."""

    def __init__(self, types: tuple[Any, ...], gaps: Sequence[int] = ()) -> None:
        """``gaps``: bytes before each parameter, beyond its alignment."""
        end, parameters = 0, []
        for index, ctype in enumerate(types):
            size = struct.calcsize("Q" if ctype is None else "=" + code_of(ctype))
            begin = -(-(end + (gaps[index] if gaps else 0)) // size) * size
            parameters.append((begin, size))
            end = begin + size
        self.types: Final = types
        self.layout: Final = FunctionLayout("kernel", tuple(parameters), end, {})
        self.places: Final = tuple(
            (LAUNCH_BYTES + begin, code_of(ctype)) for ctype, (begin, _) in zip(types, parameters, strict=True)
        )
        packer = packer_for_types(self.layout, types)
        assert packer is not None
        self._packer: Final = packer

    def record(self, values: tuple[Any, ...], sequence: int, stream: int = STREAM) -> bytes:
        """Return the record that Python sends, or raise its error."""
        return self._packer(
            LAUNCH_OPCODE, 0, record_bytes(self.layout), 77, sequence, stream, 0x3000, 5, *SIZES,
            self.layout.parameter_bytes, *values,
        )  # fmt: skip


class Rig:
    """A Launcher, its ring, and one context that is current."""

    def __init__(self, native: Any, threads: Any = None) -> None:
        """``threads``: an object with a stack of contexts, instead of the usual."""
        self.native: Final = native
        self.area: Final = Area(native)
        self.context: Final = object()
        self.threads: Final[Any] = SimpleNamespace(stack=[self.context]) if threads is None else threads
        self.slow_calls: Final[list[tuple[tuple[Any, ...], dict[str, Any]]]] = []
        self.rung: Final[list[int]] = []
        """The ring's tail at each bell."""
        self.numbers: Final[list[int]] = [1 << 40]
        """Sequence numbers, the last one the newest."""
        slow_calls, rung, numbers, words = self.slow_calls, self.rung, self.numbers, self.area.words

        # No methods: the garbage collector does not see a Launcher, which would keep the rig for good.
        def slow(*arguments: Any, **keywords: Any) -> tuple[Any, ...]:
            slow_calls.append((arguments, keywords))
            return SLOW

        def bell() -> tuple[Any, ...]:
            rung.append(words[TAIL // 8])
            return RUNG

        def sequence() -> int:
            numbers.append(numbers[-1] + 1)
            return numbers[-1]

        self.bell: Final[Callable[[], tuple[Any, ...]]] = bell
        self.sequence: Final[Callable[[], int]] = sequence
        self._slow: Final = slow
        self.renew()

    def renew(self) -> None:
        """Make a new Launcher."""
        self.launcher = self.native.Launcher(self._slow, DONE, self.threads)

    def add_plan(self, kernel: Kernel, values: tuple[Any, ...], **changes: Any) -> bool:
        """Add a plan for launches of a kernel like one with these values."""
        arguments: dict[str, Any] = {
            "epoch": self.launcher.epoch,
            "function": FUNCTION,
            "stream": STREAM,
            "sizes": SIZES,
            "types": kernel.types,
            "context": self.context,
            "sequence": self.sequence,
            "bell": self.bell,
            "writer": self.area.writer,
            "record": kernel.record(values, 1, changes.get("stream", STREAM)),
            "sequence_at": SEQUENCE_AT,
            "places": kernel.places,
        }
        assert changes.keys() <= arguments.keys()
        return bool(self.launcher.add_plan(*(arguments | changes).values()))

    @staticmethod
    def arguments(kernel: Kernel, values: tuple[Any, ...], **changes: Any) -> tuple[Any, ...]:
        """Return the arguments of cuLaunchKernel for a launch."""
        passed: dict[str, Any] = {
            "f": FUNCTION,
            "sizes": SIZES,
            "hStream": STREAM,
            "kernelParams": (values, kernel.types),
            "extra": 0,
        }
        assert changes.keys() <= passed.keys()
        f, sizes, *rest = (passed | changes).values()
        return (f, *sizes, *rest)

    def launch(self, kernel: Kernel, values: tuple[Any, ...], **changes: Any) -> Any:
        """Launch and return the answer."""
        return self.launcher.cuLaunchKernel(*self.arguments(kernel, values, **changes))

    def expect_hit(self, kernel: Kernel, values: tuple[Any, ...], **changes: Any) -> None:
        """Launch; the record must go into the ring with the next sequence number, without the slow path."""
        number, calls = self.numbers[-1] + 1, len(self.slow_calls)
        assert self.launch(kernel, values, **changes) is DONE
        assert len(self.slow_calls) == calls
        stream = int(changes.get("hStream", STREAM))
        assert self.area.take() == kernel.record(values, number, stream)

    def expect_miss(self, kernel: Kernel, values: tuple[Any, ...], **changes: Any) -> None:
        """Launch; it must take the slow path."""
        self.expect_miss_of(self.arguments(kernel, values, **changes))

    def expect_miss_of(self, arguments: tuple[Any, ...], **keywords: Any) -> None:
        """Call; these very arguments must go to the slow path, and nothing be written."""
        before, calls = self.area.everything(), len(self.slow_calls)
        assert self.launcher.cuLaunchKernel(*arguments, **keywords) is SLOW
        [(passed, names)] = self.slow_calls[calls:]
        assert len(passed) == len(arguments)
        assert all(item is other for item, other in zip(passed, arguments, strict=True))
        assert names == keywords
        assert self.area.everything() == before


SIMPLE = Kernel((ctypes.c_uint, None))
VALUES = (7, 0x7000_0000_0000)
TYPES = (
    ctypes.c_bool, ctypes.c_byte, ctypes.c_ubyte, ctypes.c_short, ctypes.c_ushort, ctypes.c_int, ctypes.c_uint,
    ctypes.c_longlong, ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_float, ctypes.c_double, ctypes.c_void_p, None,
)  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "kernel": {"f": FUNCTION + 1},
    "kernel's low half": {"f": FUNCTION & 0xFFFFFFFF},
    "stream": {"hStream": STREAM + 1},
    "no stream": {"hStream": None},
    "default stream": {"hStream": 0},
    "stream's low half": {"hStream": STREAM & 0xFFFFFFFF},
    "types": {"kernelParams": (VALUES, (ctypes.c_int, None))},
    "fewer types": {"kernelParams": (VALUES, (ctypes.c_uint,))},
    "more types": {"kernelParams": (VALUES, (ctypes.c_uint, None, None))},
    "fewer values": {"kernelParams": (VALUES[:1], SIMPLE.types)},
    "more values": {"kernelParams": ((*VALUES, 1), SIMPLE.types)},
    "no values": {"kernelParams": ((), SIMPLE.types)},
    "a list of values": {"kernelParams": (list(VALUES), SIMPLE.types)},
    "a list of types": {"kernelParams": (VALUES, list(SIMPLE.types))},
    "a list": {"kernelParams": [VALUES, SIMPLE.types]},
    "one tuple": {"kernelParams": (VALUES,)},
    "three": {"kernelParams": (VALUES, SIMPLE.types, 0)},
    "an address": {"kernelParams": 0x1234},
    "nothing": {"kernelParams": None},
    "extra": {"extra": 0x1234},
    "extra as a handle": {"extra": CUdeviceptr(0)},
    "extra False": {"extra": False},
    "a kernel that is none": {"f": "kernel"},
    "no kernel": {"f": None},
    "a huge kernel": {"f": FUNCTION + (1 << 64)},
    "a negative stream": {"hStream": STREAM - (1 << 64)},
    "a stream that is none": {"hStream": b"stream"},
}


@pytest.fixture
def rig() -> Rig:
    """A new Launcher."""
    return Rig(extension())


@pytest.fixture
def plan(rig: Rig) -> Rig:
    """A Launcher with a plan for SIMPLE."""
    assert rig.add_plan(SIMPLE, (1, 2))
    return rig


class Number:
    """A handle whose ``__int__`` first does something else."""

    def __init__(self, value: int, act: Callable[[], object] = lambda: None) -> None:
        self._value, self._act = value, act

    def __int__(self) -> int:
        self._act()
        return self._value


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        env=environment, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
