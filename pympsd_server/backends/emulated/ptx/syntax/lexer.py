"""PTX text to tokens."""

from __future__ import annotations

import re

from attrs import frozen

from pympsd_server.backends.emulated.ptx.faults import InvalidPtx

_PATTERN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+) | (?P<newline>\n)
  | (?P<comment>(?://|\#[ \t]*(?:line[ \t]+)?\d|@@DWARF)[^\n]*) | (?P<block>/\*.*?\*/)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b
      |(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<integer>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<directive>\.[A-Za-z_][\w$]*)
  | (?P<word>[A-Za-z_$%][\w$]*(?:(?:\.|::)\w+)*)
  | (?P<mark>&&|\|\||<<|>>|[<>=!]=|[\[\]{}()<>,;:=+\-*/%&^?@!|~])
    """,
    re.VERBOSE | re.DOTALL,
)


@frozen
class Token:
    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """Return all tokens but space and comments, and an "end" token. Raises InvalidPtx at a strange character."""
    tokens: list[Token] = []
    line, position = 1, 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise InvalidPtx(f"syntax error at {text[position : position + 20]!r}", line)
        kind = match.lastgroup or ""
        if kind == "newline":
            line += 1
        elif kind == "block":
            line += match.group().count("\n")
        elif kind not in ("space", "comment"):
            tokens.append(Token(kind, match.group(), line))
        position = match.end()
    tokens.append(Token("end", "end of file", line))
    return tokens
