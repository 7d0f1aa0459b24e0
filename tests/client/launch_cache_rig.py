"""What the tests of a Launcher share: one that remembers a launch, odd handles, and an interpreter of their own."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from pympsd_client._arguments.bindings import CUdeviceptr
from pympsd_client._arguments.kernel_parameters import _CODES
from tests.client.ring_area import FUNCTION, STREAM, Kernel, Rig, extension

SECONDS = 30.0
"""The absolute limit of every wait."""
SIMPLE = Kernel((ctypes.c_uint, None))
VALUES = (7, 0x7000_0000_0000)
TYPES = (*_CODES, None)
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
    """A Launcher that has seen nothing yet."""
    return Rig(extension())


@pytest.fixture
def plan(rig: Rig) -> Rig:
    """A Launcher that remembers a launch of SIMPLE."""
    assert rig.add_plan(SIMPLE, (1, 2))
    return rig


class Number:
    """A handle: it has an int, and something happens when it is asked for."""

    def __init__(self, value: int, act: Callable[[], object] = lambda: None) -> None:
        self._value, self._act = value, act

    def __int__(self) -> int:
        self._act()
        return self._value


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        env=environment, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
