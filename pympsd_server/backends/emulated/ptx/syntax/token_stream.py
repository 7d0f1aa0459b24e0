"""A cursor over tokens."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.faults import InvalidPtx
from pympsd_server.backends.emulated.ptx.syntax.lexer import Token, tokenize


class TokenStream:
    """Looks at and consumes tokens; every refusal carries the current line."""

    def __init__(self, text: str) -> None:
        self._tokens = tokenize(text)
        self._at = 0

    @property
    def current(self) -> Token:
        return self._tokens[self._at]

    @property
    def line(self) -> int:
        return self.current.line

    @property
    def following(self) -> Token:
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def error(self, expected: str) -> InvalidPtx:
        return InvalidPtx(f"expected {expected}, found {self.current.text!r}", self.line)

    def take(self) -> Token:
        token = self.current
        if token.kind == "end":
            raise self.error("more text")
        self._at += 1
        return token

    def is_at(self, *texts: str) -> bool:
        return self.current.text in texts and self.current.kind != "string"

    def accept(self, text: str) -> bool:
        if self.is_at(text):
            self._at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(repr(text))

    def word(self, what: str) -> str:
        if self.current.kind != "word":
            raise self.error(what)
        return self.take().text

    def integer(self) -> int:
        negative = self.accept("-")
        if self.current.kind != "integer":
            raise self.error("an integer")
        value = parse_integer(self.take().text)
        return -value if negative else value

    def skip_line(self) -> None:
        """Skip the rest of the line, as .loc and .file end there."""
        line = self.line
        while self.current.kind != "end" and self.line == line:
            self._at += 1

    def skip_past(self, text: str) -> None:
        while not self.accept(text):
            self.take()

    def skip_braces(self) -> None:
        self.skip_past("{")
        depth = 1
        while depth:
            token = self.take()
            depth += (token.text == "{") - (token.text == "}")


def parse_integer(text: str) -> int:
    digits = text.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return int(digits, 8)
    return int(digits, 0)
