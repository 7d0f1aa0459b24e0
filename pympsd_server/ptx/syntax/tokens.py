"""Split PTX text into tokens."""

import re
from typing import NamedTuple

from pympsd_server.ptx.isa.faults import InvalidPtx

MAX_REGISTERS = 1 << 20
"""The maximum number of registers of a function, and of a kernel together with the functions inlined in it."""
_SPACES = " \t\r\f\v"
_PATTERN = re.compile(
    r"""
    [ \t\r\f\v]*+ (?:
    (?P<newline>\n[ \t\r\f\v\n]*+)
  | (?P<word>[A-Za-z_$%][\w$]*(?:(?:\.|::)\w+)*)
  | (?P<mark>&&|\|\||<<|>>|[<>=!]=|[\[\]{}()<>,;:=+\-*%&^?!|~]|/(?![/*])|@(?!@DWARF))
  | (?P<directive>\.[A-Za-z_][\w$]*)
  | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b
      |(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<integer>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<comment>(?://|\#[ \t]*(?:line[ \t]+)?\d|@@DWARF)[^\n]*) | (?P<block>/\*.*?\*/) | (?P<unclosed>/\*)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<body>\0\d+\0\n*)
  )
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A word, number, string or symbol, and its line in the image.

    The last token has the `kind` "end". A token of `kind` "body" is a mark of `parser.set_aside`; its text is the
    number of the body.
    """

    kind: str
    text: str
    line: int


def tokenize(text: str, line: int = 1) -> list[Token]:
    """Return the tokens of a text that begins on a line of the image, the last with the `kind` "end".

    Raises InvalidPtx at a character that cannot begin a token.
    """
    tokens: list[Token] = []
    position, end = 0, len(text.rstrip(_SPACES))
    match_at = _PATTERN.match
    while position < end:
        match = match_at(text, position)
        if match is None or match.lastindex is None or match.lastgroup == "unclosed":
            position = end - len(text[position:end].lstrip(_SPACES))
            raise InvalidPtx(f"syntax error at {text[position : position + 20]!r}", line)
        kind, token, position = match.lastgroup or "", match[match.lastindex], match.end()
        if kind in ("newline", "block"):
            line += token.count("\n")
        elif kind == "body":
            tokens.append(Token(kind, token.strip("\0\n"), line))
            line += token.count("\n")
        elif kind != "comment":
            tokens.append(Token(kind, token, line))
    tokens.append(Token("end", "end of file", line))
    return tokens


class TokenStream:
    """The tokens of a text, consumed from the front; every InvalidPtx has the line of the next token."""

    def __init__(self, text: str, line: int = 1) -> None:
        self._tokens = tokenize(text, line)
        self._at = 0
        self._registers = 0

    @property
    def current(self) -> Token:
        """The next token."""
        return self._tokens[self._at]

    @property
    def line(self) -> int:
        """The line of the next token."""
        return self.current.line

    @property
    def following(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def error(self, expected: str) -> InvalidPtx:
        """Return an InvalidPtx for the next token, in whose place the syntax requires `expected`."""
        actual = "{" if self.current.kind == "body" else self.current.text
        return InvalidPtx(f"expected {expected}, found {actual!r}", self.line)

    def take(self) -> Token:
        """Return the next token and step over it. Raises InvalidPtx at the end."""
        token = self._tokens[self._at]
        if token.kind == "end":
            raise self.error("more text")
        self._at += 1
        return token

    def is_at(self, *texts: str) -> bool:
        """Return whether the next token is one of these texts."""
        token = self._tokens[self._at]
        return token.text in texts and token.kind not in ("string", "body")

    def accept(self, text: str) -> bool:
        """Step over a text if it is next; return whether it was."""
        token = self._tokens[self._at]
        is_next = token.text == text and token.kind not in ("string", "body")
        self._at += is_next
        return is_next

    def expect(self, text: str) -> None:
        """Step over a text. Raises InvalidPtx if it is not next."""
        if not self.accept(text):
            raise self.error(repr(text))

    def word(self, expected: str) -> str:
        """Step over a word, and return it. Raises InvalidPtx, which names what was `expected`, at any other token."""
        if self.current.kind != "word":
            raise self.error(expected)
        return self.take().text

    def integer(self) -> int:
        """Step over an integer with an optional minus sign, and return it. Raises InvalidPtx at any other token."""
        negative = self.accept("-")
        if self.current.kind != "integer":
            raise self.error("an integer")
        value = parse_integer(self.take().text)
        return -value if negative else value

    def count_registers(self, count: int) -> None:
        """Count the registers of a range such as `%r<5>`. Raises InvalidPtx above MAX_REGISTERS in all."""
        self._registers += count
        if self._registers > MAX_REGISTERS:
            raise InvalidPtx(f"a function declares more than {MAX_REGISTERS} registers", self.line)

    def skip_line(self) -> None:
        """Skip the rest of the line, because .loc and .file have no other end."""
        line = self.line
        while self.current.kind != "end" and self.line == line:
            self._at += 1

    def skip_past(self, text: str) -> None:
        """Skip everything up to and including a text. Raises InvalidPtx if the text does not follow."""
        while not self.accept(text):
            self.take()

    def skip_past_body(self) -> None:
        """Skip everything up to and including the next body. Raises InvalidPtx if none follows."""
        while self.take().kind != "body":
            pass


def parse_integer(text: str) -> int:
    """Return the value of a literal: decimal, octal, hexadecimal or binary, with or without U."""
    digits = text.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return int(digits, 8)
    return int(digits, 0)
