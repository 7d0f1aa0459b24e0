"""Matrices that warps hold, against products of whole matrices and the fragments of the PTX ISA's text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import IllegalAddress, MisalignedAddress
from tests.emulated.harness import HEADER, Device

Array = np.ndarray[Any, Any]
HOPPER = HEADER.replace("8.0", "8.3").replace("sm_80", "sm_90")
Place = Callable[[int, int, int], tuple[int, int]]

# Where element i of lane (g, t) lies, as the PTX ISA words it, by the bits of an element: A, B, and C.


def place_a(i: int, g: int, t: int, bits: int, m: int) -> tuple[int, int]:
    if bits == 64 or bits == 32:
        return (g + 8 * (i % 2), t + 4 * (i // 2)) if m == 16 else (g, t + 4 * i)
    per_register = 32 // bits
    register, inner = divmod(i, per_register)
    row = g if m == 8 or register % 2 == 0 else g + 8
    block = register if m == 8 else register // 2
    return row, t * per_register + inner + 4 * per_register * block


def place_b(i: int, g: int, t: int, bits: int) -> tuple[int, int]:
    per_register = max(1, 32 // bits)
    register, inner = divmod(i, per_register)
    return t * per_register + inner + 4 * per_register * register, g


def place_c(i: int, g: int, t: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8), 2 * t + i % 2


def count_held(matrix: Array, place: Callable[..., tuple[int, int]], *rest: int) -> Array:
    """Each lane's elements of a matrix."""
    count = matrix.size // 32
    return np.array([[matrix[place(i, lane // 4, lane % 4, *rest)] for i in range(count)] for lane in range(32)])


STORED = {"f16": "f2", "bf16": "u2", "tf32": "u4", "e4m3": "u1", "e5m2": "u1", "s8": "i1", "u8": "u1", "f64": "f8"}
ACCUMULATED = {"f16": "f2", "f32": "f4", "s32": "i4", "f64": "f8"}


def some(rng: np.random.Generator, kind: str, size: tuple[int, int]) -> tuple[Array, Array]:
    """A matrix of small numbers as bits in memory, and its values."""
    if kind in ("s8", "u8"):
        bits = rng.integers(0, 256, size, "u1").view(STORED[kind])
        return bits, bits.astype("i8")
    values = rng.integers(-8, 9, size).astype("f4") / 4
    if kind == "bf16":
        return (values.view("u4") >> 16).astype("u2"), values.astype("f8")
    if kind == "tf32":
        # The low bits are ignored.
        return values.view("u4") | rng.integers(0, 1 << 13, size, "u4"), values.astype("f8")
    if kind in ("e4m3", "e5m2"):
        exponents = {"e4m3": (3, 7), "e5m2": (2, 15)}[kind]
        small = rng.integers(0, 3, size) + exponents[1] - 1
        fractions = rng.integers(0, 1 << exponents[0], size)
        negative = rng.integers(0, 2, size)
        value = (1 + fractions / 2.0 ** exponents[0]) * 2.0 ** (small - exponents[1]) * np.where(negative, -1, 1)
        return (negative << 7 | small << exponents[0] | fractions).astype("u1"), value
    return values.astype(STORED[kind]), values.astype("f8")


CASES = [
    ("m16n8k8", "f32.f16.f16.f32"),
    ("m16n8k16", "f32.f16.f16.f32"),
    ("m16n8k8", "f16.f16.f16.f16"),
    ("m16n8k16", "f16.f16.f16.f16"),
    ("m16n8k8", "f32.bf16.bf16.f32"),
    ("m16n8k16", "f32.bf16.bf16.f32"),
    ("m16n8k4", "f32.tf32.tf32.f32"),
    ("m16n8k8", "f32.tf32.tf32.f32"),
    ("m16n8k16", "f32.e4m3.e5m2.f32"),
    ("m16n8k32", "f32.e4m3.e4m3.f32"),
    ("m16n8k16", "f16.e5m2.e5m2.f16"),
    ("m16n8k32", "f16.e4m3.e5m2.f16"),
    ("m16n8k32", "f32.e5m2.e4m3.f32"),
    ("m8n8k16", "s32.s8.s8.s32"),
    ("m16n8k16", "s32.s8.u8.s32"),
    ("m16n8k32", "s32.u8.s8.s32"),
    ("m16n8k32", "s32.u8.u8.s32"),
    ("m8n8k4", "f64.f64.f64.f64"),
    ("m16n8k4", "f64.f64.f64.f64"),
    ("m16n8k8", "f64.f64.f64.f64"),
    ("m16n8k16", "f64.f64.f64.f64"),
]


def words(lanes: Array) -> Array:
    """Lanes' elements as their registers of 32 or 64 bits."""
    width = max(4, lanes.itemsize)
    return np.ascontiguousarray(lanes).view(f"u{width}")


def product(shape: str, types: str, satfinite: str, warps: int = 3) -> Iterator[tuple[Array, Array]]:
    """Run the instruction in some warps; yield what each warp gets and what it should."""
    m, n, k = (int(part) for part in shape.replace("m", "").replace("n", " ").replace("k", " ").split())
    d, a, b, _ = types.split(".")
    rng = np.random.default_rng(k)
    bits = 8 * np.dtype(STORED[a]).itemsize
    held_a, held_b, held_c, expected = [], [], [], []
    for _ in range(warps):
        (raw_a, left), (raw_b, right) = some(rng, a, (m, k)), some(rng, b, (k, n))
        c = rng.integers(-9, 9, (m, n)).astype(ACCUMULATED[d])
        if d == "s32":
            c[::2] = 2**31 - 1 - c[::2] % 5
        held_a.append(words(count_held(raw_a, place_a, bits, m)))
        held_b.append(words(count_held(raw_b, place_b, bits)))
        held_c.append(words(count_held(c, place_c)))
        total = left @ right + c
        if d == "s32":
            total = np.clip(total, -(2**31), 2**31 - 1) if satfinite else (total + 2**31) % 2**32 - 2**31
        expected.append(total.astype(ACCUMULATED[d]))
    fragments = [np.concatenate(held) for held in (held_a, held_b, held_c)]
    out = np.zeros_like(fragments[2])
    text = kernel(shape, types, satfinite, [f.shape[1] for f in fragments], [f.itemsize for f in fragments])
    device = Device(1 << 20)
    addresses = [device.put(held) for held in (*fragments, out)]
    device.launch(device.load(text), "k", 1, 32 * warps, *addresses)
    actual = device.get(addresses[3], out).view(ACCUMULATED[d]).reshape(warps, 32, -1)
    for warp in range(warps):
        yield actual[warp], count_held(expected[warp], place_c)


def kernel(shape: str, types: str, satfinite: str, counts: list[int], widths: list[int]) -> str:
    lines = [".reg .b32 %t;", "mov.u32 %t, %tid.x;"]
    names = []
    for letter, count, width in zip("abc", counts, widths, strict=True):
        names.append("{" + ", ".join(f"%{letter}{i}" for i in range(count)) + "}")
        lines += [f".reg .b{8 * width} %{letter}<{count}>; .reg .b64 %p{letter}, %o{letter};"]
        lines += [f"ld.param.u64 %p{letter}, [{letter}]; mul.wide.u32 %o{letter}, %t, {count * width};"]
        lines += [f"add.u64 %p{letter}, %p{letter}, %o{letter};"]
        lines += [f"ld.global.b{8 * width} %{letter}{i}, [%p{letter}+{width * i}];" for i in range(count)]
    lines.append(
        f"mma.sync.aligned.{shape}.row.col{satfinite}.{types} {names[2]}, {names[0]}, {names[1]}, {names[2]};"
    )
    lines.append(".reg .b64 %pd; ld.param.u64 %pd, [d]; add.u64 %pd, %pd, %oc;")
    lines += [f"st.global.b{8 * widths[2]} [%pd+{widths[2] * i}], %c{i};" for i in range(counts[2])]
    parameters = ", ".join(f".param .u64 {letter}" for letter in "abcd")
    return f"{HOPPER}.visible .entry k({parameters})\n{{\n" + "\n".join(lines) + "\nret; }\n"


@pytest.mark.parametrize(("shape", "types"), CASES)
def test_products_match_whole_matrices(shape: str, types: str) -> None:
    for actual, expected in product(shape, types, ""):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("types", "nan"), [("f32.f16.f16.f32", 0x7FFFFFFF), ("f16.f16.f16.f16", 0x7FFF7FFF)])
def test_products_with_nan_have_the_canonical_one(types: str, nan: int) -> None:
    """As recorded on an H200."""
    counts = [4, 2, 4 if types.startswith("f32") else 2]
    device = Device(1 << 20)
    memory = [
        device.put(np.full(32 * count, bits, "u4")) for count, bits in zip(counts, [0xFE01FE01, 0, 0], strict=True)
    ]
    out = device.put(np.zeros(32 * counts[2], "u4"))
    device.launch(device.load(kernel("m16n8k16", types, "", counts, [4, 4, 4])), "k", 1, 32, *memory, out)
    assert set(device.get(out, np.zeros(32 * counts[2], "u4")).tolist()) == {nan}


def test_integer_products_saturate() -> None:
    for actual, expected in product("m16n8k32", "s32.s8.s8.s32", ".satfinite"):
        np.testing.assert_array_equal(actual, expected)


TRANSFER = """
.visible .entry k(.param .u64 a, .param .u64 b)
{ .shared .align 16 .b8 s[2048]; .reg .b32 %r<20>; .reg .b64 %d<9>; .reg .pred %p;
  ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; mov.u32 %r0, %tid.x; mov.u32 %r1, s;
  // All 1 KiB of each warp goes to shared memory; lane t has the address of row (t * 5) % 32, of 32 bytes each.
  shl.b32 %r2, %r0, 5; mul.wide.u32 %d2, %r0, 32; add.u64 %d3, %d0, %d2; add.u32 %r3, %r1, %r2;
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d3]; st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d3+16]; st.shared.v4.u32 [%r3+16], {%r4, %r5, %r6, %r7};
  bar.sync 0;
  and.b32 %r8, %r0, 31; mul.lo.u32 %r8, %r8, 5; and.b32 %r8, %r8, 31; and.b32 %r9, %r0, 32; add.u32 %r8, %r8, %r9;
  shl.b32 %r8, %r8, 5; add.u32 %r8, %r8, %r1;
  mov.u32 %r10, 1; mov.u32 %r11, 2; mov.u32 %r12, 3; mov.u32 %r13, 4;
  @BODY@
  bar.sync 0;
  shl.b32 %r14, %r0, 4; mul.wide.u32 %d4, %r0, 16; add.u64 %d5, %d1, %d4;
  st.global.v4.u32 [%d5], {%r10, %r11, %r12, %r13};
  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r3]; mul.wide.u32 %d6, %r0, 32; add.u64 %d7, %d1, %d6;
  st.global.v4.u32 [%d7+1024], {%r4, %r5, %r6, %r7};
  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r3+16]; st.global.v4.u32 [%d7+1040], {%r4, %r5, %r6, %r7};
  ret; }
"""


def transfer(body: str) -> tuple[Array, Array, Array]:
    """Two warps' memory as 16-bit elements before, their registers, and their memory after."""
    before = np.arange(1024, dtype="u2").reshape(2, 32, 16) * 7
    device = Device(1 << 20)
    out = np.zeros(3072, "u1")
    addresses = [device.put(before), device.put(out)]
    device.launch(device.load(HOPPER + TRANSFER.replace("@BODY@", body)), "k", 1, 64, *addresses)
    actual = device.get(addresses[1], out)
    return before, actual[:1024].view("u2").reshape(2, 32, 4, 2), actual[1024:].view("u2").reshape(2, 32, 16)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_are_loaded(count: int, trans: str) -> None:
    registers = ", ".join(f"%r{10 + i}" for i in range(count))
    before, actual, _ = transfer(f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%r8];")
    for warp in range(2):
        for matrix in range(count):
            rows = [before[warp, (lane * 5) % 32, :8] for lane in range(8 * matrix, 8 * matrix + 8)]
            whole = np.array(rows).T if trans else np.array(rows)
            np.testing.assert_array_equal(actual[warp, :, matrix], whole.reshape(32, 2))
        for index in range(count, 4):
            assert (actual[warp, :, index, 0] == index + 1).all()


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_are_stored(count: int, trans: str) -> None:
    registers = ", ".join(f"%r{10 + i}" for i in range(count))
    fill = "".join(f"mad.lo.u32 %r{10 + i}, %r0, 65541, {i};" for i in range(count))
    before, actual, after = transfer(
        f"{fill} stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r8], {{{registers}}};"
    )
    expected = before.copy()
    for warp in range(2):
        for matrix in range(count):
            whole = actual[warp, :, matrix].reshape(8, 8)
            for row in range(8):
                expected[warp, ((8 * matrix + row) * 5) % 32, :8] = (whole.T if trans else whole)[row]
    np.testing.assert_array_equal(after, expected)


def test_a_matrix_is_transposed() -> None:
    _, actual, _ = transfer("mad.lo.u32 %r10, %r0, 65541, 9; movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r10;")
    for warp in range(2):
        np.testing.assert_array_equal(actual[warp, :, 1].reshape(8, 8), actual[warp, :, 0].reshape(8, 8).T)


@pytest.mark.parametrize(("change", "fault"), [("4", MisalignedAddress), ("65536", IllegalAddress)])
def test_a_bad_row_faults_and_names_its_thread(change: str, fault: type[Exception]) -> None:
    body = f"setp.eq.u32 %p, %r0, 37; @%p add.u32 %r8, %r8, {change};"
    with pytest.raises(fault, match=r"thread \(37, 0, 0\)"):
        transfer(body + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r8];")
    # Of lanes whose rows are not asked for the address does not matter.
    transfer(body.replace("37", "40") + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r8];")
