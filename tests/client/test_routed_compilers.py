"""NVRTC and nvJitLink as routed: what reaches the libraries themselves, here fakes, and what programs get."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pympsd_client.native._entry_points")
from pympsd_client.routing import compilers, pointers

PTX = b".version 7.0\n.target sm_60\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n\0"
OTHER = PTX.replace(b" k()", b" other()")
PROGRAM, LINK = 0x1000, 0x2000


class Library:
    """The functions of a fake library, in place of those that were replaced."""

    def __init__(self) -> None:
        self.options: list[bytes] = []
        self.added: list[tuple[int, bytes]] = []
        self.kept: list[Any] = []

    def put(self, name: str, *types: Any) -> Any:
        def enter(function: Any) -> Any:
            c_function = ctypes.CFUNCTYPE(ctypes.c_int, *types)(function)
            self.kept.append(c_function)
            pointers.originals[name] = ctypes.cast(c_function, ctypes.c_void_p).value or 0
            return function

        return enter


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """A fake of both libraries."""
    monkeypatch.setattr(pointers, "originals", {})
    fake, pointer, size = Library(), ctypes.c_void_p, ctypes.c_size_t

    def take(count: int, options: int) -> None:
        fake.options = [ctypes.string_at(item) for item in (pointer * count).from_address(options) if item]

    @fake.put("nvrtcCompileProgram", pointer, ctypes.c_int, pointer)
    def compile(program: int, count: int, options: int) -> int:
        take(count, options)
        return 0

    @fake.put("nvrtcGetPTXSize", pointer, pointer)
    def ptx_size(program: int, place: int) -> int:
        size.from_address(place).value = len(PTX)
        return 0

    @fake.put("nvrtcGetPTX", pointer, pointer)
    def ptx(program: int, place: int) -> int:
        ctypes.memmove(place, PTX, len(PTX))
        return 0

    @fake.put("nvrtcGetCUBINSize", pointer, pointer)
    def code_size(program: int, place: int) -> int:
        return 7

    @fake.put("nvJitLinkCreate", pointer, ctypes.c_uint32, pointer)
    def create(place: int, count: int, options: int) -> int:
        take(count, options)
        ctypes.c_void_p.from_address(place).value = LINK
        return 0

    @fake.put("nvJitLinkAddData", pointer, ctypes.c_int, pointer, size, pointer)
    def add(handle: int, kind: int, data: int, length: int, name: int) -> int:
        fake.added.append((kind, ctypes.string_at(data, length)))
        return 0

    @fake.put("nvJitLinkAddFile", pointer, ctypes.c_int, pointer)
    def add_file(handle: int, kind: int, name: int) -> int:
        fake.added.append((kind, ctypes.string_at(name)))
        return 0

    @fake.put("nvJitLinkComplete", pointer)
    def complete(handle: int) -> int:
        return 0

    @fake.put("nvJitLinkDestroy", pointer)
    def destroy(place: int) -> int:
        return 0

    @fake.put("nvJitLinkGetLinkedCubinSize", pointer, pointer)
    def get_linked_size(handle: int, place: int) -> int:
        return 7

    return fake


def call(name: str, *arguments: Any) -> int:
    """Call a routed function as its entry point does; bytes and ctypes objects are passed by address."""
    function, _ = compilers.resolve(name, "")
    return int(function(*(ctypes.addressof(item) if isinstance(item, ctypes._SimpleCData | ctypes.Array) else item
                          for item in arguments)))  # fmt: skip


def strings(*options: bytes) -> Any:
    return (ctypes.c_char_p * len(options))(*options)


@pytest.mark.parametrize(
    ("options", "reached"),
    [
        ((b"-arch=sm_90a", b"-I/x"), [b"-arch=compute_90a", b"-I/x"]),
        ((b"--gpu-architecture", b"sm_80"), [b"--gpu-architecture", b"compute_80"]),
        ((b"--gpu-architecture=compute_80",), [b"--gpu-architecture=compute_80"]),
        ((b"-arch=sm_90", b"-dlto"), [b"-arch=sm_90", b"-dlto"]),
    ],
)
def test_options_of_a_compilation(library: Library, options: tuple[bytes, ...], reached: list[bytes]) -> None:
    assert call("nvrtcCompileProgram", PROGRAM, len(options), strings(*options)) == 0
    assert library.options == reached


def test_machine_code_of_a_compilation_is_ptx(library: Library) -> None:
    size = ctypes.c_size_t()
    call("nvrtcCompileProgram", PROGRAM, 2, strings(b"-arch=sm_90", b"--maxrregcount=40"))
    assert call("nvrtcGetCUBINSize", PROGRAM, size) == 0
    code = ctypes.create_string_buffer(size.value)
    assert call("nvrtcGetCUBIN", PROGRAM, code) == 0
    assert code.raw.endswith(b"\0")
    assert b".maxnreg 40" in code.raw
    assert code.raw.replace(b"\n.maxnreg 40\n", b"") == PTX.replace(b"k()\n", b"k()\n")


def test_without_a_real_architecture_there_is_no_machine_code(library: Library) -> None:
    call("nvrtcCompileProgram", PROGRAM, 1, strings(b"-arch=compute_90"))
    assert call("nvrtcGetCUBINSize", PROGRAM, ctypes.c_size_t()) == 7


def link(library: Library, *inputs: tuple[int, bytes], options: tuple[bytes, ...] = ()) -> bytes | int:
    """Return the code of a link, or the result of asking for its size."""
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert call("nvJitLinkCreate", handle, len(options), strings(*options)) == 0
    for kind, data in inputs:
        buffer = ctypes.create_string_buffer(data, len(data))
        assert call("nvJitLinkAddData", LINK, kind, buffer, len(data), 0) == 0
    assert call("nvJitLinkComplete", LINK) == 0
    result = call("nvJitLinkGetLinkedCubinSize", LINK, size)
    if result:
        return result
    code = ctypes.create_string_buffer(size.value)
    assert call("nvJitLinkGetLinkedCubin", LINK, code) == 0
    assert call("nvJitLinkDestroy", handle) == 0
    return code.raw


def test_a_link_of_ptx_is_ptx(library: Library) -> None:
    code = link(library, (2, PTX), (2, OTHER), options=(b"-arch=sm_90",))
    assert isinstance(code, bytes)
    assert code.count(b".entry") == 2
    assert code.count(b".version") == 1


@pytest.mark.parametrize("kind", [1, 4, 5, 6, 10], ids=["CUBIN", "FATBIN", "OBJECT", "LIBRARY", "ANY"])
def test_ptx_in_the_place_of_machine_code_is_added_as_ptx(library: Library, kind: int, tmp_path: Path) -> None:
    assert link(library, (kind, PTX)) == PTX
    assert library.added == [(2, PTX)]
    (tmp_path / "k.bin").write_bytes(PTX)
    assert call("nvJitLinkCreate", ctypes.c_void_p(), 0, strings()) == 0
    path = ctypes.create_string_buffer(bytes(tmp_path / "k.bin"))
    assert call("nvJitLinkAddFile", LINK, kind, path) == 0
    assert library.added[1:] == [(2, path.value)]


def test_the_limit_of_registers_is_kept(library: Library) -> None:
    code = link(library, (2, PTX), options=(b"-maxrregcount=32",))
    assert isinstance(code, bytes)
    assert b".maxnreg 32" in code


def test_machine_code_stays_what_the_library_made(library: Library) -> None:
    assert link(library, (2, PTX), (5, b"\x7fELF")) == 7


@pytest.mark.parametrize(("architecture", "is_added"), [(b"60", True), (b"sm_90a", True), (b"52", False)])
def test_code_for_a_newer_architecture_is_refused(library: Library, architecture: bytes, is_added: bool) -> None:
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    added: list[bytes] = []

    @library.put("nvFatbinAddPTX", pointer, pointer, size, pointer, pointer, pointer)
    def add(handle: int, code: int, length: int, arch: int, name: int, options: int) -> int:
        added.append(ctypes.string_at(code, length))
        return 0

    call, _ = compilers.resolve("nvFatbinAddCubin", "")
    code, arch = (ctypes.create_string_buffer(text) for text in (PTX, architecture))
    result = call(1, ctypes.addressof(code), len(PTX), ctypes.addressof(arch), 0)
    mismatch = int(pytest.importorskip("cuda.bindings.nvfatbin").Result.ERROR_ELF_ARCH_MISMATCH)
    assert (result, added) == ((0, [PTX]) if is_added else (mismatch, []))
