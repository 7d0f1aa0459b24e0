"""Images are of the kind that they claim, and complete, before the driver gets them."""

from __future__ import annotations

import ctypes
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import Driver, cu
from pympsd_server.backends.cuda.objects.module import loadable
from pympsd_server.backends.cuda.objects.module_image import Cubin, check_fatbin, kind_of, read_cubin, read_fatbin
from pympsd_server.backends.interface import BackendError

IMAGES = Path(__file__).parents[2] / "data" / "images"
NAMES = b"\0.symtab\0.strtab\0.nv.global\0.text.k\0"
STRINGS = b"\0counter\0k\0hidden\0"


def cubin(calls: bytes = b"") -> bytes:
    """Return an ELF file for machine 190: a global variable, a local one, a function, and a call of another."""
    strings = STRINGS + calls + b"\0"
    symbols = b"".join(
        struct.pack("<IBBHQQ", *row)
        for row in ((0, 0, 0, 0, 0, 0), (1, 0x11, 0, 3, 0, 4), (9, 0x12, 0, 4, 0, 64), (11, 0x01, 0, 3, 4, 4))
    )
    if calls:
        symbols += struct.pack("<IBBHQQ", len(STRINGS), 0x12, 0, 0, 0, 0)
    parts = [(1, 2, 0, symbols, 2), (9, 3, 0, strings + NAMES, 0), (17, 8, 2, b"", 0), (28, 1, 2, bytes(64), 0)]
    body, rows, offset = b"", [bytes(64)], 64
    for name, kind, flags, data, link in parts:
        size = 8 if kind == 8 else len(data)
        at = len(strings) + name
        rows.append(struct.pack("<IIQQQQIIQQ", at, kind, flags, 0, offset + len(body), size, link, 0, 1, 0))
        body += data
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 190, 1, 0, 0, offset + len(body), 0, 64, 0, 0, 64, len(rows), 2
    )
    return head + body + b"".join(rows)


def expect_refusal(code: Result) -> pytest.RaisesExc[BackendError]:
    """Expect a BackendError with this code."""
    return pytest.raises(BackendError, check=lambda error: error.code == code and bool(error.reason))


def test_a_cubins_variables_and_size_are_found() -> None:
    assert read_cubin(cubin()) == Cubin(("counter", "hidden"), 8 + 64), "what is local to the module is its own too"


@pytest.mark.parametrize("length", [7, 63, 64, 70, 200, len(cubin()) - 1])
def test_a_cubin_that_is_cut_off_is_refused(length: int) -> None:
    with expect_refusal(Result.ERROR_NO_BINARY_FOR_GPU):
        read_cubin(cubin()[:length])


def test_another_machines_program_is_refused() -> None:
    with expect_refusal(Result.ERROR_NO_BINARY_FOR_GPU):
        read_cubin(cubin().replace(struct.pack("<HHI", 2, 190, 1), struct.pack("<HHI", 2, 62, 1)))


