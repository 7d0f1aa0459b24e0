"""Fatbins: the images that one file holds for several architectures, and the PTX among them for a device.

A fatbin is a header of 16 bytes (magic number, version, its own size, the size of what follows; fatbinary.h), then
for each image a header and the image. The header's fields were read off what ``nvcc`` of CUDA 13 makes with each
``--compress-mode``: kind (u16), version (u16), size of the header (u32), size of the image with padding (u64), its
size compressed (u32), 4 bytes, version (2 u16), architecture (u32), 8 bytes, flags (u64), 8 bytes, size before
compression (u64).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.images import lz4, zstandard

MAGIC: Final = struct.pack("<I", 0xBA55ED50)
_HEADER: Final = struct.Struct("<IHHQ")
_ENTRY: Final = struct.Struct("<HHIQI8xI8xQ8xQ")
_PTX, _CUBIN, _LTO = 1, 2, 8
_NAMES: Final = {_PTX: "PTX", _CUBIN: "machine code", _LTO: "LTO code"}
_LZ4: Final = 0x2000
_ZSTANDARD: Final = 0x8000
_THIS_ARCHITECTURE_ONLY: Final = 0x100000
_TEXT_LIMIT: Final = 16 << 20
"""Bytes of the longest PTX text that is unpacked."""
_ENTRY_LIMIT: Final = 4096


class FatbinError(Exception):
    """A fatbin without PTX that can be used, with the CUresult that this is."""

    def __init__(self, code: Result, reason: str) -> None:
        super().__init__(reason)
        self.code: Final = code
        self.reason: Final = reason


@frozen
class _Entry:
    kind: int
    architecture: int
    flags: int
    data: bytes
    size: int
    """Before compression."""

    def serves(self, architecture: int) -> bool:
        """Return whether it is for a device of this architecture."""
        if self.flags & _THIS_ARCHITECTURE_ONLY:
            return self.architecture == architecture
        return self.architecture <= architecture

    def __str__(self) -> str:
        return f"{_NAMES.get(self.kind, f'code of kind {self.kind}')} for sm_{self.architecture}"


def ptx_of(image: bytes, compute_capability: tuple[int, int]) -> bytes:
    """Return the PTX of a fatbin for the newest architecture that a device can run.

    FatbinError INVALID_IMAGE if it is malformed, NOT_SUPPORTED if it holds LTO code alone, NO_BINARY_FOR_GPU if it
    holds no PTX for the device.
    """
    entries = _entries(image)
    architecture = compute_capability[0] * 10 + compute_capability[1]
    found = [entry for entry in entries if entry.kind == _PTX and entry.serves(architecture)]
    if found:
        return _unpacked(max(found, key=lambda entry: entry.architecture))
    held = ", ".join(map(str, entries)) or "nothing"
    if entries and all(entry.kind == _LTO for entry in entries):
        reason = f"the fatbin holds {held}: link-time optimization is not supported; compile to PTX (nvcc -ptx)"
        raise FatbinError(Result.ERROR_NOT_SUPPORTED, reason)
    reason = f"the fatbin holds {held}; the emulated GPU runs PTX for sm_{architecture} and below"
    raise FatbinError(Result.ERROR_NO_BINARY_FOR_GPU, reason)


def _entries(image: bytes) -> list[_Entry]:
    try:
        _, _, at, size = _HEADER.unpack_from(image)
        end = at + size
        entries: list[_Entry] = []
        if at < _HEADER.size or end > len(image):
            raise _malformed("it is cut off")
        while at < end and len(entries) < _ENTRY_LIMIT:
            kind, _, header, padded, packed, architecture, flags, whole = _ENTRY.unpack_from(image, at)
            start = at + header
            at = start + padded
            if header < _ENTRY.size or at > end or packed > padded:
                raise _malformed("an image in it is cut off")
            data = image[start : start + packed] if flags & (_LZ4 | _ZSTANDARD) else image[start:at]
            entries.append(_Entry(kind, architecture, flags, data, whole))
    except struct.error:
        raise _malformed("it is cut off") from None
    return entries


def _unpacked(entry: _Entry) -> bytes:
    unpack: Callable[[bytes, int], bytes] | None = None
    if entry.flags & _LZ4:
        unpack = lz4.decompress
    elif entry.flags & _ZSTANDARD:
        unpack = zstandard.decompress
    if unpack is None:
        return entry.data
    if entry.size > _TEXT_LIMIT:
        raise _malformed(f"its PTX has {entry.size} bytes unpacked, {_TEXT_LIMIT} at most are read")
    try:
        return unpack(entry.data, entry.size)
    except ValueError as error:
        raise _malformed(f"its PTX cannot be unpacked: {error}") from None


def _malformed(what: str) -> FatbinError:
    return FatbinError(Result.ERROR_INVALID_IMAGE, f"the fatbin is malformed: {what}")
