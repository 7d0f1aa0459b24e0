"""Numbers as C reads them: the leading digits of a word, without the rest (recorded: grammar.jsonl)."""

from __future__ import annotations

import re
from math import isfinite

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1


def leading_integer(word: str) -> int | None:
    """Return what strtol reads at the start of a word, clamped to a C int; None if it reads nothing."""
    text = word.lstrip(" \t\r\n\v\f")
    sign = text[:1] if text[:1] in ("+", "-") else ""
    digits = len(sign)
    while digits < len(text) and text[digits] in "0123456789":
        digits += 1
    if digits == len(sign):
        return None
    # Python refuses to read numbers of thousands of digits; digits past the 20th cannot change a clamped number.
    value = int(f"{sign}{text[len(sign) : digits].lstrip('0')[:20] or '0'}")
    return max(INT_MIN, min(INT_MAX, value))


def atoi(word: str | None) -> int:
    """Return what atoi reads: 0 if there is no number, or no word."""
    return (leading_integer(word) or 0) if word is not None else 0


_DECIMAL = re.compile(r"[ \t\r\n\v\f]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_HEXADECIMAL = re.compile(
    r"[ \t\r\n\v\f]*([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?)"
)


def leading_float(word: str | None) -> float | None:
    """Return what strtod reads at the start of a word; None if it reads no finite number."""
    text = word or ""
    if found := _HEXADECIMAL.match(text):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return None
    found = _DECIMAL.match(text)
    number = float(found[1]) if found else float("nan")
    return number if isfinite(number) else None