@given(st.data())
def test_no_damage_raises_anything_else(data: st.DataObject) -> None:
    image = bytearray(cubin())
    for _ in range(data.draw(st.integers(1, 8))):
        image[data.draw(st.integers(4, len(image) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BackendError):
        read_cubin(bytes(image))


@pytest.mark.parametrize("place", [1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("size", [1, (1 << 64) - 1])
def test_offsets_outside_of_the_file_are_damage(place: int, size: int) -> None:
    headers, section = bytearray(cubin()), bytearray(cubin())
    struct.pack_into("<Q", headers, 40, place)
    struct.pack_into("<QQ", section, len(section) - 64 + 24, place, size)
    for image in (bytes(headers), bytes(section)):
        with expect_refusal(Result.ERROR_NO_BINARY_FOR_GPU):
            read_cubin(image)
        assert read_fatbin(image).variables == ()


def test_kinds_of_images() -> None:
    assert kind_of(b".version 7.0\n\0") == "ptx"
    assert kind_of(cubin()) == "cubin"
    assert kind_of(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)) == "fatbin"
    for nothing in (b"", b" \n", b"\0\0"):
        with expect_refusal(Result.ERROR_INVALID_PTX):
            kind_of(nothing)
    for neither in (b"\xff\xfe\0", b"text\0and more"):
        with expect_refusal(Result.ERROR_INVALID_IMAGE):
            kind_of(neither)


def test_a_fatbin_is_as_long_as_its_header_says() -> None:
    head = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 4)
    check_fatbin(head + b"1234")
    for short in (head + b"123", head[:10], struct.pack("<IHHQ", 0xBA55ED50, 1, 4, 4) + b"1234"):
        with expect_refusal(Result.ERROR_INVALID_IMAGE):
            check_fatbin(short)


def test_a_fatbins_uncompressed_cubins_are_read() -> None:
    head = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 4)
    seen = read_fatbin(head + b"\x7fELF only a beginning" + cubin() + b"entry" + cubin())
    assert seen == Cubin(("counter", "hidden"), 8 + 64)
    compressed = head + bytes(100)
    assert read_fatbin(compressed) == Cubin((), len(compressed)), "what is compressed counts as large as the file is"


# --- files that claim more than they have


def claiming(tables: int, names: int, size: int = 1 << 18) -> bytes:
    """Return an ELF file for machine 190 whose symbol tables and tables of names all are (nearly) the whole file."""
    rows = [struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, 64, (size - 64) // 24 * 24, tables, 0, 1, 24)] * tables
    rows += [struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 1, size - 1, 0, 0, 1, 0)] * names
    at = size - 64 * len(rows)
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 190, 1, 0, 0, at, 0, 64, 0, 0, 64, len(rows), 0)
    return head + bytes(at - len(head)) + b"".join(rows)


def test_sections_that_all_claim_the_whole_file_are_not_copied() -> None:
    image = claiming(1, 1000)
    tracemalloc.start()
    try:
        read_cubin(image)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(image), "and not 1000 times"
    finally:
        tracemalloc.stop()


def test_symbol_tables_that_all_claim_the_whole_file_are_refused() -> None:
    with expect_refusal(Result.ERROR_NO_BINARY_FOR_GPU):
        read_cubin(claiming(1000, 1))


def with_symbols(symbols: bytes, strings: bytes) -> bytes:
    """Return an ELF file for machine 190 with these symbols, section 3 being for variables."""
    names = b"\0.nv.global\0"
    rows = [bytes(64)]
    offset = 64
    for name, kind, data, link in ((0, 2, symbols, 2), (0, 3, strings, 0), (1, 1, b"", 0), (0, 3, names, 0)):
        rows.append(struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, len(data), link, 0, 1, 0))
        offset += len(data)
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 190, 1, 0, 0, offset, 0, 64, 0, 0, 64, 5, 4)
    return head + symbols + strings + names + b"".join(rows)


def test_overlapping_names_are_refused() -> None:
    """Each is the rest of the same long one: they would take as many times the file as there are."""
    symbols = b"".join(struct.pack("<IBBHQQ", at, 0x11, 0, 3, 0, 4) for at in range(500))
    with expect_refusal(Result.ERROR_NO_BINARY_FOR_GPU):
        read_cubin(with_symbols(symbols, b"x" * 50_000 + b"\0"))
    few = with_symbols(symbols[:48], b"x" * 5_000 + b"\0")
    assert [len(name) for name in read_cubin(few).variables] == [5000, 4999], "names may share their ends"


def test_a_name_that_several_symbols_have_is_one_variable() -> None:
    twice = struct.pack("<IBBHQQ", 1, 0x11, 0, 3, 0, 4) * 2
    assert read_cubin(with_symbols(twice, b"\0x\0")).variables == ("x",)


def test_a_fatbin_with_overlapping_cubins_is_refused() -> None:
    """A beginning every 64 bytes, all with the same thousand section headers at the end."""
    count = 1000
    rows = bytes(64 * count)
    heads = [
        struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 190, 1, 0, 0, at * 64, 0, 64, 0, 0, 64, count, 0)
        for at in range(count, 0, -1)
    ]
    with expect_refusal(Result.ERROR_INVALID_IMAGE):
        read_fatbin(b"".join(heads) + rows)


def test_a_file_of_headers_only_is_refused() -> None:
    with expect_refusal(Result.ERROR_INVALID_IMAGE):
        read_fatbin(b"\x7fELF" * 1000)


# --- what a compiler made


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_a_linked_cubins_variables_are_those_of_all_its_objects(architecture: str) -> None:
    cubin = read_cubin((IMAGES / f"linked-{architecture}.cubin").read_bytes())
    assert [name.endswith("launches") or name for name in cubin.variables] == [True, "factor"]


