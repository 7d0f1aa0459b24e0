"""Textures and surfaces: reads of every kind against a model of one element at a time, and writes."""

from __future__ import annotations

import math
import struct
from itertools import product
from typing import Any

import numpy as np
import pytest

from pympsd.wire.texture_object import (
    BYTES,
    PACKED,
    Level,
    Sampling,
    TexturedKind,
    TextureFlag,
    TextureObject,
    pack,
    unpack,
)
from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.isa.faults import Cancelled, IllegalAddress, LaunchFailed, MisalignedAddress
from tests.emulated.conftest import use_tier
from tests.emulated.harness import HEADER, CancelAfter, Device, batches

U8, U16, U32, S8, S16, S32, F16, F32 = 0x01, 0x02, 0x03, 0x08, 0x09, 0x0A, 0x10, 0x20
DTYPES = {U8: "u1", U16: "u2", U32: "u4", S8: "i1", S16: "i2", S32: "i4", F16: "f2", F32: "f4"}
WRAP, CLAMP, MIRROR, BORDER = range(4)
SECONDS = 30.0
NORMALIZED, AS_INTEGER, SRGB = TextureFlag.NORMALIZED_COORDINATES, TextureFlag.READ_AS_INTEGER, TextureFlag.SRGB
BORDER_COLOUR = (0.25, 0.5, 0.75, -2.0)
BITS: Any = struct.unpack("4I", struct.pack("4f", *BORDER_COLOUR))

COORDINATES = {
    "1d": "%f0", "2d": "%f0, %f1", "3d": "%f0, %f1, %f2, %f2", "a1d": "%r8, %f1", "a2d": "%r8, %f1, %f2, %f2",
    "cube": "%f0, %f1, %f2, %f2", "acube": "%r8, %f1, %f2, %f3",
}  # fmt: skip


def module(instruction: str, result: str = "{%r0, %r1, %r2, %r3}") -> str:
    """A kernel: each thread reads four numbers, and writes the four results of an instruction."""
    return f"""{HEADER}.visible .entry k(.param .u64 out, .param .u64 tex, .param .u64 in, .param .u32 n)
{{ .reg .b64 %d<9>; .reg .b32 %r<12>; .reg .f32 %f<9>; .reg .pred %p; .reg .b16 %h<5>;
ld.param.u64 %d0, [out]; ld.param.u64 %d1, [tex]; ld.param.u64 %d2, [in]; ld.param.u32 %r9, [n];
mov.u32 %r10, %tid.x; setp.ge.u32 %p, %r10, %r9; @%p ret;
mul.wide.u32 %d3, %r10, 16; add.u64 %d4, %d0, %d3; add.u64 %d5, %d2, %d3;
ld.global.v4.f32 {{%f0, %f1, %f2, %f3}}, [%d5]; ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%d5];
cvt.rni.u32.f32 %r8, %f0;
{instruction}
st.global.v4.u32 [%d4], {result}; ret; }}"""


class Machine:
    """A device with textures, and kernels that are loaded once."""

    def __init__(self) -> None:
        self.device = Device(1 << 22)
        self.loaded: dict[str, Any] = {}

    def run(self, text: str, texture: int, inputs: Any) -> Any:
        """Return what a kernel makes of rows of four numbers: rows of four u32."""
        if text not in self.loaded:
            self.loaded[text] = self.device.load(text)
        rows = np.ascontiguousarray(inputs)
        out, into = np.zeros((len(rows), 4), np.uint32), self.device.put(rows)
        place = self.device.put(out)
        try:
            self.device.launch(self.loaded[text], "k", 1, 256, place, texture, into, len(rows))
            return self.device.get(place, out)
        finally:
            self.device.space.free(place)
            self.device.space.free(into)

    def array(self, texels: Any) -> Level:
        """Return elements in memory, of an array by slice, row, column and channel."""
        depth, height, width, channels = texels.shape
        pitch = width * channels * texels.itemsize
        return Level(self.device.put(texels), pitch, pitch * height, width, height, depth)

    def object(
        self, format: int, channels: int, *levels: Level, kind: TexturedKind = TexturedKind.ARRAY, **how: Any
    ) -> int:
        """Return the handle of a new object."""
        descriptor = pack(TextureObject(kind, format, channels, Sampling(**({"border": BITS} | how)), levels))
        return self.device.put(np.frombuffer(descriptor, np.uint8))


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


