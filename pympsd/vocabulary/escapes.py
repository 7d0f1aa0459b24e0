"""Control characters, escaped: what another program says must not command the terminal that shows it.

Imports nothing, as the command line uses it.
"""

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
ESCAPED = {
    # A lone byte from 0x80 on is undecodable, and decoded as a surrogate.
    code: f"\\x{byte:02x}"
    for byte in _CONTROLS
    if chr(byte) not in "\t\n"
    for code in (byte, 0xDC00 + byte)
}
"""A table for ``str.translate``: tabs, line ends and other undecodable bytes (as surrogates) stay as they are."""


def escape_controls(data: bytes) -> bytes:
    """Return bytes whose control characters are escaped, as in ``\\x1b``, except for tabs and line ends."""
    return data.decode("utf-8", "surrogateescape").translate(ESCAPED).encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """Return one line of text, in which everything that is not printable is a question mark."""
    return "".join(char if char.isprintable() else "?" for char in text)
