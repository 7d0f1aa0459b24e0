"""Numbers as C reads them: compared with the C library's own strtol and atoi."""

from __future__ import annotations

import ctypes
import math

from hypothesis import example, given
from hypothesis import strategies as st

from pympsd.commands.grammar.recorded import INT_MAX, INT_MIN, read_leading_float, read_leading_integer

LIBC = ctypes.CDLL(None)
LIBC.strtol.restype = ctypes.c_long
LIBC.strtol.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int]
LIBC.atoi.argtypes = [ctypes.c_char_p]
# Without NUL, which ends a command line.
WORDS = st.text("0123456789+-xe. \tabc") | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def _strtol(word: str) -> int | None:
    buffer = ctypes.create_string_buffer(word.encode())
    pointer = ctypes.cast(buffer, ctypes.c_char_p)
    end = ctypes.c_char_p()
    value = int(LIBC.strtol(pointer, ctypes.byref(end), 10))
    start_address = ctypes.addressof(buffer)
    end_address = ctypes.cast(end, ctypes.c_void_p).value
    return None if end_address == start_address else value


@given(WORDS)
def test_a_word_is_read_as_by_strtol_and_clamped_to_an_int(word: str) -> None:
    expected = _strtol(word)
    assert read_leading_integer(word) == (None if expected is None else max(INT_MIN, min(INT_MAX, expected)))


@given(st.integers(INT_MIN, INT_MAX), st.integers(0, 40), st.text("abc.+-", max_size=5))
def test_leading_zeros_and_what_follows_change_nothing(value: int, zeros: int, after: str) -> None:
    word = f"{'-' if value < 0 else ''}{'0' * zeros}{abs(value)}{after}"
    assert read_leading_integer(word) == value == _strtol(word)


@given(WORDS)
def test_atoi_is_the_c_librarys_within_an_int(word: str) -> None:
    value = _strtol(word)
    if value is None or INT_MIN <= value <= INT_MAX:
        assert (read_leading_integer(word) or 0) == int(LIBC.atoi(word.encode()))


def test_numbers_beyond_an_int_are_clamped() -> None:
    assert read_leading_integer("9" * 5000) == INT_MAX
    assert read_leading_integer("-" + "9" * 5000) == INT_MIN
    assert read_leading_integer("0" * 5000 + "7") == 7


LIBC.strtod.restype = ctypes.c_double
LIBC.strtod.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)]
FLOATS = st.text("0123456789+-xXpPeEnaifNAIF. \tabc") | WORDS | st.floats().map(str) | st.floats().map(float.hex)


def _strtod(word: str) -> float | None:
    buffer = ctypes.create_string_buffer(word.encode())
    end = ctypes.c_char_p()
    value = float(LIBC.strtod(ctypes.cast(buffer, ctypes.c_char_p), ctypes.byref(end)))
    nothing_read = ctypes.cast(end, ctypes.c_void_p).value == ctypes.addressof(buffer)
    return None if nothing_read or not math.isfinite(value) else value


@given(FLOATS)
@example("0x")
@example("0x.p1")
@example("0x1p")
@example("0x1p99999")
@example("1e")
@example("1e+")
@example("1e99999")
@example(".e1")
@example("-.5e-3x")
@example("12abc")
@example("1_0")
@example("infinity")
@example("nan(7)")
def test_a_word_is_read_as_by_strtod_if_that_is_finite(word: str) -> None:
    assert read_leading_float(word) == _strtod(word)


def test_an_empty_word_has_no_number() -> None:
    assert read_leading_float("") is None
    assert read_leading_float("1" * 5000) is None
