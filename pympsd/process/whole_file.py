"""Write a file whole or not at all: beside its place, then renamed."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress


def write_whole(path: str, content: bytes, mode: int | None = None) -> None:
    """Write a file in the place of one that may be there, which stays as it is if that fails; raise OSError.

    ``mode``: its permissions; by default those of the file in its place, or as the umask has it. A link in its place
    is replaced and not followed.
    """
    new = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{secrets.token_hex(4)}.new")
    try:
        with open(new, "xb") as file:
            file.write(content)
        with suppress(FileNotFoundError):
            os.chmod(new, os.lstat(path).st_mode & 0o777 if mode is None else mode)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise
