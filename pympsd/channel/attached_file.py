"""Read the file that a command names on behalf of the daemon, which would open it with its own rights.

``config apply FILE`` sends the text. ``config status --expect=FILE`` sends the hash of the text, so that a readiness
probe can compare the file that is mounted now with the file that was applied.
"""

import os
import stat
from collections.abc import Sequence
from typing import Final

from pympsd.wire import frames

EXPECT: Final = "--expect"
_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def text_of(words: Sequence[str]) -> bytes:
    """Return the text of the first file that words name.

    Raise LookupError with the reason if the file cannot be read.
    """
    path = _find_path(words)
    return _read(path) if path else b""  # the daemon reports what is missing


def _read(path: str) -> bytes:
    """Return the text of a file; raise LookupError as ``text_of`` does."""
    if len(path.split()) > 1:
        raise LookupError(
            f"{path}: the path of a configuration file must not contain blanks, because the daemon splits lines there"
        )
    try:
        with open(path, "rb", opener=_open) as file:
            if problem := _problem(os.fstat(file.fileno()), path):
                raise LookupError(f"{path}: {problem}")
            text = file.read(frames.MAX_BODY + 1)
    except (OSError, ValueError) as error:
        raise LookupError(f"{path}: {getattr(error, 'strerror', '') or error}") from None
    if len(text) > frames.MAX_BODY:
        raise LookupError(f"{path}: a configuration file has at most {frames.MAX_BODY} bytes")
    return text


def _open(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _problem(status: os.stat_result, path: str) -> str:
    """Return why a file must not be read; empty if it may be read."""
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        return f"a configuration file must be a regular file, not {kind}; write the text to a regular file first"
    if os.geteuid() != 0:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "root does not read a file that everybody can write to; remove that right with chmod o-w"
    folder = os.path.dirname(os.path.realpath(path))
    if status.st_uid != 0 and os.stat(folder).st_mode & stat.S_IWOTH:
        return (
            f"root does not read a file of user {status.st_uid} in a directory where everybody can put files; "
            "copy the file to a directory of root's"
        )
    return ""


def expand_path(words: Sequence[str]) -> list[str]:
    """Return the words with a file's full path, which the daemon shows later. A path with blanks is left as it is."""
    path = _find_path(words)
    full = os.path.abspath(path)
    return [full if word == path and len(full.split()) == 1 else word for word in words]


def hash_expected_file(words: Sequence[str]) -> list[str]:
    """Return the words with the SHA-256 of a file in place of its path in the option --expect.

    A path contains a slash.

    ``["--expect", "./mps.toml", "--json"]`` becomes ``["--expect=94ffb5...", "--json"]``.

    Raises:
        LookupError: The file cannot be read.
    """
    from hashlib import sha256

    remaining = list(words)
    hashed = []
    while remaining:
        word = remaining.pop(0)
        if word == EXPECT and remaining:
            word = f"{EXPECT}={remaining.pop(0)}"
        option, _, value = word.partition("=")
        if option == EXPECT and "/" in value:
            word = f"{EXPECT}={sha256(_read(value)).hexdigest()}"
        hashed.append(word)
    return hashed


def _find_path(words: Sequence[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "")