def elements(format: int, shape: tuple[int, ...]) -> Any:
    """Random elements, floats between -4 and 4."""
    rng = np.random.default_rng(format)
    if format in (F16, F32):
        return rng.uniform(-4, 4, shape).astype(DTYPES[format])
    size = np.dtype(DTYPES[format]).itemsize
    return rng.integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8).view(DTYPES[format])


def one_index(index: int, size: int, mode: int) -> int | None:
    """The element that an index means, None for the border: as the programming guide states it."""
    if mode == WRAP:
        return index % size
    if mode == MIRROR:
        period = index % (2 * size)
        return period if period < size else 2 * size - 1 - period
    if mode == BORDER:
        return index if 0 <= index < size else None
    return min(max(index, 0), size - 1)


def model(texels: Any, place: Any, modes: Any, linear: bool, normalized: bool, layer: int = 0) -> Any:
    """One read of elements by slice, row, column and channel; ``place`` is x, y, z as far as there are dimensions."""
    sizes = [texels.shape[2], texels.shape[1], texels.shape[0]]
    total = np.zeros(texels.shape[3])
    axes = []
    for value, size, mode in zip(place, sizes, modes, strict=False):
        at = float(value) * size if normalized else float(value)
        used = mode if normalized or mode == BORDER else CLAMP
        first = math.floor(at - 0.5) if linear else math.floor(at)
        share = math.floor((at - 0.5 - first) * 256 + 0.5) / 256 if linear else 0.0
        axes.append([(one_index(first + step, size, used), share if step else 1 - share) for step in (0, 1)])
    for corner in product(*axes):
        weight = math.prod(entry[1] for entry in corner)
        index = [entry[0] for entry in corner]
        if None in index:
            colour = np.array(BORDER_COLOUR[: len(total)])
        else:
            x, y, z = (*index, *[0] * (3 - len(index)))
            colour = texels[z if len(index) == 3 else layer, y, x].astype(float)
        total += weight * colour
    return total


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("geometry", ["1d", "2d", "3d", "a1d", "a2d"])
def test_address_modes_and_filters(machine: Machine, geometry: str, linear: bool, normalized: bool) -> None:
    """Every mode along every dimension, near the edges and far beyond them; layers beyond the last are the last."""
    layered = geometry.startswith("a")
    dimensions = int(geometry[-2])
    shape = (3 if layered or dimensions == 3 else 1, 5 if dimensions > 1 else 1, 7)
    texels = elements(F32, (*shape, 2))
    level = machine.array(texels)
    rng = np.random.default_rng(3)
    coordinates = rng.uniform(-2.5, 3.5, (60, 4)) * (1 if normalized else 6)
    coordinates[:12] = np.round(coordinates[:12] * 2) / 2
    coordinates = coordinates.astype("f4")
    if layered:
        coordinates[:, 0] = rng.integers(0, 5, 60)
    flags = NORMALIZED if normalized else 0
    # A GPU rounds the products of weights to 8 bits as well, in an order that the corpus's texture_filter shows.
    near = 0.05 if linear and dimensions > 1 else 1e-6
    for mode in range(4):
        modes = (mode, (mode + 1) % 4, (mode + 2) % 4)
        texture = machine.object(F32, 2, level, address_modes=modes, filter=linear, flags=flags)
        text = module(f"tex.{geometry}.v4.u32.f32 {{%r0, %r1, %r2, %r3}}, [%d1, {{{COORDINATES[geometry]}}}];")
        actual = machine.run(text, texture, coordinates).view("f4")
        for row, colour in zip(coordinates, actual, strict=True):
            place, layer = (row[1:], min(int(row[0]), 2)) if layered else (row, 0)
            expected = model(texels, place[:dimensions], modes, linear, normalized, layer)
            np.testing.assert_allclose(colour[:2], expected, rtol=1e-6, atol=near, err_msg=f"{mode} {row}")


@pytest.mark.parametrize("mode", [CLAMP, BORDER])
def test_coordinates_beyond_every_integer(machine: Machine, mode: int) -> None:
    """Infinite coordinates are on their own side of the texture, however many elements it has."""
    texels = np.arange(1, 32769, dtype="f4").reshape(1, 1, -1, 1)
    how = {"address_modes": (mode,) * 3, "filter": 1, "flags": NORMALIZED}
    texture = machine.object(F32, 1, machine.array(texels), **how)
    text = module("tex.1d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%d1, {%f0}];")
    rows = np.zeros((4, 4), "f4")
    rows[:, 0] = (np.inf, -np.inf, 1e30, -1e30)
    expected = [32768, 1, 32768, 1] if mode == CLAMP else [BORDER_COLOUR[0]] * 4
    np.testing.assert_array_equal(machine.run(text, texture, rows).view("f4")[:, 0], np.array(expected, "f4"))


