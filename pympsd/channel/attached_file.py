"""The file that a command names, read for the daemon: that would read it with rights of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pympsd.wire import frames


def text_of(words: Sequence[str]) -> bytes:
    """Return the text of the first file that words name; raise LookupError with the reason why it cannot be read."""
    path = _named(words)
    if not path:
        return b""  # the daemon says what is missing
    if len(path.split()) > 1:
        raise LookupError(
            f"{path}: the path of a configuration file has no blanks, for the daemon splits lines there"
        )
    try:
        with open(path, "rb") as file:
            text = file.read(frames.BODY_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise LookupError(f"{path}: {getattr(error, 'strerror', '') or error}") from None
    if len(text) > frames.BODY_LIMIT:
        raise LookupError(f"{path}: a configuration file has at most {frames.BODY_LIMIT} bytes")
    return text


def with_full_path(words: Sequence[str]) -> list[str]:
    """Return words that name a file by its full path, which the daemon shows later, if that has no blanks."""
    path = _named(words)
    full = os.path.abspath(path)
    return [full if word == path and len(full.split()) == 1 else word for word in words]


def _named(words: Sequence[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "")
