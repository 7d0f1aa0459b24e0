"""Fatbins: which PTX of them a device runs, how it is decompressed, and what is refused."""

from __future__ import annotations

import struct
import sys
from contextlib import suppress
from pathlib import Path

import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from pympsd.wire import fatbin
from pympsd.wire.fatbin import MAX_TEXT_BYTES, FatbinError, ptx_of
from pympsd_server.backends.emulated.device.module import load
from pympsd_server.backends.interface import BackendError

IMAGES = Path(__file__).parents[2] / "data" / "images"
PLAIN, LZ4, ZSTANDARD, THIS_ONLY = 0x11, 0x2011, 0x8011, 0x100011


def _image(name: str) -> bytes:
    return (IMAGES / name).read_bytes()


def _entry(
    data: bytes, architecture: int = 80, kind: int = 1, flags: int = PLAIN, whole: int = 0, packed: int = 0
) -> bytes:
    header = struct.pack("<HHIQI8xI8xQ8xQ", kind, 0x101, 64, len(data), packed, architecture, flags, whole)
    return header + data


def _fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), b"sm_80"), ((8, 9), b"sm_80"), ((9, 0), b"sm_90"), ((12, 0), b"sm_100")]
)
def test_the_ptx_of_the_newest_architecture_that_the_device_can_run(
    capability: tuple[int, int], target: bytes
) -> None:
    texts = {ptx_of(_image(f"mix-{mode}.fatbin"), capability) for mode in ("speed", "size")}
    assert len(texts) == 1  # LZ4 and Zstandard hold the same
    text = texts.pop()
    assert b".target " + target + b"\n" in text
    assert text.rstrip(b"\n\0").endswith(b"}")
    assert len(text) > 10_000


def test_the_kernels_of_a_fatbin_are_loaded() -> None:
    assert list(load(_image("several.fatbin"), (9, 0)).kernels) == ["twice"]
    assert list(load(_image("mix-size.fatbin"), (9, 0)).kernels) == ["mix"]


@pytest.mark.parametrize(
    ("image", "code", "words"),
    [
        (_image("mix-size.fatbin"), Result.ERROR_NO_BINARY_FOR_GPU, "PTX for sm_80.*sm_70 and below"),
        (_image("linked.fatbin"), Result.ERROR_NO_BINARY_FOR_GPU, "machine code for sm_80"),
        (_image("lto.fatbin"), Result.ERROR_NOT_SUPPORTED, "link-time optimization"),
        (_fatbin(), Result.ERROR_NO_BINARY_FOR_GPU, "holds nothing"),
        (_fatbin(_entry(b"x", kind=77)), Result.ERROR_NO_BINARY_FOR_GPU, "code of kind 77"),
        (_fatbin(_entry(b"x", 60, flags=THIS_ONLY)), Result.ERROR_NO_BINARY_FOR_GPU, "sm_60"),
        (_fatbin()[:8], Result.ERROR_INVALID_IMAGE, "cut off"),
        (_image("mix-size.fatbin")[:-1], Result.ERROR_INVALID_IMAGE, "cut off"),
        (_fatbin(b"\1\0"), Result.ERROR_INVALID_IMAGE, "cut off"),
        (_fatbin(bytes(64)), Result.ERROR_INVALID_IMAGE, "cut off"),
        (_fatbin(_entry(b"x", 60, flags=LZ4, whole=1 << 40, packed=1)), Result.ERROR_INVALID_IMAGE, "at most"),
        (_fatbin(_entry(b"x", 60, flags=LZ4, whole=5, packed=1)), Result.ERROR_INVALID_IMAGE, "decompressed"),
        (_fatbin(_entry(b"x", 60, flags=ZSTANDARD, whole=5, packed=1)), Result.ERROR_INVALID_IMAGE, "decompressed"),
        (_fatbin(_entry(b"x", 60, flags=LZ4, whole=5, packed=2)), Result.ERROR_INVALID_IMAGE, "cut off"),
    ],
)
def test_a_bad_fatbin_is_refused(image: bytes, code: Result, words: str) -> None:
    with pytest.raises(FatbinError, match=words) as error:
        ptx_of(image, (7, 0))
    assert error.value.code is code
    with pytest.raises(BackendError, match=words) as refused:
        load(image, (7, 0))
    assert refused.value.code is code