@pytest.mark.parametrize("mode", [WRAP, CLAMP, MIRROR, BORDER])
def test_integer_coordinates_are_not_normalized(machine: Machine, mode: int) -> None:
    """Elements are 0 beyond the texture, whatever its address modes and border are; as recorded on an H200."""
    texture = machine.object(
        U32, 1, machine.array(np.arange(1, 5, dtype="u4").reshape(1, 1, 4, 1)),
        address_modes=(mode,) * 3, flags=NORMALIZED | AS_INTEGER,
    )  # fmt: skip
    text = module("tex.1d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%d1, {%r4}];")
    rows = np.zeros((6, 4), "i4")
    rows[:, 0] = (-6, -1, 0, 3, 4, 9)
    np.testing.assert_array_equal(machine.run(text, texture, rows)[:, 0], [0, 0, 1, 4, 0, 0])


@pytest.mark.parametrize(
    ("format", "channels", "colour"),
    [
        (U8, 1, [0x78, 0, 0, 0]),
        (S8, 4, [0x78, 0xFFFFFF98, 0xFFFFFFFF, 1]),
        (U16, 2, [0x5678, 0xBA98, 0, 0]),
        (S32, 2, [0x12345678, 0xFEDCBA98, 0, 0]),
        (F16, 2, [0, 0xC77FE000, 0, 0]),
        (F32, 1, [0x12345678, 0, 0, 0]),
    ],
)
def test_the_border_has_the_format_of_the_elements(
    machine: Machine, format: int, channels: int, colour: list[int]
) -> None:
    """Integers are truncated, halves are at most 65504, and what the elements lack is 0; as recorded on an H200."""
    level = machine.array(elements(format, (1, 1, 4, channels)))
    how = {"address_modes": (BORDER,) * 3, "border": (0x12345678, 0xFEDCBA98, 0x1FF, 0x80008001)}
    texture = machine.object(format, channels, level, flags=AS_INTEGER, **how)
    text = module("tex.1d.v4.u32.f32 {%r0, %r1, %r2, %r3}, [%d1, {%f0}];")
    assert machine.run(text, texture, np.full((1, 4), 9, "f4"))[0].tolist() == colour


@pytest.mark.parametrize(("mode", "expected"), [(WRAP, 2.5), (CLAMP, 1), (BORDER, 0.625)])
def test_a_cube_uses_the_address_modes_at_the_edges_of_faces(machine: Machine, mode: int, expected: float) -> None:
    """As recorded on an H200: only with CLAMP an edge does not depend on what is beyond it."""
    texels = np.arange(1, 5, dtype="f4").reshape(1, 1, 4, 1).repeat(4, 1).repeat(6, 0)
    texture = machine.object(F32, 1, machine.array(texels), filter=1, address_modes=(mode, CLAMP, CLAMP))
    text = module("tex.cube.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%d1, {%f0, %f1, %f2, %f2}];")
    at_the_edge = np.array([[-1, 0, 1, 0]], "f4")  # the leftmost place of the face +z, as x and z are equal
    at_the_edge[0, 0] = -np.nextafter(np.float32(1), np.float32(0))
    assert machine.run(text, texture, at_the_edge).view("f4")[0, 0] == expected


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("format", DTYPES)
def test_texture_reads_convert_each_format(machine: Machine, format: int, channels: int) -> None:
    """Integers as they are, or from -1 or 0 to 1; channels that are not there are 0."""
    texels = elements(format, (1, 1, 16, channels))
    level = machine.array(texels)
    coordinates = np.zeros((16, 4), "f4")
    coordinates[:, 0] = np.arange(16)
    text = module("tex.1d.v4.s32.f32 {%r0, %r1, %r2, %r3}, [%d1, {%f0}];")
    expected = np.zeros((16, 4), texels.dtype)
    expected[:, :channels] = texels[0, 0]
    raw = machine.run(text, machine.object(format, channels, level, flags=AS_INTEGER), coordinates)
    if format in (F16, F32):
        np.testing.assert_array_equal(raw.view("f4"), expected.astype("f4"))
        return
    np.testing.assert_array_equal(raw, expected.astype(np.int64).astype(np.uint32))
    if format not in (U32, S32):
        actual = machine.run(text, machine.object(format, channels, level), coordinates).view("f4")[:, :channels]
        reference = np.maximum(texels[0, 0] / float(np.iinfo(texels.dtype).max), -1)
        np.testing.assert_allclose(actual, reference, rtol=1e-7)


