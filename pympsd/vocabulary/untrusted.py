"""Select the lines that a tool may send to a program that it does not trust, and make the answers printable.

A tool that does not trust the daemon sends it only queries: command lines that change nothing, by their words alone;
the table of all commands calls `is_query`. Control characters are escaped: text from another program must not control
the terminal that shows it. Imports nothing, because the command line uses it.
"""

VERBS = frozenset({"list", "get", "describe", "show", "status", "test"})
"""The verbs of protocol 3 that change nothing; their standard output is data only."""
_HELP = frozenset({"help", "--help"})
_NAMES = frozenset({"ps", "device_query", "lspart"})
"""The queries of protocol 2 whose names do not begin with get_."""


def is_query(line: str) -> bool:
    """Return whether a command line changes nothing at a daemon of either protocol, and names no file.

    Queries are sent even to a daemon that is not trusted.
    """
    words = line.split()
    if not words or words[0] in _HELP:
        return True
    second = words[1] if len(words) > 1 else ""
    return words[0].startswith("get_") or words[0] in _NAMES or second in VERBS | _HELP


_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
ESCAPED = {
    # A lone byte from 0x80 on is undecodable, and decoded as a surrogate.
    code: f"\\x{byte:02x}"
    for byte in _CONTROLS
    if chr(byte) not in "\t\n"
    for code in (byte, 0xDC00 + byte)
}
"""A table for ``str.translate`` that escapes control characters. Tabs and line ends stay, and so do other bytes that
cannot be decoded (as surrogates)."""


def escape_controls(data: bytes) -> bytes:
    """Return bytes whose control characters are escaped, as in ``\\x1b``, except for tabs and line ends."""
    return data.decode("utf-8", "surrogateescape").translate(ESCAPED).encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """Return a text as one printable line: every other character becomes a question mark.

    >>> printable("a\\tb\\x1b[1m")
    'a?b?[1m'
    """
    return "".join(char if char.isprintable() else "?" for char in text)
