"""Check and read module images, because the driver takes an image by its address and trusts its contents. Sans-I/O.

A cubin is an ELF file for machine 190 (EM_CUDA); its variables are the objects of its symbol table. Sources:
ELF-64 object file format; cuobjdump -elf; fatbinary.h for the magic number.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final

from attrs import define, frozen

from pympsd.vocabulary.device_runtime import is_device_runtime, refusal
from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError

_ELF: Final = b"\x7fELF"
_FATBIN: Final = struct.pack("<I", 0xBA55ED50)
_FATBIN_HEADER: Final = struct.Struct("<IHHQ")
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_EM_CUDA: Final = 190
_SYMBOLS: Final = 2
_NO_BITS: Final = 8
_ALLOCATED: Final = 2
_OBJECT: Final = 1
_FUNCTION: Final = 2
_DATA: Final = (b".nv.global", b".nv.constant3")
"""The beginnings of the names of sections that contain variables."""
_MAX_READS: Final = 2
"""The maximum number of bytes to read from a file, as a multiple of its size.

The file may need more than one reading, because names may share their ends, and code may look like a header.
"""
_DAMAGE: Final = (struct.error, ValueError, IndexError, OverflowError)
"""The exceptions that reading a malformed file raises."""


class _TooLarge(Exception):
    """The contents that a file claims to have are larger than the file."""


@define
class _File:
    """An image of which ``readable`` more bytes may be read. Only its names are copied.

    Without this bound a small file, whose headers overlap and all claim the entire file, could take hours and
    gigabytes to read.
    """

    image: bytes
    readable: int

    @classmethod
    def of(cls, image: bytes) -> _File:
        """Return an image that is yet to be read."""
        return cls(image, _MAX_READS * len(image))

    def count_read(self, count: int) -> None:
        """Count bytes that are about to be read; raise _TooLarge if they are too many."""
        self.readable -= count
        if self.readable < 0:
            raise _TooLarge(f"the contents would take more than the file's {len(self.image)} bytes")

    def text(self, start: int, end: int) -> str:
        """Return the name at ``start``; raise ValueError if it does not end with a NUL before ``end``."""
        stop = self.image.find(b"\0", start, end)
        self.count_read(max(0, (end if stop < 0 else stop) - start))
        if stop < 0:
            raise ValueError(f"the name at byte {start} has no end")
        return self.image[start:stop].decode("ascii", "replace")


@frozen
class _Section:
    """A section of a cubin; its bytes in the image are those from ``start`` to ``end``."""

    name: int
    kind: int
    flags: int
    size: int
    link: int
    start: int
    end: int


@frozen
class Cubin:
    """The parts of a cubin that this backend needs: variables, bytes taken on the device, undefined functions.

    ``undefined`` are the names of functions that the driver or another image must supply.
    """

    variables: tuple[str, ...]
    device_bytes: int
    undefined: tuple[str, ...] = ()


def kind_of(image: bytes) -> str:
    """Return the kind of an image: ``ptx``, ``cubin`` or ``fatbin``.

    Raises:
        BackendError: INVALID_PTX if the image is empty, INVALID_IMAGE if it is none of these.
    """
    if image.startswith(_ELF):
        return "cubin"
    if image.startswith(_FATBIN):
        return "fatbin"
    text = image.rstrip(b"\0")
    if not text.strip():
        raise BackendError(Result.ERROR_INVALID_PTX, "the image is empty")
    if b"\0" in text or not text.isascii():
        raise BackendError(Result.ERROR_INVALID_IMAGE, "the image is neither PTX text nor a cubin nor a fatbin")
    return "ptx"


def check_fatbin(image: bytes) -> None:
    """Raise BackendError INVALID_IMAGE if the image is shorter than its header states."""
    if len(image) >= _FATBIN_HEADER.size:
        _, _, header, size = _FATBIN_HEADER.unpack_from(image)
        if header >= _FATBIN_HEADER.size and header + size <= len(image):
            return
    raise BackendError(Result.ERROR_INVALID_IMAGE, "the fatbin is shorter than its header states")


def read_cubin(image: bytes) -> Cubin:
    """Read a cubin; raise BackendError NO_BINARY_FOR_GPU if malformed, NOT_SUPPORTED if MPS does not support it."""
    try:
        cubin = _read(_File.of(image), 0)
    except (*_DAMAGE, _TooLarge) as error:
        reason = f"the image begins as ELF and is not a cubin: {error}"
        raise BackendError(Result.ERROR_NO_BINARY_FOR_GPU, reason) from None
    return _check_supported(cubin)


def read_fatbin(image: bytes) -> Cubin:
    """Return the variables of a fatbin's uncompressed cubins, and the size of the largest of these cubins.

    If all are compressed, return no variables and the size of the file.

    Raises:
        BackendError: NOT_SUPPORTED if a cubin uses what MPS does not support; INVALID_IMAGE if they overlap.
    """
    try:
        file, cubins, at = _File.of(image), [], image.find(_ELF)
        while at >= 0:
            with suppress(*_DAMAGE):  # bytes that only look like a header
                cubins.append(_read(file, at))
            at = image.find(_ELF, at + 1)
    except _TooLarge as error:
        raise BackendError(Result.ERROR_INVALID_IMAGE, f"the fatbin's cubins: {error}") from None
    for cubin in cubins:
        _check_supported(cubin)
    names = {name: None for cubin in cubins for name in cubin.variables}
    return Cubin(tuple(names), max((cubin.device_bytes for cubin in cubins), default=len(image)))


def _check_supported(cubin: Cubin) -> Cubin:
    for name in cubin.undefined:
        if is_device_runtime(name):
            raise BackendError(Result.ERROR_NOT_SUPPORTED, refusal(name))
    return cubin


def _read(file: _File, base: int) -> Cubin:
    """Read the cubin that begins at byte ``base``."""
    file.count_read(_HEADER.size)
    identity, _, machine, *_ = header = _HEADER.unpack_from(file.image, base)
    if identity[4:6] != b"\2\1" or machine != _EM_CUDA:
        raise ValueError(f"machine {machine}; a 64-bit cubin has {_EM_CUDA}")
    offset, entry_size, count, names_at = header[6], header[11], header[12], header[13]
    if entry_size != _SECTION.size:
        raise ValueError(f"section headers of {entry_size} bytes")
    file.count_read(count * entry_size)
    sections = [_section(file.image, base, offset + index * entry_size) for index in range(count)]
    variables, undefined = _symbols(file, sections, names_at) if sections else ([], [])
    device_bytes = sum(section.size for section in sections if section.flags & _ALLOCATED)
    return Cubin(_drop_duplicates(variables), device_bytes, _drop_duplicates(undefined))


def _section(image: bytes, base: int, at: int) -> _Section:
    name, kind, flags, _, offset, size, link, *_ = _SECTION.unpack_from(image, base + at)
    start = base + offset
    end = start if kind == _NO_BITS else start + size
    if end > len(image) and kind != _NO_BITS:
        raise ValueError(f"a section ends at byte {end}, the image has {len(image)}")
    return _Section(name, kind, flags, size, link, start, end)


def _symbols(file: _File, sections: list[_Section], names_at: int) -> tuple[list[str], list[str]]:
    """Return the names of variables, and the names of undefined functions."""
    section_names, variables, undefined = sections[names_at], [], []

    def holds_data(index: int) -> bool:
        start = section_names.start + sections[index].name
        return file.image.startswith(_DATA, start, section_names.end)

    for table in sections:
        if table.kind != _SYMBOLS:
            continue
        names = sections[table.link]
        file.count_read(table.end - table.start)
        rows = memoryview(file.image)[table.start : table.end]
        for name, info, _, index, _, size in _SYMBOL.iter_unpack(rows):
            kind = info & 15
            # Local symbols too, because NVRTC's variables are not .visible.
            if kind == _OBJECT and size and 0 < index < len(sections) and holds_data(index):
                variables.append(file.text(names.start + name, names.end))
            elif kind == _FUNCTION and not index:
                undefined.append(file.text(names.start + name, names.end))
    return variables, undefined


def _drop_duplicates(names: list[str]) -> tuple[str, ...]:
    """Return each name once, in order, because several symbols may have the same name."""
    return tuple(dict.fromkeys(names))
