"""What a module image is, and what a cubin holds, pure: the driver takes an image by address and trusts its contents.

A cubin is an ELF file for machine 190 (EM_CUDA); its variables are the objects of its symbol table. Sources:
ELF-64 object file format; cuobjdump -elf; fatbinary.h for the magic number.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final

from attrs import frozen

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


@frozen
class Section:
    """A section of a cubin; ``data`` is empty where the file holds none."""

    name: str
    kind: int
    flags: int
    size: int
    link: int
    data: bytes


@frozen
class Cubin:
    """What matters of a cubin: the names of its variables, the bytes it takes on the device, and what it lacks.

    ``undefined`` are the names of functions that the driver is to supply, or another image.
    """

    variables: tuple[str, ...]
    device_bytes: int
    undefined: tuple[str, ...] = ()


def kind_of(image: bytes) -> str:
    """Return ``ptx``, ``cubin`` or ``fatbin``; BackendError INVALID_PTX for nothing, INVALID_IMAGE for none."""
    if image.startswith(_ELF):
        return "cubin"
    if image.startswith(_FATBIN):
        return "fatbin"
    text = image.rstrip(b"\0")
    if not text.strip():
        raise BackendError(Result.ERROR_INVALID_PTX, "the image is empty")
    if b"\0" in text or not text.isascii():
        raise BackendError(Result.ERROR_INVALID_IMAGE, "the image is no PTX text, no cubin and no fatbin")
    return "ptx"


def check_fatbin(image: bytes) -> None:
    """BackendError INVALID_IMAGE unless all that the header announces is there."""
    if len(image) >= _FATBIN_HEADER.size:
        _, _, header, size = _FATBIN_HEADER.unpack_from(image)
        if header >= _FATBIN_HEADER.size and header + size <= len(image):
            return
    raise BackendError(Result.ERROR_INVALID_IMAGE, "the fatbin is cut off")


def read_cubin(image: bytes) -> Cubin:
    """Read a cubin; BackendError NO_BINARY_FOR_GPU for none or a part of one, NOT_SUPPORTED for what MPS does not."""
    try:
        found = _read(image)
    except (struct.error, ValueError, IndexError) as error:
        reason = f"the image begins as ELF and is no cubin: {error}"
        raise BackendError(Result.ERROR_NO_BINARY_FOR_GPU, reason) from None
    return _supported(found)


def read_fatbin(image: bytes) -> Cubin:
    """Return what can be seen of a fatbin: the variables of its cubins that are not compressed, and the largest size.

    Of one whose cubins are all compressed that is no variables, and the size of the file. BackendError NOT_SUPPORTED
    when one of those seen uses what MPS does not support.
    """
    found, at = [], image.find(_ELF)
    while at >= 0:
        with suppress(struct.error, ValueError, IndexError):  # bytes that only look like a beginning
            found.append(_read(image[at:]))
        at = image.find(_ELF, at + 1)
    for each in found:
        _supported(each)
    names = {name: None for each in found for name in each.variables}
    return Cubin(tuple(names), max((each.device_bytes for each in found), default=len(image)))


def _supported(cubin: Cubin) -> Cubin:
    for name in cubin.undefined:
        if is_device_runtime(name):
            raise BackendError(Result.ERROR_NOT_SUPPORTED, refusal(name))
    return cubin


def _read(image: bytes) -> Cubin:
    identity, _, machine, *_ = header = _HEADER.unpack_from(image)
    if identity[4:6] != b"\2\1" or machine != _EM_CUDA:
        raise ValueError(f"machine {machine}, where a 64-bit cubin has {_EM_CUDA}")
    offset, entry_size, count, names_at = header[6], header[11], header[12], header[13]
    if entry_size != _SECTION.size:
        raise ValueError(f"section headers of {entry_size} bytes")
    rows = [_SECTION.unpack_from(image, offset + index * entry_size) for index in range(count)]
    names = _bytes(image, rows[names_at]) if rows else b""
    sections = [_section(image, row, names) for row in rows]
    tables = [each for each in sections if each.kind == _SYMBOLS]
    return Cubin(
        tuple(name for each in tables for name in _variables(each, sections)),
        sum(each.size for each in sections if each.flags & _ALLOCATED),
        tuple(name for each in tables for name in _undefined(each, sections)),
    )


def _bytes(image: bytes, row: tuple[int, ...]) -> bytes:
    _, kind, _, _, offset, size = row[:6]
    if kind == _NO_BITS:
        return b""
    if offset + size > len(image):
        raise ValueError(f"a section ends at byte {offset + size}, the image has {len(image)}")
    return image[offset : offset + size]


def _section(image: bytes, row: tuple[int, ...], names: bytes) -> Section:
    return Section(_text(names, row[0]), row[1], row[2], row[5], row[6], _bytes(image, row))


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode("ascii", "replace")


def _variables(symbols: Section, sections: list[Section]) -> list[str]:
    names = sections[symbols.link].data
    found = []
    for name, info, _, index, _, size in _SYMBOL.iter_unpack(symbols.data):
        # Local symbols too: those of variables that are not .visible, which NVRTC's are not.
        if info & 15 == _OBJECT and size and 0 < index < len(sections):
            where = sections[index].name
            if where.startswith((".nv.global", ".nv.constant3")):
                found.append(_text(names, name))
    return found


def _undefined(symbols: Section, sections: list[Section]) -> list[str]:
    names = sections[symbols.link].data
    rows = _SYMBOL.iter_unpack(symbols.data)
    return [_text(names, name) for name, info, _, index, _, _ in rows if info & 15 == _FUNCTION and not index]
