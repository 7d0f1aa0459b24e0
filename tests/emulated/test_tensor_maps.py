"""Tensor maps: tiles that are loaded, stored and reduced, against a model of one element at a time."""

from __future__ import annotations

import contextlib
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from attrs import evolve, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.wire.tensor_map import BYTES, GREATEST_RANK, DataType, Im2col, TensorMap, pack
from pympsd_server.ptx.isa.faults import DeviceFault, IllegalAddress, IllegalInstruction, MisalignedAddress
from tests.emulated.tensor_machine import (
    COPY_OUT,
    LOAD,
    NAMES,
    SHARED,
    TENSOR,
    Machine,
    kernel,
    load_instruction,
    loading,
    pattern,
    places,
    plain,
    storing,
    swizzled,
    tile_bytes,
)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


@frozen
class Case:
    map: TensorMap
    start: tuple[int, ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Tensors of every rank with padded strides, and tiles that begin before, in or behind them."""
    dtype = draw(st.sampled_from([np.dtype(name) for name in ("u1", "u2", "u4", "f4", "f8", "f2")]))
    rank = draw(st.integers(1, 5))
    size, unit = dtype.itemsize, 16 // dtype.itemsize
    dimensions = [draw(st.integers(1, 6 * unit)), *(draw(st.integers(1, 7)) for _ in range(rank - 1))]
    strides, row = [], dimensions[0] * size
    for dimension in dimensions[1:]:
        strides.append(-(-row // 16) * 16 + 16 * draw(st.integers(0, 1)))
        row = strides[-1] * dimension
    swizzle = draw(st.integers(0, 3))
    inner = draw(st.integers(1, min(1 << swizzle, 256 // unit)) if swizzle else st.integers(1, min(5, 256 // unit)))
    most = 4 if rank < GREATEST_RANK else 3  # the rows of a box fit into the kernel's shared memory
    box = (inner * unit, *(draw(st.integers(1, most)) for _ in range(rank - 1)))
    steps = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    start = (
        unit * draw(st.integers(-inner, dimensions[0] // unit)),
        *(draw(st.integers(1 - extent, size)) for extent, size in zip(box[1:], dimensions[1:], strict=True)),
    )
    fill = int(dtype.kind == "f" and draw(st.booleans()))
    return Case(
        TensorMap(NAMES[dtype], 0, tuple(dimensions), tuple(strides), box, steps, swizzle=swizzle, fill=fill), start
    )


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(0, 1 << 20))
def test_loads_as_a_model_does(machine: Machine, case: Case, seed: int) -> None:
    of, memory = evolve(case.map, address=machine.tensor), pattern(Machine.ROOM, seed)
    expected, size, filled = np.zeros(SHARED, "u1"), of.element_bytes, []
    for source, target in places(of, case.start):
        if source is not None:
            expected[target : target + size] = memory[source : source + size]
        elif of.fill:
            filled.append(target)
    numbers = [*[*case.start, *([0] * 5)][:5], tile_bytes(of)]
    after, image = machine.run(loading(of.rank), of, memory, pattern(SHARED, seed), numbers)
    np.testing.assert_array_equal(after, memory)
    for target in filled:
        element = image[target : target + size].copy()
        assert element.tolist() == [0xF7, 0x7F] * (size // 2)
        image = image.copy()
        image[target : target + size] = 0
    np.testing.assert_array_equal(image, expected)


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 1 << 20))
def test_stores_as_a_model_does(machine: Machine, case: Case, seed: int) -> None:
    """No store begins at a negative coordinate."""
    start = tuple(map(abs, case.start))
    of, memory, image = (
        evolve(case.map, address=machine.tensor),
        pattern(Machine.ROOM, seed),
        pattern(SHARED, seed + 1),
    )
    expected, size = memory.copy(), of.element_bytes
    for target, source in places(of, start, written=True):
        if target is not None:
            expected[target : target + size] = image[source : source + size]
    after, _ = machine.run(storing(of.rank), of, memory, image, start)
    np.testing.assert_array_equal(after, expected)
    if start != case.start:
        with pytest.raises(IllegalInstruction, match="begins before the tensor"):
            machine.run(storing(of.rank), of, memory, image, case.start)


# --- single cases


@pytest.mark.parametrize(("swizzle", "row"), [(0, 32), (1, 8), (2, 16), (3, 32)])
def test_tiles_are_swizzled(machine: Machine, swizzle: int, row: int) -> None:
    """As the PTX ISA draws them: pieces of 16 bytes are exchanged, in every line of 128 bytes in another way."""
    memory = np.zeros(Machine.ROOM, "u1")
    memory[: 16 * 256].view("u4")[:] = np.arange(16 * 64)
    of = plain(machine, swizzle=swizzle)
    _, image = machine.run(loading(2), of, memory, np.zeros(SHARED, "u1"), [0, 0, 0, 0, 0, tile_bytes(of)])
    words = image.view("u4")
    for index in range(8 * row):
        line, piece, rest = index // 32, index // 4 % 8, index % 4
        number = 32 * line + 4 * (piece ^ line % (1 << swizzle)) + rest
        assert words[number] == index // row * 64 + index % row


@pytest.mark.parametrize(("function", "ragged"), [("", True), ("add", True), ("add", False)])
def test_units_of_16_bytes_are_written_whole(machine: Machine, function: str, ragged: bool) -> None:
    """A row of 25 words, or of 28, is written as far as 28: where that is past the allocation it is a fault."""
    text, image = storing(1, function), np.ones(SHARED, "u1")
    of = TensorMap(DataType.UINT32, machine.tensor, (25 if ragged else 28,), (), (32,), (1,))
    after, _ = machine.run(text, of, np.zeros(Machine.ROOM, "u1"), image, [0])
    assert after[:112].all()
    assert not after[112:].any()
    exact = machine.device.space.allocate(of.dimensions[0] * 4)
    moved = evolve(of, address=exact)
    with pytest.raises(IllegalAddress, match="outside of the allocations") if ragged else contextlib.nullcontext():
        machine.run(text, moved, np.zeros(Machine.ROOM, "u1"), image, [0])


def test_floats_are_rounded_and_never_flushed(machine: Machine) -> None:
    bits = np.array([0x00000001, 0x807FFFFF, 0x3F800FFF, 0x3F801000, 0xBF803000, 0x7F800000, 0x7FC00001], "u4")
    memory = np.zeros(Machine.ROOM, "u1")
    memory[:28] = bits.view("u1")
    rounded = [0, 0x80800000, 0x3F800000, 0x3F800000, 0xBF804000, 0x7F800000, 0x7FFFE000]
    expected = {
        DataType.FLOAT32: bits.tolist(),
        DataType.FLOAT32_FTZ: bits.tolist(),
        DataType.TFLOAT32: rounded,
        DataType.TFLOAT32_FTZ: rounded,
    }
    for data_type, words in expected.items():
        of = TensorMap(data_type, machine.tensor, (8,), (), (8,), (1,))
        _, image = machine.run(loading(1), of, memory, memory[:SHARED], [0, 0, 0, 0, 0, 32])
        assert image[:28].view("u4").tolist() == words


def test_coordinates_far_away(machine: Machine) -> None:
    memory = np.full(Machine.ROOM, 1, "u1")
    for start in product((-(1 << 31), (1 << 31) - 32, 0), (-(1 << 31), (1 << 31) - 1)):
        of = plain(machine)
        _, image = machine.run(loading(2), of, memory, memory[:SHARED], [*start, 0, 0, 0, tile_bytes(of)])
        assert not image.any()
        if min(start) >= 0:
            after, _ = machine.run(storing(2), of, memory, image, start)
            assert after.all()


@pytest.mark.parametrize("form", ["tile", "im2col"])
@pytest.mark.parametrize(("below", "stride", "row"), [(0, 1 << 34, 1 << 30), (1 << 47, 1 << 39, 1 << 8)])
def test_addresses_have_64_bits(machine: Machine, form: str, below: int, stride: int, row: int) -> None:
    """As on an H100: an element 2**64 bytes behind other memory is that memory."""
    is_im2col = form == "im2col"
    address = (machine.tensor - below) % (1 << 64)
    tensor_map = TensorMap(DataType.UINT32, address, (4, 1 << 31, 4), (stride, 0), (4, 1, 1), (1, 1, 1))
    of = evolve(tensor_map, im2col=Im2col((0,), (0,), 4, 1)) if is_im2col else tensor_map
    memory, image = pattern(Machine.ROOM, 1), np.zeros(SHARED, "u1")
    load = loading(3, form, ", {0}" if is_im2col else "")
    _, after = machine.run(load, of, memory, image, [0, row, 0, 0, 0, 16])
    assert (after[:16] == memory[:16]).all()
    assert memory[:16].any()


def test_dynamic_shared_memory_is_aligned_as_declared(machine: Machine) -> None:
    """The static memory before it has 8 bytes; a box may lie in it immediately."""
    instruction = load_instruction(2).replace("[%r2]", "[%r12]")
    body = "mov.u32 %r12, dynamic;\n" + LOAD.replace("INSTRUCTION", instruction)
    text = kernel(body + COPY_OUT.replace("%r4, %r2, %r3", "%r4, %r12, %r3").replace("16384", "2048"))
    text = text.replace(f".shared .align 1024 .b8 s[{SHARED}];", ".shared .b8 s[1];")
    text = text.replace(".visible", ".extern .shared .align 1024 .b8 dynamic[];\n.visible", 1)
    memory, of = pattern(Machine.ROOM, 3), plain(machine, swizzle=3)
    machine.device.space.write(machine.tensor, memory.tobytes())
    machine.device.space.write(machine.numbers, np.array([0, 0, 0, 0, 0, 1024, 0, 0], "u4").tobytes())
    loaded = machine.device.load(text)
    machine.device.launch(loaded, "k", 1, 128, pack(of), machine.image, machine.numbers, shared=2048)
    image = machine.device.get(machine.image, np.zeros(1024, "u1"))
    for source, target in places(of, (0, 0)):
        assert image[target : target + 4].tolist() == memory[source : source + 4].tolist()


# --- im2col


def test_im2col_boxes_match_the_model(machine: Machine) -> None:
    """Pixels of a box that is one pixel larger than the image on every side, in steps of 2, moved by offsets."""
    memory = np.zeros(Machine.ROOM, "u1")
    shape = (2, 5, 6, 8)  # N, H, W, C
    values = np.arange(1, math.prod(shape) + 1, dtype="u4")
    memory[: values.nbytes] = values.view("u1")
    box = Im2col((-1, -1), (-1, -1), 8, 24)
    strides = (32, 32 * 6, 32 * 30)
    of = TensorMap(
        DataType.UINT32, machine.tensor, shape[::-1], strides, (0,) * 4, (1, 2, 2, 1), swizzle=1, im2col=box
    )
    numbers = [0, -1, 1, 0, 0, 24 * 32]
    _, image = machine.run(loading(4, "im2col", ", {1, 2}"), of, memory, memory[:SHARED], numbers)
    pixels = [(n, h, w) for n in range(4) for h in range(-1, 4, 2) for w in range(-1, 5, 2)][3:27]
    source = values.reshape(shape)
    for row, (n, h, w) in enumerate(pixels):
        point = (n, h + 2, w + 1)
        inside = all(0 <= coordinate < most for coordinate, most in zip(point, shape, strict=False))
        expected = source[point].tolist() if inside else [0] * 8
        row_values = [image.view("u4")[swizzled(32 * row + 4 * c, 1) // 4] for c in range(8)]
        assert row_values == expected, (row, point)


def test_im2col_stores_have_no_offsets(machine: Machine) -> None:
    memory, image = np.zeros(Machine.ROOM, "u1"), np.zeros(SHARED, "u1")
    image[:128].view("u4")[:] = np.arange(1, 33)
    of = TensorMap(
        DataType.UINT32, machine.tensor, (4, 3, 2), (16, 48), (0,) * 3, (1, 1, 1), im2col=Im2col((-1,), (0,), 4, 8)
    )
    after, _ = machine.run(storing(3, "", "im2col_no_offs"), of, memory, image, (0, 1, 0))
    # The third pixel and the seventh, where a row of the box begins, are before the image.
    expected = [0, 0, 0, 0, *range(1, 9), *range(13, 25)]
    assert after[:96].view("u4").tolist() == expected


# --- faults


@frozen
class Fault:
    """What is wrong with a load, and what is reported of it."""

    error: type[DeviceFault]
    words: str
    change: dict[str, Any] = field(factory=dict)
    start: tuple[int, ...] = (0, 0)
    target: str = "[%r2]"
    form: str = "tile"


THREE = {"dimensions": (4, 4, 4), "strides": (64, 64), "box": (4, 4, 4), "element_strides": (1, 1, 1)}
FAULTS = [
    Fault(IllegalInstruction, "no multiple of 16 bytes", start=(1, 0)),
    Fault(IllegalInstruction, "no multiple of 16 bytes", start=(30, 0)),
    Fault(IllegalInstruction, "2 coordinates for a tensor map of 3 dimensions", THREE),
    Fault(IllegalInstruction, "interleaved", {"interleave": 1, **THREE}),
    Fault(MisalignedAddress, "shared address 0x40", target="[%r2+64]"),
    Fault(IllegalAddress, "outside of the", target="[%r2+16256]"),
    Fault(IllegalAddress, "bytes of shared memory", {"box": (256, 256)}),
    Fault(IllegalAddress, "outside of the allocations", {"address": 0}),
    Fault(IllegalAddress, "outside of the allocations", {"address": (1 << 64) - 16}),
    Fault(IllegalAddress, "outside of the allocations", {"dimensions": (1 << 31,) * 2, "strides": ((1 << 40) - 16,)},
          start=(0, 1 << 30)),
    Fault(IllegalInstruction, r"more than 2\*\*31 elements", {"dimensions": ((1 << 31) + 4, 16)}),
    Fault(IllegalAddress, "outside of the allocations", {"strides": (Machine.ROOM // 4,)}),
]  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_wrong_tiles_are_faults(machine: Machine, case: Fault) -> None:
    nothing, text = np.zeros(Machine.ROOM, "u1"), loading(2).replace("[%r2],", f"{case.target},")
    of = evolve(plain(machine), **case.change)
    with pytest.raises(case.error, match=case.words) as caught:
        machine.run(text, of, nothing, nothing[:SHARED], [*case.start, 0, 0, 0, 128])
    assert caught.value.thread == (0, 0, 0)
    with pytest.raises(case.error, match=case.words):
        machine.run(storing(2).replace("[%r2];", f"{case.target};"), of, nothing, nothing[:SHARED], case.start)


def test_a_map_of_the_other_kind(machine: Machine) -> None:
    nothing = np.zeros(Machine.ROOM, "u1")
    with pytest.raises(IllegalInstruction, match=r"a copy of \.im2col by a tensor map that is tiled"):
        machine.run(storing(2, "", "im2col_no_offs"), plain(machine), nothing, nothing[:SHARED], (0, 0))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, BYTES), st.binary(max_size=BYTES), st.integers(-3, 3), st.integers(-3, 3))
def test_any_bytes_are_a_map_or_a_fault(machine: Machine, at: int, data: bytes, column: int, row: int) -> None:
    """A map of which a part is anything copies what it says, or it is one of these faults; nothing else happens."""
    good = pack(plain(machine))
    mixed = (good[:at] + data + good[at + len(data) :])[:BYTES]
    nothing, loads = np.zeros(Machine.ROOM, "u1"), kernel(LOAD.partition("wait:")[0] + "wait:")
    for text in (loads.replace("INSTRUCTION", load_instruction(2)), storing(2)):
        with contextlib.suppress(IllegalInstruction, IllegalAddress, MisalignedAddress):
            machine.run(text, mixed, nothing, nothing[:SHARED], [4 * column, row, 0, 0, 0, 0])


# --- maps that kernels make


def test_a_map_made_of_zeros(machine: Machine) -> None:
    """All fields are replaced in shared memory; the map is copied to global memory, and used there."""
    fields = [
        ("global_address", "b64", "", "%d5"), ("rank", "b32", "", "1"),
        ("global_dim", "b32", "0, ", "20"), ("global_dim", "b32", "1, ", "7"), ("global_stride", "b64", "0, ", "160"),
        ("box_dim", "b32", "0, ", "8"), ("box_dim", "b32", "1, ", "4"),
        ("element_stride", "b32", "0, ", "1"), ("element_stride", "b32", "1, ", "2"),
        ("elemtype", "b32", "", "9"), ("interleave_layout", "b32", "", "0"), ("swizzle_mode", "b32", "", "2"),
        ("fill_mode", "b32", "", "1"),
    ]  # fmt: skip
    replaced = "\n".join(
        f"@!%p0 tensormap.replace.tile.{field}.shared::cta.b1024.{kind} [%r2], {ordinal}{value};"
        for field, kind, ordinal, value in fields
    )
    body = f"""
    setp.ne.u32 %p0, %r0, 0; mov.b32 %r9, 0; shl.b32 %r10, %r0, 2; add.u32 %r10, %r10, %r2;
    st.shared.u32 [%r10], %r9; bar.sync 0; ld.global.u64 %d5, [%d2+24];
    {replaced}
    bar.sync 0; setp.ge.u32 %p2, %r0, 32; @%p2 bra copied;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d1+8192], [%r2], 128;
    copied: bar.sync 0;
    fence.proxy.tensormap::generic.acquire.gpu [%d1+8192], 128;
    add.u64 %d0, %d1, 8192;
    {LOAD.replace("INSTRUCTION", load_instruction(2))}
    """
    memory = np.zeros(Machine.ROOM, "u1")
    values = np.arange(20 * 7, dtype="f8")
    memory[: values.nbytes] = values.view("u1")
    text = kernel(body + COPY_OUT.replace("16384", "2048"))
    numbers = [16, 1, 0, 0, 0, 128, machine.tensor, machine.tensor >> 32]
    _, image = machine.run(text, bytes(BYTES), memory, np.zeros(SHARED, "u1"), numbers)
    table = values.reshape(7, 20)
    loaded = [[image.view("f8")[swizzled(64 * row + 8 * c, 2) // 8] for c in range(8)] for row in range(2)]
    expected = [[*table[1 + 2 * row, 16:], *[math.nan] * 4] for row in range(2)]
    np.testing.assert_array_equal(loaded, expected)


def test_a_global_map_is_changed(machine: Machine) -> None:
    body = f"""
    setp.ne.u32 %p0, %r0, 0; @%p0 bra done;
    tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%d1], 3;
    fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;
    {TENSOR.replace("bulk", "bulk.prefetch")}.2d.L2.global.tile [%d1, {{0, 0}}]; prefetch.tensormap [%d1];
    done:"""
    nothing, of = np.zeros(Machine.ROOM, "u1"), plain(machine)
    image = np.zeros(SHARED, "u1")
    image[:BYTES] = np.frombuffer(pack(of), "u1")
    _, after = machine.run(kernel(body), of, nothing, image, [])
    assert after[:BYTES].tobytes() == pack(evolve(of, swizzle=3))
    with pytest.raises(IllegalInstruction, match="not a tensor map"):
        machine.run(kernel(body), of, nothing, image + np.uint8(1), [])
