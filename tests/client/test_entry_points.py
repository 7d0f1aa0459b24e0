"""The C functions that stand in place of function pointers: how they read their arguments."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

_entry_points = pytest.importorskip("pympsd_client.native._entry_points")

WORDS = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 16)
SIGNATURE = "CUresult (...)"


@WORDS
def _original(*words: int) -> int:
    return -5


def entry(format: str, function: Callable[..., Any], failures: list[BaseException]) -> Any:
    """Return the C function for a Python function; an exception is kept, and its result is 7."""
    original = ctypes.cast(_original, ctypes.c_void_p).value

    def failed(name: str, error: BaseException) -> int:
        failures.append(error)
        return 7

    resolved = (function, format)
    return WORDS(_entry_points.route("cuAny", SIGNATURE, original, lambda name, signature: resolved, failed))


def test_sixteen_words_are_read_in_order() -> None:
    arguments: list[tuple[int, ...]] = []
    failures: list[BaseException] = []
    call = entry("Q" * 16, lambda *words: arguments.append(words), failures)
    assert call(*range(1, 17)) == 0
    assert (arguments, failures) == ([tuple(range(1, 17))], [])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere large structures come by address")
@pytest.mark.parametrize(("format", "is_read"), [("v64v16", True), ("v80Q", True), ("v64v24", False), ("v88", False)])
def test_no_words_beyond_those_of_the_stack_are_read(format: str, is_read: bool) -> None:
    arguments: list[tuple[Any, ...]] = []
    failures: list[BaseException] = []
    call = entry(format, lambda *values: arguments.append(values), failures)
    assert call(*range(1, 17)) == (0 if is_read else 7)
    assert (len(arguments), len(failures)) == (is_read, not is_read)
    if is_read:
        size = int(format[1:3])
        assert arguments[0][0] == b"".join(word.to_bytes(8, "little") for word in range(7, 7 + size // 8))
    else:
        assert "more than 10 words" in str(failures[0])


PASSED_ON = """
import ctypes
from pympsd_client.native import _entry_points

words, reals = [ctypes.c_uint64] * 18, [ctypes.c_double] * 8
Function = ctypes.CFUNCTYPE(ctypes.c_int, *words[:6], *reals, *words[6:])
calls = []
original = Function(lambda *values: calls.append(values) or len(calls))
original_address = ctypes.cast(original, ctypes.c_void_p).value
addresses = []
try:
    while True:
        addresses.append(_entry_points.route("cuAny", "CUresult (...)", original_address, None, None))
except RuntimeError as error:
    print(len(addresses), len(set(addresses)), error)
_entry_points.pass_on()
values = [*range(1, 7), *(0.5 + i for i in range(8)), *range(7, 19)]
print([Function(addresses[i])(*values) for i in (0, 777, len(addresses) - 1)], calls == [tuple(values)] * 3)
"""


def test_a_call_that_is_passed_on_reaches_the_original_with_every_argument() -> None:
    command = [sys.executable, "-P", "-c", PASSED_ON]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.splitlines() == ["4096 4096 there are no more than 4096 entry points", "[1, 2, 3] True"]
    assert ran.stderr == ""
