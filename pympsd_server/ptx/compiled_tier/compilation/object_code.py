"""Load a kernel's object code into executable memory without LLVM.

The problem: a kernel that was compiled earlier is one file. To load it, LLVM would only copy sections and fill in
addresses, but importing and initialising LLVM takes 21 ms, five times as long as everything else.

The idea: LLVM writes kernels for the large code model, in which code and data may be anywhere. So every address is a
whole word, and x86-64 has only one kind of relocation for them:

    movabs $0, %rax        R_X86_64_64 kernels_resolve        the address of a function of the C runtime
    .rodata: 0, 0, 0       R_X86_64_64 .ltext + 0x312         a place in the kernel, in a table of jumps

`link` copies the sections that a process needs into pages of its own, writes these words, and makes the pages
readable and executable; they are never writable and executable at the same time. It returns None for object code that
it does not support: other processors, other relocations, writable data, functions that are not in the runtime. LLVM
then loads the code.

This user's LLVM has written the object code (kernel_cache.py), so it is trusted as much as LLVM's output.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping
from typing import Final

from attrs import define

_ELF_OF_64_BITS: Final = b"\x7fELF\x02\x01"
_X86_64: Final = 62
_SYMBOLS, _RELA, _NOBITS, _REL = 2, 4, 8, 9
_WRITE, _ALLOC = 1, 2
_R_X86_64_64: Final = 1
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_PROTECT: Final = ctypes.CDLL(None, use_errno=True).mprotect
_PROTECT.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@define(eq=False)
class LinkedCode:
    """A function in executable memory, which exists as long as this object."""

    address: int
    """The address of the function."""
    _memory: object
    """The object that owns the memory."""


class _Unknown(Exception):
    """The object code contains something that only LLVM can load."""


def link(object_code: bytes, function: str, addresses: Mapping[str, int]) -> LinkedCode | None:
    """Load object code, and return one of its functions. Return None if only LLVM can load the code.

    `addresses` are the addresses of the functions that the code may call, by name.
    """
    try:
        return _Object(object_code).link(function, addresses)
    except (_Unknown, OSError):  # some systems do not allow executable memory
        return None


class _Object:
    """An ELF file of relocatable code."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        if not data.startswith(_ELF_OF_64_BITS) or struct.unpack_from("<H", data, 18)[0] != _X86_64:
            raise _Unknown
        at, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
        self._sections = [_SECTION.unpack_from(data, at + size * number) for number in range(count)]
        self._offsets: dict[int, int] = {}
        """The offset in memory of each section that a process needs, by the section's number."""
        self._end = 1
        self._place()

    def _place(self) -> None:
        for number, (_, _, flags, _, _, nbytes, _, _, alignment, _) in enumerate(self._sections):
            if flags & _ALLOC:
                if flags & _WRITE or alignment > mmap.PAGESIZE:
                    raise _Unknown
                self._offsets[number] = -(-self._end // max(alignment, 1)) * max(alignment, 1)
                self._end = self._offsets[number] + nbytes

    def link(self, function: str, addresses: Mapping[str, int]) -> LinkedCode:
        """Load the code, and return a function. Raises _Unknown for unsupported code, or OSError."""
        memory = mmap.mmap(-1, self._end)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        symbols = self._symbols(base, addresses)
        for number, offset in self._offsets.items():
            if self._sections[number][1] != _NOBITS:
                content = self._content(number)
                memory[offset : offset + len(content)] = content
        for number, (_, kind, _, _, _, _, _, target, _, _) in enumerate(self._sections):
            if kind in (_RELA, _REL) and target in self._offsets:
                self._relocate(memory, number, self._offsets[target], [address for _, address in symbols])
        if _PROTECT(base, self._end, mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "mprotect")
        return LinkedCode(next(address for name, address in symbols if name == function and address), memory)

    def _content(self, number: int) -> bytes:
        start, nbytes = self._sections[number][4:6]
        return self._data[start : start + nbytes]

    def _symbols(self, base: int, addresses: Mapping[str, int]) -> list[tuple[str, int]]:
        """Return the name and address of each symbol; the address of an unknown symbol is 0."""
        number = next(number for number, section in enumerate(self._sections) if section[1] == _SYMBOLS)
        names, symbols = self._content(self._sections[number][6]), []
        for name, _, _, section, value, _ in _SYMBOL.iter_unpack(self._content(number)):
            text = names[name : names.index(b"\0", name)].decode()
            is_own = section in self._offsets
            symbols.append((text, base + self._offsets[section] + value if is_own else addresses.get(text, 0)))
        return symbols

    def _relocate(self, memory: mmap.mmap, number: int, offset: int, addresses: list[int]) -> None:
        """Write the addresses of a section of relocations into the section that is at an offset in memory."""
        if self._sections[number][1] == _REL:
            raise _Unknown
        for place, info, addend in _RELOCATION.iter_unpack(self._content(number)):
            address = addresses[info >> 32]
            if info & 0xFFFFFFFF != _R_X86_64_64 or not address:
                raise _Unknown
            struct.pack_into("<Q", memory, offset + place, (address + addend) & (2**64 - 1))