@pytest.mark.parametrize("number", range(12))
def test_formats_that_are_always_normalized(machine: Machine, number: int) -> None:
    """UNORM and SNORM of 8 and 16 bits, with 1, 2 and 4 channels; the flag for integers changes nothing."""
    dtype, channels = np.dtype(("u1", "u2", "i1", "i2")[number // 3]), (1, 2, 4)[number % 3]
    texels = np.array([0, 1, 2, np.iinfo(dtype).max], dtype).repeat(channels).reshape(1, 1, 4, channels)
    threads = np.arange(4, dtype="i4").reshape(4, 1).repeat(4, 1)
    text = module("tex.1d.v4.f32.s32 {%r0, %r1, %r2, %r3}, [%d1, {%r4}];")
    actual = machine.run(
        text, machine.object(0xC0 + number, channels, machine.array(texels), flags=AS_INTEGER), threads
    )
    greatest = np.iinfo(dtype).max
    expected = np.array([0, 1 / greatest, 2 / greatest, 1], "f4").reshape(4, 1).repeat(channels, 1)
    np.testing.assert_array_equal(actual.view("f4")[:, :channels], expected)


def test_words_of_three_channels_of_10_bits_and_one_of_2(machine: Machine) -> None:
    texels = np.array([0x3FF, 0x3FF << 10, 0x3FF << 20, 3 << 30, 2 << 30 | 1 << 20 | 2 << 10 | 3], np.uint32)
    level = machine.array(texels.reshape(1, 1, 5, 1))
    threads = np.arange(6, dtype="f4").reshape(6, 1).repeat(4, 1)
    text = module("tex.1d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%d1, {%f0}];")
    texture = machine.object(PACKED, 4, level, flags=AS_INTEGER, address_modes=(BORDER,) * 3)
    actual = machine.run(text, texture, threads).view("f4")
    border = [256 / 1023, 512 / 1023, 767 / 1023, 0]  # BORDER_COLOUR in the format of the elements
    expected = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [3 / 1023, 2 / 1023, 1 / 1023, 2 / 3], border]
    np.testing.assert_array_equal(actual, np.array(expected, "f4"))


def test_srgb_textures_are_linearized(machine: Machine) -> None:
    texels = np.array([0, 10, 128, 255], np.uint8).reshape(1, 1, 1, 4)
    texture = machine.object(U8, 4, machine.array(texels), flags=SRGB)
    text = module("tex.1d.v4.f32.s32 {%r0, %r1, %r2, %r3}, [%d1, {%r4}];")
    actual = machine.run(text, texture, np.zeros((1, 4), "i4")).view("f4")[0]
    np.testing.assert_allclose(actual, [0, 10 / 255 / 12.92, 0.21586, 1], rtol=1e-4)


def test_elements_of_linear_memory(machine: Machine) -> None:
    """What is beyond them is 0; rows of linear memory have their own pitch."""
    texels = np.arange(1, 9, dtype="f4").reshape(1, 1, 8, 1)
    texture = machine.object(F32, 1, machine.array(texels), kind=TexturedKind.LINEAR, address_modes=(CLAMP,) * 3)
    threads = np.array([[0], [7], [8], [-1], [1 << 30], [-(1 << 31)]], "i4").repeat(4, 1)
    text = module("tex.1d.v4.f32.s32 {%r0, %r1, %r2, %r3}, [%d1, {%r4}];")
    np.testing.assert_array_equal(machine.run(text, texture, threads).view("f4")[:, 0], [1, 8, 0, 0, 0, 0])
    rows = Level(machine.device.put(texels), 16, 0, 3, 2, 1)
    texture = machine.object(F32, 1, rows, kind=TexturedKind.PITCHED, address_modes=(CLAMP, BORDER, CLAMP))
    text = module("tex.2d.v4.f32.s32 {%r0, %r1, %r2, %r3}, [%d1, {%r4, %r5}];")
    threads = np.array([[0, 0], [2, 1], [9, 1], [1, 2]], "i4").repeat(2, 1)[:, [0, 2, 1, 3]]
    np.testing.assert_array_equal(machine.run(text, texture, threads).view("f4")[:, 0], [1, 7, 0, 0])


@pytest.mark.parametrize("linear", [False, True])
def test_texture_reads_choose_levels(machine: Machine, linear: bool) -> None:
    """The given level, with bias and limits: the nearest, or between two; and levels found from gradients."""
    levels = [machine.array(np.full((1, size, size, 1), float(size), "f4")) for size in (8, 4, 2, 1)]
    how = {
        "flags": NORMALIZED,
        "level_filter": linear,
        "level_bias": 0.25,
        "least_level": 0.5,
        "greatest_level": 2.75,
    }
    texture = machine.object(F32, 1, *levels, **how)
    level = np.array([[0.5, 0.5, lod, 0] for lod in (-9, 0, 1, 1.5, 2.0, 99, np.nan, np.inf)], "f4")
    text = module("tex.level.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%d1, {%f0, %f1}], %f2;")
    actual = machine.run(text, texture, level).view("f4")[:, 0]
    # Levels 0.5, 0.5, 1.25, 1.75, 2.25 and 2.75; no number counts as 0.
    between = [6, 6, 3.5, 2.5, 1.75, 1.25, 6, 1.25]
    np.testing.assert_allclose(actual, between if linear else [4, 4, 4, 2, 2, 1, 4, 1])
    text = module("tex.grad.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%d1, {%f0, %f1}], {%f2, %f3}, {%f3, %f3};")
    level = np.array([[0.5, 0.5, step / 8, 0] for step in (0, 1, 2, 4)], "f4")
    how |= {"level_bias": 0.0, "least_level": 0.0, "greatest_level": 3.0}
    actual = machine.run(text, machine.object(F32, 1, *levels, **how), level).view("f4")[:, 0]
    np.testing.assert_allclose(actual, [8, 8, 4, 2])
    text = module("tex.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%d1, {%f0, %f1}];")
    assert machine.run(text, texture, level).view("f4")[0, 0] == (6 if linear else 4)


@pytest.mark.parametrize("layered", [False, True])
def test_cube_reads_choose_face_and_place(machine: Machine, layered: bool) -> None:
    """The face is that of the longest part of the direction, and the rest reports where on it."""
    texels = elements(F32, (12 if layered else 6, 4, 4, 1))
    texture = machine.object(F32, 1, machine.array(texels))
    directions = np.random.default_rng(5).uniform(-3, 3, (80, 3)).astype("f4")
    expected = []
    for direction in directions:
        axis = int(np.argmax(np.abs(direction)))
        face = 2 * axis + (direction[axis] < 0)
        s, t = _across(direction, face)
        x, y = (min(3, int((coordinate / abs(direction[axis]) + 1) / 2 * 4)) for coordinate in (s, t))
        expected.append(texels[face + (6 if layered else 0), y, x, 0])
    coordinates = np.ones((80, 4), "f4")
    coordinates[:, 1 if layered else 0 :][:, :3] = directions
    geometry = "acube" if layered else "cube"
    text = module(f"tex.{geometry}.v4.f32.f32 {{%r0, %r1, %r2, %r3}}, [%d1, {{{COORDINATES[geometry]}}}];")
    np.testing.assert_array_equal(machine.run(text, texture, coordinates).view("f4")[:, 0], expected)


def _across(direction: Any, face: int) -> tuple[float, float]:
    """The guide's table: s and t of a face, each a part of the direction with its sign."""
    x, y, z = map(float, direction)
    return [(-z, -y), (z, -y), (x, z), (x, -z), (x, -y), (-x, -y)][face]


def test_gathers_return_the_four_filtered_elements(machine: Machine) -> None:
    """The four elements of linear filtering, counter-clockwise from the lower left."""
    texels = elements(F32, (1, 4, 4, 4))
    texture = machine.object(F32, 4, machine.array(texels), address_modes=(CLAMP,) * 3)
    level = np.array([[2, 2, 0, 0], [0, 3.75, 0, 0]], "f4")
    for channel, letter in enumerate("rgba"):
        text = module(f"tld4.{letter}.2d.v4.f32.f32 {{%r0, %r1, %r2, %r3}}, [%d1, {{%f0, %f1}}];")
        actual, plane = machine.run(text, texture, level).view("f4"), texels[0, :, :, channel]
        np.testing.assert_array_equal(actual[0], [plane[2, 1], plane[2, 2], plane[1, 2], plane[1, 1]])
        np.testing.assert_array_equal(actual[1], [plane[3, 0], plane[3, 0], plane[3, 0], plane[3, 0]])


def test_gathers_repeat_the_bits_of_signed_bytes(machine: Machine) -> None:
    """As recorded on an H200: 68 / 127 would be 3f091224."""
    plane = np.array([[-19, -128], [68, -85]], "i1")
    texture = machine.object(S8, 1, machine.array(plane.reshape(1, 2, 2, 1)), address_modes=(CLAMP,) * 3)
    text = module("tld4.r.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%d1, {%f0, %f1}];")
    actual = machine.run(text, texture, np.array([[1, 1, 0, 0]], "f4"))[0].view("u4")
    assert [f"{value:08x}" for value in actual] == ["3f091312", "bf2b5757", "bf800000", "be193132"]


def test_texture_queries_return_sizes(machine: Machine) -> None:
    levels = [machine.array(np.zeros((5, height, width, 1), "f4")) for width, height in ((9, 6), (4, 3))]
    texture = machine.object(F32, 1, *levels, flags=NORMALIZED)
    text = module(
        "txq.width.b32 %r0, [%d1]; txq.level.height.b32 %r1, [%d1], 1; txq.depth.b32 %r2, [%d1];"
        "txq.num_mipmap_levels.b32 %r3, [%d1]; suq.width.b32 %r4, [%d1]; txq.normalized_coords.b32 %r5, [%d1];"
        "add.u32 %r0, %r0, %r4; add.u32 %r3, %r3, %r5;"
    )
    assert machine.run(text, texture, np.zeros((1, 4), "f4"))[0].tolist() == [18, 3, 5, 3]


def test_threads_with_textures_of_their_own(machine: Machine) -> None:
    """Each thread names its object; threads whose guard is false read nothing."""
    handles = [machine.object(F32, 1, machine.array(np.full((1, 1, 1, 1), n, "f4"))) for n in (3, 4)]
    inputs = np.zeros((6, 4), "u4")
    inputs[:, :2] = np.array([handles[0], handles[1], handles[0], 7, 7, handles[1]], "u8").view("u4").reshape(6, 2)
    inputs[3:5, 2] = 1
    text = module(
        "mov.b64 %d6, {%r4, %r5}; setp.eq.u32 %p, %r6, 0; mov.u32 %r0, 9;"
        "@%p tex.1d.v4.f32.s32 {%r0, %r1, %r2, %r3}, [%d6, %r6];",
        "{%r0, %r0, %r0, %r0}",
    )
    actual = machine.run(text, 0, inputs)[:, 0]
    assert actual[3:5].tolist() == [9, 9]
    np.testing.assert_array_equal(actual[[0, 1, 2, 5]].view("f4"), [3, 4, 3, 4])


@pytest.mark.parametrize("tier", ["numpy"], indirect=True)
def test_reads_of_many_textures_can_be_cancelled(machine: Machine) -> None:
    level = machine.array(np.zeros((1, 1, 1, 1), "f4"))
    inputs = np.zeros((64, 4), "u4")
    inputs[:, :2] = np.array([machine.object(F32, 1, level) for _ in range(64)], "u8").view("u4").reshape(64, 2)
    loaded = machine.device.load(
        module("mov.b64 %d6, {%r4, %r5}; tex.1d.v4.f32.s32 {%r0, %r1, %r2, %r3}, [%d6, %r6];")
    )
    out, rows = machine.device.put(inputs), machine.device.put(inputs)
    (batch,) = batches(loaded, "k", (1, 1, 1), (64, 1, 1), (out, 0, rows, 64))
    with pytest.raises(Cancelled):
        batch.step(SECONDS, CancelAfter(40))


@pytest.mark.parametrize(("dtype", "suffix"), [("u1", "b8"), ("u2", "b16"), ("u4", "b32")])
@pytest.mark.parametrize("geometry", ["1d", "2d", "3d", "a1d", "a2d"])
def test_surfaces_are_read_and_written_by_byte(machine: Machine, geometry: str, dtype: str, suffix: str) -> None:
    """Elements are read at a byte of a row and written at the next; outside nothing is written, and 0 is read."""
    dimensions, layered = int(geometry[-2]), geometry.startswith("a")
    shape = (3 if layered or dimensions == 3 else 1, 4 if dimensions > 1 else 1, 8, 1)
    texels = np.random.default_rng(7).integers(1, 200, shape).astype(dtype)
    level = machine.array(texels)
    format = {"u1": U8, "u2": U16, "u4": U32}[dtype]
    surface = machine.object(format, 1, level, kind=TexturedKind.SURFACE)
    size = texels.itemsize
    register = "%h0" if size < 4 else "%r0"
    names = {"1d": ("{%r4}", "{%r7}"), "2d": ("{%r4, %r5}", "{%r7, %r5}"), "a1d": ("{%r6, %r4}", "{%r6, %r7}")}
    names["3d"] = ("{%r4, %r5, %r6, %r6}", "{%r7, %r5, %r6, %r6}")
    names["a2d"] = ("{%r6, %r4, %r5, %r5}", "{%r6, %r7, %r5, %r5}")
    read, written = names[geometry]
    text = module(
        f"suld.b.{geometry}.{suffix}.zero {{{register}}}, [%d1, {read}]; add.s32 %r7, %r4, {4 * size};"
        f"sust.b.{geometry}.{suffix}.zero [%d1, {written}], {{{register}}};"
        + ("cvt.u32.u16 %r0, %h0;" if size < 4 else ""),
        "{%r0, %r0, %r0, %r0}",
    )
    # No thread reads what another one writes.
    x, y, z = np.meshgrid([-5, 0, 1, 2, 3], range(-1, 5), range(-1, 4), indexing="ij")
    coordinates = np.stack([x.ravel() * size, y.ravel(), z.ravel(), z.ravel()], 1).astype("i4")
    actual = machine.run(text, surface, coordinates)[:, 0]
    expected, after = [], texels.copy()
    for column, row, slice in zip(x.ravel(), y.ravel(), z.ravel(), strict=True):
        at = (slice if layered or dimensions == 3 else 0, row if dimensions > 1 else 0, column)
        inside = all(0 <= index < most for index, most in zip(at, shape, strict=False))
        expected.append(texels[at][0] if inside else 0)
        to = (at[0], at[1], column + 4)
        if all(0 <= index < most for index, most in zip(to, shape, strict=False)):
            after[to] = expected[-1]
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(machine.device.get(level.address, texels), after)


def test_vectors_of_surfaces(machine: Machine) -> None:
    texels = np.arange(16, dtype="u4").reshape(1, 2, 2, 4)
    level = machine.array(texels)
    surface = machine.object(U32, 4, level, kind=TexturedKind.SURFACE)
    text = module(
        "suld.b.2d.v4.b32.clamp {%r0, %r1, %r2, %r3}, [%d1, {%r4, %r5}]; xor.b32 %r6, %r4, 16;"
        "@!%p sust.b.2d.v2.b32.trap [%d1, {%r6, %r5}], {%r3, %r2};"
    )
    coordinates = np.array([[16, 1, 0, 0], [0, 0, 0, 0]], "i4")
    assert machine.run(text, surface, coordinates).tolist() == [[12, 13, 14, 15], [0, 1, 2, 3]]
    after = machine.device.get(level.address, texels).reshape(4, 4)
    assert after.tolist() == [[0, 1, 2, 3], [3, 2, 6, 7], [15, 14, 10, 11], [12, 13, 14, 15]]
    text = module("suld.b.2d.v4.b32.clamp {%r0, %r1, %r2, %r3}, [%d1, {%r4, %r5}];")
    coordinates = np.array([[99, 99, 0, 0], [-8, -1, 0, 0], [1 << 30, 0, 0, 0]], "i4")
    assert machine.run(text, surface, coordinates)[:, 0].tolist() == [12, 0, 3]


SAMPLES = """mov.u32 %r11, 0; mov.f32 %f7, 0f00000000;
AGAIN: tex.2d.v4.f32.f32 {%f4, %f5, %f6, %f7}, [%d1, {%f0, %f1}]; add.f32 %f0, %f0, %f4;
fma.rn.f32 %f1, %f5, %f6, %f1; add.f32 %f1, %f1, %f7;
add.u32 %r11, %r11, 1; setp.lt.u32 %p, %r11, 3; @%p bra AGAIN;"""
SAMPLED = "{%f4, %f5, %f6, %f7}"


@pytest.mark.parametrize("tier", ["compiled"], indirect=True)
def test_a_sample_in_a_loop_is_compiled(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the NumPy tier's bits, and escapes only where C leaves the work to that: here for mipmaps."""
    escapes = []
    original = CompiledBatch._escape
    monkeypatch.setattr(CompiledBatch, "_escape", lambda *them: (escapes.append(1), original(*them))[1])
    coordinates = np.random.default_rng(5).uniform(-9, 9, (250, 4)).astype("f4")
    coordinates[:5, 0] = (np.nan, np.inf, -np.inf, 1e30, 2.5)
    for format, channels, filter, modes, flags in product(
        (U8, S16, F16, F32), (1, 4), (0, 1), ((0, 2, 0), (1, 3, 0)), (0, 2)
    ):
        level = machine.array(elements(format, (1, 6, 5, channels)))
        texture = machine.object(format, channels, level, filter=filter, address_modes=modes, flags=flags)
        results = []
        for tier in ("compiled", "numpy"):
            use_tier(monkeypatch, tier)
            results.append(machine.run(module(SAMPLES, SAMPLED), texture, coordinates))
        np.testing.assert_array_equal(*results)
    assert not escapes
    use_tier(monkeypatch, "compiled")
    machine.run(module(SAMPLES, SAMPLED), machine.object(F32, 1, level, level), coordinates)
    assert escapes


def test_accesses_that_fault(machine: Machine) -> None:
    texels = np.zeros((1, 2, 2, 1), "u4")
    level = machine.array(texels)
    surface, texture = machine.object(U32, 1, level, kind=TexturedKind.SURFACE), machine.object(U32, 1, level)
    load = module("suld.b.2d.b32.trap {%r0}, [%d1, {%r4, %r5}];", "{%r0, %r0, %r0, %r0}")
    sample = module("tex.2d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%d1, {%r4, %r5}];")
    zeros, rows = np.zeros((3, 4), "i4"), np.zeros((3, 4), "i4")
    rows[2] = [8, 1, 0, 0]
    with pytest.raises(LaunchFailed, match=r"byte 8 of row 1 of slice 0.*thread \(2, 0, 0\)"):
        machine.run(load, surface, rows)
    with pytest.raises(MisalignedAddress):
        machine.run(load, surface, zeros + 1)
    for handle in (0, level.address, texture + 8, 1 << 63):
        with pytest.raises(IllegalAddress, match="not the handle of a texture or surface object"):
            machine.run(sample, handle, zeros)
    with pytest.raises(IllegalAddress, match="a texture, not a surface"):
        machine.run(load, texture, zeros)
    freed = machine.array(np.zeros((1, 256, 16, 1), "u4"))
    texture = machine.object(U32, 1, freed)
    machine.device.space.free(freed.address)
    with pytest.raises(IllegalAddress, match="outside of the allocations"):
        machine.run(sample, texture, zeros + 200)


@pytest.mark.parametrize("beyond", ["trap", "clamp", "zero"])
@pytest.mark.parametrize(
    "text", ["suld.b.1d.v{}.b{}.{} {}, [%d1, {{%r4}}];", "sust.b.1d.v{}.b{}.{} [%d1, {{%r4}}], {};"]
)
@pytest.mark.parametrize(("length", "bits"), [(2, 8), (4, 8), (2, 16), (2, 32), (4, 32), (2, 64)])
def test_a_vector_of_a_surface_is_aligned_as_a_whole(
    machine: Machine, length: int, bits: int, text: str, beyond: str
) -> None:
    level = machine.array(np.zeros((1, 1, 16, 1), "u4"))
    surface = machine.object(U32, 1, level, kind=TexturedKind.SURFACE)
    kind = {8: "h", 16: "h", 32: "r", 64: "d"}[bits]
    registers = [f"%{kind}{5 + k if bits == 64 else k}" for k in range(length)]
    values = ", ".join(registers)
    order = (length, bits, beyond, f"{{{values}}}")
    kernel = module(text.format(*order))
    rows, nbytes = np.zeros((1, 4), "i4"), length * bits // 8
    for start in range(0, 2 * nbytes, bits // 8):
        rows[0, 0] = start
        if start % nbytes == 0:
            machine.run(kernel, surface, rows)
            continue
        with pytest.raises(MisalignedAddress, match=f"{nbytes} bytes: misaligned"):
            machine.run(kernel, surface, rows)


def test_memory_that_is_not_an_object_is_refused() -> None:
    """A kernel may have written anything there; what is accepted addresses memory, and no more."""
    level = Level(1 << 46, 8, 16, 2, 2, 1)
    good = pack(TextureObject(TexturedKind.ARRAY, F32, 1, Sampling(), (level,)))
    assert len(good) == BYTES
    assert unpack(good).levels == (level,)
    random = np.random.default_rng(11)
    refused = 0
    for _ in range(400):
        damaged = bytearray(good)
        damaged[random.integers(0, 120)] = random.integers(0, 256)
        try:
            texture = unpack(bytes(damaged))
        except ValueError:
            refused += 1
            continue
        for accepted in texture.levels:
            assert max(accepted.width, accepted.height, accepted.depth) < 1 << 31
            assert accepted.address + accepted.depth * accepted.slice_pitch + accepted.height * accepted.pitch >= 0
    assert refused > 100
