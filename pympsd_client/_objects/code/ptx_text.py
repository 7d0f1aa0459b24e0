"""PTX as text: the limit of registers as a directive of its kernels (PTX ISA, .maxnreg)."""

from __future__ import annotations

import re
from typing import Final

_SKIPPED: Final = r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"'
_ENTRY: Final = re.compile(rb"(?s)" + _SKIPPED.encode() + rb"|(\.entry\b[^{;]*)([{;])")
_COMMENT: Final = re.compile(rb"(?s)//[^\n]*|/\*.*?\*/")


def limited(image: bytes, registers: int) -> bytes:
    """Return an image whose kernels use at most this many registers a thread, where PTX says no other limit.

    0 is no limit. Images that are not PTX are returned as they are.
    """
    if registers <= 0 or b".entry" not in image or b"\0" in image.rstrip(b"\0"):
        return image

    def with_limit(match: re.Match[bytes]) -> bytes:
        head, end = match.groups()
        if head is None or end == b";" or b".maxnreg" in _COMMENT.sub(b" ", head):
            return match.group()
        return head + b"\n.maxnreg %d\n" % registers + end

    return _ENTRY.sub(with_limit, image)
