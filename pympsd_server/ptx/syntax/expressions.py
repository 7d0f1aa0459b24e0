"""Evaluate constant expressions: literals, and the operators of C on them (PTX ISA, Constant Expressions).

Integers have 64 bits. They are signed, unless a literal ends in U or does not fit. If the manual leaves a question
open, this module does what the assembler does: a remainder is unsigned, a shift has the type of its left side, and
both sides of ``?:`` are converted to one type.
"""

import operator
import struct
from collections.abc import Callable
from typing import Final

from attrs import frozen

from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.syntax.tokens import TokenStream, parse_integer
from pympsd_server.ptx.syntax.tree import Immediate

_WORD: Final = 1 << 64
_PRECEDENCE: Final = {
    symbol: level
    for level, symbols in enumerate(("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %"), 1)
    for symbol in symbols.split()
}
_UNARY: Final = frozenset("+-!~")
_WARP_SIZE: Final = "WARP_SZ"
_CASTS: Final = (".s64", ".u64")
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@frozen
class Number:
    """The value of an expression: `kind` is "s64", "u64", "f64", or "f32" for a single-precision literal."""

    value: int | float
    kind: str
    bits: int | None = None
    """The bits of a float literal, which may be a NaN."""

    @property
    def is_float(self) -> bool:
        """Whether the value is a float, not an integer."""
        return self.kind in ("f32", "f64")


def is_constant(tokens: TokenStream) -> bool:
    """Return whether a constant expression may begin at the next token; a `(` may also begin a call's arguments."""
    token = tokens.current
    if token.text == "!":
        return tokens.following.kind != "word" or tokens.following.text == _WARP_SIZE
    return token.kind in ("integer", "float") or token.text in ("+", "-", "~", "(") or token.text == _WARP_SIZE


def constant(tokens: TokenStream) -> Immediate:
    """Parse and evaluate a constant expression. Raises InvalidPtx."""
    if tokens.current.kind == "integer" and tokens.following.text in (",", ";", "]", "}"):
        return Immediate(int(_literal(tokens).value))
    number = _conditional(tokens)
    if number.bits is not None:
        return Immediate(number.bits, number.kind)
    if number.is_float:
        return Immediate(_double_bits(number.value), "f64")
    return Immediate(int(number.value))


def integer_constant(tokens: TokenStream) -> int:
    """Parse and evaluate a constant expression. Raises InvalidPtx unless its value is an integer."""
    number = constant(tokens)
    if number.form != "int":
        raise tokens.error("an integer constant before this")
    return number.value


def _double_bits(value: float) -> int:
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits


def _conditional(tokens: TokenStream) -> Number:
    condition = _binary(tokens, 1)
    if not tokens.accept("?"):
        return condition
    yes = _conditional(tokens)
    tokens.expect(":")
    no = _conditional(tokens)
    if yes.is_float or no.is_float:
        yes, no = (Number(float(branch.value), "f64") for branch in (yes, no))
    else:
        yes, no = _convert_alike(yes, no)
    return yes if condition.value else no


def _binary(tokens: TokenStream, lowest: int) -> Number:
    left = _unary(tokens)
    while _PRECEDENCE.get(tokens.current.text, 0) >= lowest and tokens.current.kind != "string":
        symbol, line = tokens.take().text, tokens.line
        left = _combine(symbol, left, _binary(tokens, _PRECEDENCE[symbol] + 1), line)
    return left


def _unary(tokens: TokenStream) -> Number:
    text = tokens.current.text
    if text in _UNARY:
        tokens.take()
        return _apply_sign(text, _unary(tokens), tokens)
    if tokens.accept("("):
        cast = tokens.take().text[1:] if tokens.current.text in _CASTS else ""
        inner = Number(0, "") if cast else _conditional(tokens)
        tokens.expect(")")
        return _integer(_as_integer(_unary(tokens), tokens.line), cast) if cast else inner
    if tokens.accept(_WARP_SIZE):
        return Number(32, "s64")
    return _literal(tokens)


