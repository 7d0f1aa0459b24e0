"""wmma, which nvcuda::wmma becomes: matrices in memory, multiplied, and back in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd_server.ptx.isa.faults import IllegalAddress
from tests.emulated.harness import HEADER, Device
from tests.emulated.test_matrices import ACCUMULATED, STORED, some

Array = np.ndarray[Any, Any]
LARGE = ("m16n16k16", "m32n8k16", "m8n32k16")
PRODUCTS = {
    "f16.f16.f16.f16": LARGE,
    "f32.f16.f16.f16": LARGE,
    "f32.f16.f16.f32": LARGE,
    "f32.bf16.bf16.f32": LARGE,
    "f32.tf32.tf32.f32": ("m16n16k8",),
    "s32.s8.s8.s32": LARGE,
    "s32.u8.u8.s32": LARGE,
    "f64.f64.f64.f64": ("m8n8k4",),
}
"""Shapes by the types of D, A, B and C."""
NAMES = "dabc"
WARPS = 2


@frozen
class Matrix:
    """One of the matrices of each warp, in memory: rows, or columns, and some elements between them."""

    name: str
    kind: str
    size: tuple[int, int]
    layout: str
    spare: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype((STORED if self.name in "ab" else ACCUMULATED)[self.kind])

    @property
    def stride(self) -> int:
        return self.size[self.layout == "row"] + self.spare

    @property
    def count(self) -> int:
        """Registers of its fragment, of which those of A and B of halves are always eight."""
        if self.kind == "f16" and self.name in "ab":
            return 8
        return self.size[0] * self.size[1] // 32 * self.dtype.itemsize // max(self.dtype.itemsize, 4)

    @property
    def registers(self) -> str:
        return "{" + ", ".join(f"%{self.name}{i}" for i in range(self.count)) + "}"

    def memory(self, values: Array) -> Array:
        """The matrices of all warps, one after another."""
        lines = values if self.layout == "row" else values.transpose(0, 2, 1)
        padded = np.zeros((len(lines), lines.shape[1], self.stride), self.dtype)
        padded[:, :, : lines.shape[2]] = lines
        return padded

    def of_memory(self, elements: Array) -> Array:
        values = elements[:, :, : self.stride - self.spare]
        return values if self.layout == "row" else values.transpose(0, 2, 1)

    def transfer(self, space: str) -> str:
        """The instruction that loads it, or stores D."""
        rest = f", {self.stride}" if self.spare else ""
        suffix = f"{self.name}.sync.aligned.{self.layout}.@SHAPE@{space}.{self.kind}"
        if self.name == "d":
            return f"wmma.store.{suffix} [%pd], {self.registers}{rest};"
        return f"wmma.load.{suffix} {self.registers}, [%p{self.name}]{rest};"


COPY = """ld.param.u64 %g, [a]; mov.u32 %s, s; mov.u32 %i, %t;
copy: setp.ge.u32 %q, %i, @WORDS@; @%q bra copied;
mul.wide.u32 %w, %i, 4; add.u64 %w, %w, %g; ld.global.u32 %x, [%w];
shl.b32 %o, %i, 2; add.u32 %o, %o, %s; st.shared.u32 [%o], %x;
mov.u32 %x, %ntid.x; add.u32 %i, %i, %x; bra copy;
copied: bar.sync 0; cvt.u64.u32 %pa, %s;"""


def kernel(matrices: tuple[Matrix, ...], shape: str, space: str, modifier: str) -> str:
    """Each warp multiplies its own matrices; those of A are in `space`, where they may have to be copied before."""
    d, a, b, c = matrices
    lines = [".reg .pred %q; .reg .b32 %t, %i, %x, %s, %o; .reg .b64 %g, %w; mov.u32 %t, %tid.x;"]
    for matrix in matrices:
        size = matrix.dtype.itemsize * matrix.stride * matrix.size[matrix.layout == "col"]
        lines.append(f".reg .b{64 if matrix.kind == 'f64' else 32} %{matrix.name}<8>; .reg .b64 %p{matrix.name};")
        lines.append(f"ld.param.u64 %p{matrix.name}, [{matrix.name}];")
        if matrix is a and space == ".shared":
            lines.append(COPY.replace("@WORDS@", str(WARPS * size // 4)))
        lines.append(f"shr.u32 %i, %t, 5; mul.wide.u32 %w, %i, {size}; add.u64 %p{matrix.name}, %p{matrix.name}, %w;")
    types = f"{d.kind}.{c.kind}" if a.kind == "f16" else f"{d.kind}.{a.kind}.{b.kind}.{c.kind}"
    operands = ", ".join(matrix.registers for matrix in matrices)
    lines += [a.transfer(space), b.transfer(".global"), c.transfer("")]
    lines.append(f"wmma.mma.sync.aligned.{a.layout}.{b.layout}.@SHAPE@.{types}{modifier} {operands};")
    lines.append(d.transfer(".global"))
    parameters = ", ".join(f".param .u64 {name}" for name in NAMES)
    text = f"{HEADER}.extern .shared .align 32 .b8 s[];\n.visible .entry k({parameters})\n{{\n"
    return (text + "\n".join(lines) + "\nret; }\n").replace("@SHAPE@", shape)


@st.composite
def products(draw: st.DrawFn) -> tuple[tuple[Matrix, ...], str]:
    """The matrices, and the shape as the instructions have it."""
    types = draw(st.sampled_from(sorted(PRODUCTS)))
    shape = draw(st.sampled_from(PRODUCTS[types]))
    m, n, k = (int(part) for part in shape.replace("m", "").replace("n", " ").replace("k", " ").split())
    sizes = {"a": (m, k), "b": (k, n)}
    layout, spare = st.sampled_from(["row", "col"]), st.sampled_from([0, 16, 48])
    pairs = zip(NAMES, types.split("."), strict=True)
    return tuple(
        Matrix(name, kind, sizes.get(name, (m, n)), draw(layout), draw(spare)) for name, kind in pairs
    ), shape


def check(
    matrices: tuple[Matrix, ...], shape: str, space: str = ".global", modifier: str = "", seed: int = 0
) -> None:
    """Run a product in each of the warps, and compare what they store."""
    d, a, b, c = matrices
    rng = np.random.default_rng(seed)
    raw_a, left = some(rng, a.kind, (WARPS * a.size[0], a.size[1]))
    raw_b, right = some(rng, b.kind, (WARPS * b.size[0], b.size[1]))
    before = rng.integers(-9, 9, (WARPS, *c.size))
    if d.kind == "s32":
        before[:, ::2] += 2**31 - 50
    total = left.reshape(WARPS, *a.size) @ right.reshape(WARPS, *b.size) + before
    if d.kind == "s32":
        total = np.clip(total, -(2**31), 2**31 - 1) if modifier else (total + 2**31) % 2**32 - 2**31
    memory = [a.memory(raw_a.reshape(WARPS, *a.size)), b.memory(raw_b.reshape(WARPS, *b.size))]
    memory += [c.memory(before.astype(c.dtype)), d.memory(np.zeros((WARPS, *d.size)))]
    device = Device(1 << 22)
    where = [device.put(operand) for operand in (*memory[3:], *memory[:3])]
    shared = memory[0].nbytes if space == ".shared" else 0
    device.launch(device.load(kernel(matrices, shape, space, modifier)), "k", 1, 32 * WARPS, *where, shared=shared)
    np.testing.assert_array_equal(d.of_memory(device.get(where[0], memory[3])), total.astype(d.dtype))


@settings(max_examples=60)
@given(products(), st.sampled_from([".global", ".shared", ""]), st.booleans(), st.integers(0, 1000))
def test_wmma_products_match_whole_matrices(
    product: tuple[tuple[Matrix, ...], str], space: str, satfinite: bool, seed: int
) -> None:
    kind = product[0][0].kind
    modifier = {"s32": ".satfinite" if satfinite else "", "f64": ".rn"}.get(kind, "")
    check(*product, space, modifier, seed)


def test_a_row_outside_of_memory_faults() -> None:
    matrices = tuple(Matrix(name, "s8" if name in "ab" else "s32", (16, 16), "row", 0) for name in NAMES)
    device = Device(1 << 20)
    # Of D there is only the first warp's.
    where = [device.put(np.zeros(count * 1024, "u1")) for count in (1, 2, 2, 2)]
    module = device.load(kernel(matrices, "m16n16k16", ".global", ""))
    with pytest.raises(IllegalAddress, match=r"thread \(32, 0, 0\)"):
        device.launch(module, "k", 1, 64, *where)