@pytest.mark.parametrize("name", ["linked", "several"])
def test_a_compilers_fatbin_is_complete_and_its_cubins_are_read(name: str) -> None:
    image = (IMAGES / f"{name}.fatbin").read_bytes()
    assert kind_of(image) == "fatbin"
    check_fatbin(image)
    assert "factor" in read_fatbin(image).variables
    assert 0 < read_fatbin(image).device_bytes < len(image)


# --- dynamic parallelism


def expect_unsupported(name: str) -> pytest.RaisesExc[BackendError]:
    """Expect the refusal of dynamic parallelism that names this function."""
    reason = f"{name} is a function of the device runtime (dynamic parallelism)"
    return pytest.raises(
        BackendError, check=lambda error: error.code == Result.ERROR_NOT_SUPPORTED and reason in error.reason
    )


def test_code_that_needs_the_device_runtime_is_refused_by_name() -> None:
    with expect_unsupported("__cudaCDP2GetParameterBufferV2"):
        read_cubin((IMAGES / "nested.cubin").read_bytes())


@pytest.mark.parametrize("name", ["__cuda_syscall_cnpv2LaunchDeviceV2", "cudaLaunchDevice"])
def test_code_linked_with_the_device_runtime_is_refused(name: str) -> None:
    with expect_unsupported(name):
        read_cubin(cubin(name.encode()))
    with expect_unsupported(name):
        read_fatbin(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 4) + cubin() + cubin(name.encode()))


def test_values_of_conditional_handles_are_refused_as_such() -> None:
    with pytest.raises(BackendError, match="cudaGraphSetConditional: kernels cannot set the value of a conditional"):
        read_cubin(cubin(b"cudaGraphSetConditional"))


def test_other_functions_that_the_driver_supplies_are_accepted() -> None:
    assert read_cubin(cubin(b"vprintf")).undefined == ("vprintf",)


class Linker(Driver):
    """A driver whose linker fails with a message, or returns a given image."""

    def __init__(self, says: str, makes: bytes = b"") -> None:
        self.says = says.encode()
        self.makes = ctypes.create_string_buffer(makes, len(makes))

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function is cu.cuLinkCreate:
            arguments[2][0][: len(self.says)] = self.says
        if function is cu.cuLinkComplete and self.makes.raw:
            return ctypes.addressof(self.makes), len(self.makes)
        if function is cu.cuLinkComplete:
            raise BackendError(Result.ERROR_INVALID_PTX, "cuLinkComplete: refused")
        return 1


@pytest.mark.parametrize(
    "says",
    [
        "ptxas fatal   : Unresolved extern function 'cudaLaunchDevice'",
        "error   : Undefined reference to 'cudaLaunchDevice' in 'image'",
    ],
)
def test_a_linkers_error_about_the_device_runtime_becomes_that_refusal(says: str) -> None:
    with expect_unsupported("cudaLaunchDevice"):
        loadable(Linker(says), b".version 7.0")


@pytest.mark.parametrize(
    "says",
    [
        "ptxas fatal   : Unresolved extern function 'my_cudaLaunchDevice'",
        "ptxas error   : Entry function 'cudaMatMul' uses too much shared data (0x20000 bytes, 0xc000 max)",
        "error   : Duplicate definition of function 'cudaHelper' in 'image'",
    ],
)
def test_any_other_linker_error_is_passed_on(says: str) -> None:
    with pytest.raises(BackendError, check=lambda error: error.reason == f"cuLinkComplete: refused: {says}"):
        loadable(Linker(says), b".version 7.0")


# --- a fatbin, which the driver's linker takes or not


def test_a_fatbin_is_loaded_as_the_linked_cubin() -> None:
    image = (IMAGES / "several.fatbin").read_bytes()
    assert loadable(Linker("", cubin()), image) == (cubin(), read_cubin(cubin()))


def test_a_fatbin_that_links_to_nothing_is_loaded_as_it_is() -> None:
    image = (IMAGES / "linked.fatbin").read_bytes()
    nothing = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 190, 1, 0, 0, 64, 0, 64, 0, 0, 64, 0, 0)
    assert read_cubin(nothing) == Cubin((), 0)
    assert loadable(Linker("", nothing), image) == (image, read_fatbin(image))