def _apply_sign(symbol: str, number: Number, tokens: TokenStream) -> Number:
    if symbol == "+":
        return number
    if symbol == "-":
        if number.bits is not None:
            return Number(-number.value, number.kind, number.bits ^ (1 << 31 if number.kind == "f32" else 1 << 63))
        return Number(-number.value, number.kind) if number.is_float else _integer(-int(number.value), number.kind)
    value = _as_integer(number, tokens.line)
    return _integer(~value, "u64") if symbol == "~" else Number(int(not value), "s64")


def _literal(tokens: TokenStream) -> Number:
    """Parse an integer or a float, also by its bits (0f, 0d). Raises InvalidPtx for any other token."""
    token = tokens.current
    if token.kind not in ("integer", "float"):
        raise tokens.error("a number")
    text = tokens.take().text
    if token.kind == "integer":
        value = parse_integer(text)
        if value >= _WORD:
            raise InvalidPtx(f"the integer {text} has more than 64 bits", token.line)
        return Number(value, "u64" if text.endswith("U") or value >= _WORD // 2 else "s64")
    if text[:2] in ("0f", "0F"):
        bits = int(text[2:], 16)
        return Number(struct.unpack("<f", struct.pack("<I", bits))[0], "f32", bits)
    bits = int(text[2:], 16) if text[:2] in ("0d", "0D") else _double_bits(float(text))
    return Number(struct.unpack("<d", struct.pack("<Q", bits))[0], "f64", bits)


def _integer(value: int, kind: str) -> Number:
    """Return the number's low 64 bits as "s64" or "u64"."""
    value %= _WORD
    return Number(value - _WORD if kind == "s64" and value >= _WORD // 2 else value, kind)


def _as_integer(number: Number, line: int) -> int:
    if number.is_float:
        raise InvalidPtx("this operator of constant expressions takes integers", line)
    return int(number.value)


def _convert_alike(left: Number, right: Number) -> tuple[Number, Number]:
    """Return both integers as unsigned if one of them is unsigned, else both as signed."""
    kind = "u64" if "u64" in (left.kind, right.kind) else "s64"
    return _integer(int(left.value), kind), _integer(int(right.value), kind)


def _combine(symbol: str, left: Number, right: Number, line: int) -> Number:
    """Return the value of a binary operator. Raises InvalidPtx for a division by zero."""
    if symbol in ("<<", ">>"):
        by = min(_as_integer(right, line) % _WORD, 64)
        value = _as_integer(left, line)
        return _integer(value << by if symbol == "<<" else value >> by, left.kind)
    if symbol in ("&&", "||"):
        both = _as_integer(left, line) != 0, _as_integer(right, line) != 0
        return Number(int(all(both) if symbol == "&&" else any(both)), "s64")
    if symbol in ("&", "|", "^"):
        change = {"&": operator.and_, "|": operator.or_, "^": operator.xor}[symbol]
        return _integer(change(_as_integer(left, line) % _WORD, _as_integer(right, line) % _WORD), "u64")
    if symbol == "%":
        divisor = _as_integer(right, line) % _WORD
        if not divisor:
            raise InvalidPtx("a constant expression divides by 0", line)
        return _integer(_as_integer(left, line) % _WORD % divisor, "s64")
    is_float = left.is_float or right.is_float
    first, second = (left, right) if is_float else _convert_alike(left, right)
    x, y, kind = first.value, second.value, "f64" if is_float else first.kind
    if symbol in _COMPARISONS:
        return Number(int(_COMPARISONS[symbol](x, y)), "s64")
    if symbol == "/":
        if not y:
            raise InvalidPtx("a constant expression divides by 0", line)
        quotient = x / y if is_float else abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1)
        return Number(quotient, kind) if is_float else _integer(int(quotient), kind)
    result = {"+": operator.add, "-": operator.sub, "*": operator.mul}[symbol](x, y)
    return Number(result, kind) if is_float else _integer(int(result), kind)