def test_code_for_one_architecture_only_is_for_no_other() -> None:
    image = _fatbin(_entry(b"of 60", 60), _entry(b"of 70", 70, flags=THIS_ONLY))
    assert ptx_of(image, (7, 0)) == b"of 70"
    assert ptx_of(image, (9, 0)) == b"of 60"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_code_for_exactly_this_architecture_comes_first(order: tuple[int, int]) -> None:
    """The PTX of sm_90a has the instructions for which that of sm_90 has only an assertion (CUTLASS)."""
    entries = _entry(b"of sm_90", 90), _entry(b"of sm_90a", 90, flags=THIS_ONLY)
    assert ptx_of(_fatbin(*(entries[index] for index in order)), (9, 0)) == b"of sm_90a"


def _text(data: bytes, flags: int, size: int) -> bytes:
    return ptx_of(_fatbin(_entry(data, flags=flags, whole=size, packed=len(data))), (9, 0))


def _compress_with_lz4(pieces: list[tuple[bytes, int, int]]) -> tuple[bytes, bytes]:
    """Return a block of literals and matches (at most 14 bytes each, so far back), and what it stands for."""
    block, out = bytearray(), bytearray()
    for literals, back, count in pieces:
        out += literals
        if not out:
            continue
        distance = min(back, len(out))
        block += bytes([len(literals) << 4 | count]) + literals + distance.to_bytes(2, "little")
        for _ in range(count + 4):
            out.append(out[-distance])
    return bytes(block) + b"\xc0at the end!!", bytes(out) + b"at the end!!"


@given(st.lists(st.tuples(st.binary(max_size=14), st.integers(1, 60), st.integers(0, 14)), max_size=20))
def test_an_lz4_block_is_decompressed_if_its_size_is_right(pieces: list[tuple[bytes, int, int]]) -> None:
    block, expected = _compress_with_lz4(pieces)
    assert _text(block, LZ4, len(expected)) == expected
    for size in (len(expected) - 1, len(expected) + 1):
        with pytest.raises(FatbinError, match="cannot be decompressed"):
            _text(block, LZ4, size)


def _frame() -> tuple[bytes, int]:
    image = _image("several.fatbin")
    return image[96 : 96 + 428], 828


def test_a_zstandard_frame() -> None:
    frame, size = _frame()
    assert b".entry twice(" in _text(frame, ZSTANDARD, size)
    for wrong in (size - 1, size + 1, 0):
        with pytest.raises(FatbinError, match="announced"):
            _text(frame, ZSTANDARD, wrong)
    with pytest.raises(FatbinError, match="cut off"):
        _text(frame[:-10], ZSTANDARD, size)


@given(st.integers(0, 427), st.integers(0, 255))
def test_a_damaged_frame_is_decompressed_otherwise_or_refused(index: int, byte: int) -> None:
    frame, size = _frame()
    damaged = bytearray(frame)
    damaged[index] = byte
    with suppress(FatbinError):
        assert len(_text(bytes(damaged), ZSTANDARD, size)) == size


@pytest.mark.parametrize("flags", [LZ4, ZSTANDARD])
def test_a_text_that_grows_past_its_announced_size_is_refused(flags: int) -> None:
    text = bytes(MAX_TEXT_BYTES + 1)
    data = lz4.block.compress(text, store_size=False) if flags == LZ4 else fatbin.zstd.compress(text)
    assert len(data) < 1 << 17
    with pytest.raises(FatbinError, match="cannot be decompressed"):
        _text(data, flags, MAX_TEXT_BYTES)
    with pytest.raises(FatbinError, match="at most"):
        _text(data, flags, len(text))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for flags in (LZ4, ZSTANDARD):
        with pytest.raises(FatbinError, match="malformed"):
            _text(data, flags, 1000)


@pytest.mark.parametrize(
    ("library", "flags", "package"), [("lz4", LZ4, "lz4"), ("zstd", ZSTANDARD, "backports.zstd")]
)
def test_the_refusal_of_a_compressed_image_names_the_missing_library(
    monkeypatch: pytest.MonkeyPatch, library: str, flags: int, package: str
) -> None:
    monkeypatch.setattr(fatbin, library, None)
    remedy = "built without it" if library == "zstd" and sys.version_info >= (3, 14) else f"pip install {package}"
    with pytest.raises(FatbinError, match=remedy) as error:
        _text(b"x", flags, 5)
    assert error.value.code is Result.ERROR_NOT_SUPPORTED
    assert ptx_of(_fatbin(_entry(b"plain")), (9, 0)) == b"plain"


@given(st.binary(max_size=300), st.integers(0, 100))
def test_any_fatbin_is_loaded_or_refused(data: bytes, whole: int) -> None:
    for image in (_fatbin(data), _fatbin(_entry(data, 60, 1, ZSTANDARD, whole, len(data)))):
        with pytest.raises(BackendError):
            load(image, (9, 0))
