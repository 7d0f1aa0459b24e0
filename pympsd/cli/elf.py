"""Read a program's ELF file: machine, libraries, search paths, and whether it contains CUDA.

Parts are read at the offsets that the file states (elf(5)), at most `MAX_READ` bytes each, because a program may have
several gigabytes, and may come from an untrusted source::

    header            class, byte order and machine; a file for another machine is not read further
    program headers   PT_INTERP: a dynamic loader loads libraries for it; PT_LOAD: where an address is in the file
    PT_DYNAMIC        DT_NEEDED, DT_RPATH and DT_RUNPATH, offsets in the string table
    section headers   .nvFatBinSegment: device code; .rodata: the texts of a static CUDA runtime

If the sections have been stripped, a static runtime is not found. This module imports almost nothing, because
pympsd-run uses it before every program that it starts.
"""

import posix
import struct

from pympsd.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"\x7fELF"
MAX_READ = 64 << 20
"""The maximum number of bytes to read of one part of a file."""
_MAX_TEXT = 4096
_HEADER_BYTES = 64
_EXECUTABLE_CLASS, _BYTE_ORDER = 4, 5
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 15, 29
_RUNTIME_TEXTS = (b"cudaErrorCudartUnloading\0", b"libcuda.so.1\0")
_MACHINES = {3: "32-bit x86", 40: "32-bit ARM", 62: "x86-64", 183: "aarch64", 243: "RISC-V", 21: "POWER", 22: "s390x"}


class BadElf(InputError, ValueError):
    """The file begins like an ELF file, but is truncated or contradicts itself."""


class ElfFile:
    """An ELF file that is open for reading; a context manager.

    The constructor sets the attributes: `machine` (a name for messages) and `is_foreign`, and for a program of this
    machine `is_static`, `needed`, `rpath` and `runpath` as they are in the file.
    """

    def __init__(self, path: str) -> None:
        """Open the file and read its headers; raise OSError or BadElf."""
        self.needed: list[str] = []
        self.rpath: list[str] = []
        self.runpath: list[str] = []
        self.is_static = True
        self._fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            header = self._read(0, _HEADER_BYTES)
            if header[:4] != MAGIC:
                raise BadElf("the file does not begin as an ELF file does")
            self.machine = _machine(header)
            self.is_foreign = _kind(header) != _kind(_read_own_header())
            self._header = header
            if not self.is_foreign:
                self._read_libraries()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ElfFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        posix.close(self._fd)

    def has_device_code(self) -> bool:
        """Return whether nvcc has put device code into the program."""
        return b".nvFatBinSegment" in (name for name, _, _ in self._sections())

    def find_static_runtime(self) -> bool:
        """Return whether the program contains a CUDA runtime, which nvcc links statically by default.

        Such a program does not need libcudart. It contains two texts of the runtime: the name of an error that only
        the runtime returns, and the name of the library that the runtime opens. Other programs do not contain both.
        """
        if any(name.startswith("libcudart.so") for name in self.needed):
            return False
        for name, offset, size in self._sections():
            if name == b".rodata":
                content = self._read(offset, min(size, MAX_READ))
                return all(text in content for text in _RUNTIME_TEXTS)
        return False

    def _read(self, offset: int, size: int) -> bytes:
        if size > MAX_READ or offset >= 1 << 63:
            raise BadElf("a part of the file is too large")
        content = posix.pread(self._fd, size, offset)
        if len(content) < size:
            raise BadElf("the file is cut off")
        return content

    def _read_libraries(self) -> None:
        """Read the program headers and the dynamic section."""
        offset, size, count = (
            *struct.unpack_from("=Q", self._header, 32),
            *struct.unpack_from("=HH", self._header, 54),
        )
        if count and size != 56:
            raise BadElf("the program headers must have 56 bytes each")
        # type, flags, offset, virtual address, physical address, bytes in the file, in memory, alignment
        headers = list(struct.iter_unpack("=IIQQQQQQ", self._read(offset, size * count)))
        self.is_static = all(header[0] != _PT_INTERP for header in headers)
        segments = [(header[3], header[5], header[2]) for header in headers if header[0] == _PT_LOAD]
        for header in headers:
            if header[0] == _PT_DYNAMIC:
                self._read_dynamic(self._read(header[2], header[5] // 16 * 16), segments)

    def _read_dynamic(self, dynamic: bytes, segments: "list[tuple[int, int, int]]") -> None:
        """Set the names of needed libraries and the search paths from the contents of the dynamic section."""
        entries: list[tuple[int, int]] = []
        for tag, value in struct.iter_unpack("=QQ", dynamic):
            if tag == _DT_NULL:
                break
            entries.append((tag, value))
        strings = [value for tag, value in entries if tag == _DT_STRTAB]
        if not strings:
            return
        for address, size, offset in segments:
            if address <= strings[0] < address + size:
                table = strings[0] - address + offset
                break
        else:
            raise BadElf("the string table is not in a segment")
        for tag, value in entries:
            if tag == _DT_NEEDED:
                self.needed.append(self._text(table + value))
            elif tag in (_DT_RPATH, _DT_RUNPATH):
                paths = self.rpath if tag == _DT_RPATH else self.runpath
                paths += [path for path in self._text(table + value).split(":") if path]

    def _text(self, offset: int) -> str:
        if offset >= 1 << 63:
            raise BadElf("the offset of a text is too large")
        return posix.pread(self._fd, _MAX_TEXT, offset).partition(b"\0")[0].decode(errors="surrogateescape")

    def _sections(self) -> "Iterator[tuple[bytes, int, int]]":
        """Yield name, offset and size of each section that has contents in the file."""
        if self.is_foreign:
            return
        (offset,) = struct.unpack_from("=Q", self._header, 40)
        size, count, names = struct.unpack_from("=HHH", self._header, 58)
        if not offset or size != 64 or names >= count:
            return
        # name, type, flags, address, offset, size, link, info, alignment, size of an entry
        headers = list(struct.iter_unpack("=IIQQQQIIQQ", self._read(offset, size * count)))
        table = self._read(headers[names][4], headers[names][5])
        for header in headers:
            yield table[header[0] :].partition(b"\0")[0], header[4], header[5]


def is_elf(path: str) -> bool:
    """Return whether a file begins like an ELF file; False if it cannot be read."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except OSError:
        return False
    try:
        return posix.read(fd, len(MAGIC)) == MAGIC
    except OSError:
        return False
    finally:
        posix.close(fd)


def _read_own_header() -> bytes:
    fd = posix.open("/proc/self/exe", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.read(fd, _HEADER_BYTES)
    finally:
        posix.close(fd)


def _kind(header: bytes) -> "tuple[int, int, bytes]":
    """Return class, byte order and machine."""
    return header[_EXECUTABLE_CLASS], header[_BYTE_ORDER], header[18:20]


def _machine(header: bytes) -> str:
    number = int.from_bytes(header[18:20], "big" if header[_BYTE_ORDER] == 2 else "little")
    return _MACHINES.get(number, f"machine {number} of the ELF specification")
