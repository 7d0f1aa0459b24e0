"""Numbers as C reads them: leading digits count, the rest of the word does not (recorded: grammar.jsonl)."""

from __future__ import annotations

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1


def leading_integer(word: str) -> int | None:
    """Return what strtol reads at the start of a word, held within a C int; None when it reads nothing."""
    text = word.lstrip(" \t\r\n\v\f")
    sign = text[:1] if text[:1] in ("+", "-") else ""
    digits = len(sign)
    while digits < len(text) and text[digits] in "0123456789":
        digits += 1
    if digits == len(sign):
        return None
    # Python refuses to read numbers of thousands of digits; nothing past 20 changes a number held in an int.
    value = int(f"{sign}{text[len(sign) : digits].lstrip('0')[:20] or '0'}")
    return max(INT_MIN, min(INT_MAX, value))


def atoi(word: str | None) -> int:
    """Return what atoi reads: 0 when there is no number, or no word."""
    return (leading_integer(word) or 0) if word is not None else 0
