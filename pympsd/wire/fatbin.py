"""Find the PTX for a device in a fatbin, which contains images for several architectures.

A fatbin is a header of 16 bytes (magic number, version, its own size, the size of the rest; fatbinary.h), then for
each image a header and the image. The fields of an image's header were worked out from the files that ``nvcc`` of
CUDA 13 writes with each ``--compress-mode``:

| bytes | field |
| --- | --- |
| 0 to 3 | kind (u16), version (u16) |
| 4 to 15 | size of the header (u32), size of the image with its padding (u64) |
| 16 to 23 | size of the compressed image (u32), 4 bytes that are not used here |
| 24 to 31 | version (2 u16), architecture (u32) |
| 32 to 63 | 8 bytes, flags (u64), 8 bytes, size before compression (u64) |

PTX may be compressed with LZ4 (``--compress-mode=speed``, a bare block) or Zstandard (``size`` and ``balance``). A
fatbin comes from an untrusted program, so sizes are checked: a text above MAX_TEXT_BYTES is not decompressed, and the
decompressed text must have exactly the announced size.
"""

import struct
import sys
from typing import Final

from attrs import frozen

from pympsd.errors import DeviceError
from pympsd.vocabulary.results import Result

# Without these libraries a server can still run images that are not compressed.
try:
    from lz4 import block as lz4
except ImportError:
    lz4 = None
try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    zstd = None  # type: ignore[assignment] # mypy has the module's type only

MAGIC: Final = struct.pack("<I", 0xBA55ED50)
_HEADER: Final = struct.Struct("<IHHQ")
_ENTRY: Final = struct.Struct("<HHIQI8xI8xQ8xQ")
_PTX, _CUBIN, _LTO = 1, 2, 8
_NAMES: Final = {_PTX: "PTX", _CUBIN: "machine code", _LTO: "LTO code"}
_LZ4: Final = 0x2000
_ZSTANDARD: Final = 0x8000
_THIS_ARCHITECTURE_ONLY: Final = 0x100000
MAX_TEXT_BYTES: Final = 16 << 20
"""The maximum size in bytes of a PTX text to decompress."""
_MAX_ENTRIES: Final = 4096


class FatbinError(DeviceError):
    """A fatbin has no usable PTX. ``code`` is the CUresult for the caller of the driver API."""

    def __init__(self, code: Result, reason: str) -> None:
        super().__init__(reason)
        self.code: Final = code
        self.reason: Final = reason


@frozen
class _Entry:
    """One image of a fatbin."""

    kind: int
    architecture: int
    flags: int
    data: bytes
    size: int
    """The size in bytes before compression."""

    @property
    def is_exact(self) -> bool:
        """Whether the image is for its architecture only, because it uses special instructions of that architecture
        (sm_90a).
        """
        return bool(self.flags & _THIS_ARCHITECTURE_ONLY)

    def serves(self, architecture: int) -> bool:
        """Return whether a device of this architecture can run the image."""
        if self.is_exact:
            return self.architecture == architecture
        return self.architecture <= architecture

    def __str__(self) -> str:
        return f"{_NAMES.get(self.kind, f'code of kind {self.kind}')} for sm_{self.architecture}"


def ptx_of(image: bytes, compute_capability: tuple[int, int]) -> bytes:
    """Return the PTX of a fatbin for the newest architecture that a device can run; sm_90a counts as newer than
    sm_90.

    Raise FatbinError with INVALID_IMAGE if the fatbin is malformed, and with NO_BINARY_FOR_GPU if it has no PTX for
    the device. The error is NOT_SUPPORTED if the fatbin contains only LTO code, or if the library for its compression
    is not installed.
    """
    entries = _read_entries(image)
    architecture = compute_capability[0] * 10 + compute_capability[1]
    candidates = [entry for entry in entries if entry.kind == _PTX and entry.serves(architecture)]
    if candidates:
        return _decompress(max(candidates, key=lambda entry: (entry.architecture, entry.is_exact)))
    contents = ", ".join(map(str, entries)) or "nothing"
    if entries and all(entry.kind == _LTO for entry in entries):
        reason = f"the fatbin holds {contents}: link-time optimization is not supported; compile to PTX (nvcc -ptx)"
        raise FatbinError(Result.ERROR_NOT_SUPPORTED, reason)
    reason = f"the fatbin holds {contents}; the emulated GPU runs PTX for sm_{architecture} and below"
    raise FatbinError(Result.ERROR_NO_BINARY_FOR_GPU, reason)


def _read_entries(image: bytes) -> list[_Entry]:
    """Return the images of a fatbin, still compressed. Raise FatbinError if it is malformed."""
    try:
        _, _, at, size = _HEADER.unpack_from(image)
        end = at + size
        entries: list[_Entry] = []
        if at < _HEADER.size or end > len(image):
            raise _malformed("it is cut off")
        while at < end and len(entries) < _MAX_ENTRIES:
            kind, _, header, padded, compressed, architecture, flags, size = _ENTRY.unpack_from(image, at)
            start = at + header
            at = start + padded
            if header < _ENTRY.size or at > end or compressed > padded:
                raise _malformed("an image in it is cut off")
            data = image[start : start + compressed] if flags & (_LZ4 | _ZSTANDARD) else image[start:at]
            entries.append(_Entry(kind, architecture, flags, data, size))
    except struct.error:
        raise _malformed("it is cut off") from None
    return entries


def _decompress(entry: _Entry) -> bytes:
    if not entry.flags & (_LZ4 | _ZSTANDARD):
        return entry.data
    if entry.size > MAX_TEXT_BYTES:
        raise _malformed(f"its PTX has {entry.size} bytes decompressed; at most {MAX_TEXT_BYTES} are read")
    try:
        text = _decompress_lz4(entry) if entry.flags & _LZ4 else _decompress_zstandard(entry)
    except ValueError as error:
        raise _malformed(f"its PTX cannot be decompressed: {error}") from None
    if len(text) != entry.size:
        raise _malformed(f"its PTX cannot be decompressed: {len(text)} bytes where {entry.size} were announced")
    return text


def _decompress_lz4(entry: _Entry) -> bytes:
    if lz4 is None:
        raise _missing("LZ4", "lz4")
    try:
        text: bytes = lz4.decompress(entry.data, uncompressed_size=entry.size)
    except lz4.LZ4BlockError as error:
        raise ValueError(str(error)) from None
    return text


def _decompress_zstandard(entry: _Entry) -> bytes:
    if zstd is None:
        raise _missing("Zstandard", "backports.zstd" if sys.version_info < (3, 14) else "")
    frame = zstd.ZstdDecompressor()
    try:
        # Decompress at most one byte more than announced, which is enough to detect a longer text.
        text = frame.decompress(entry.data, entry.size + 1)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from None
    if not frame.eof and len(text) <= entry.size:
        raise ValueError("the Zstandard frame is cut off")
    return text


def _missing(compression: str, package: str) -> FatbinError:
    remedy = f"install it with: pip install {package}" if package else "this Python was built without it"
    reason = f"the fatbin's PTX is compressed with {compression}, whose library is missing: {remedy}"
    return FatbinError(Result.ERROR_NOT_SUPPORTED, reason)


def _malformed(what: str) -> FatbinError:
    return FatbinError(Result.ERROR_INVALID_IMAGE, f"the fatbin is malformed: {what}")
