"""wgmma, against products of whole matrices that are laid out as the PTX ISA's table of canonical layouts says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd_server.ptx.isa.faults import IllegalAddress, InvalidPtx, LaunchFailed
from tests.emulated.harness import Device

Array = np.ndarray[Any, Any]
SM_90A = ".version 8.4\n.target sm_90a\n.address_size 64\n"
GROUPS = 2
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
SUMS = {"f16": "f2", "f32": "f4", "s32": "i4"}
PRODUCTS = {
    ("f16", "f16"): [("f16", "f16")],
    ("f32", "f16"): [("f16", "f16")],
    ("f32", "bf16"): [("bf16", "bf16")],
    ("f32", "tf32"): [("tf32", "tf32")],
    ("f16", "fp8"): [("e4m3", "e5m2"), ("e5m2", "e5m2")],
    ("f32", "fp8"): [("e4m3", "e4m3"), ("e5m2", "e4m3")],
    ("s32", "int8"): [("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")],
}
MODES = {0: 1, 32: 2, 64: 4, 128: 8}
"""Chunks of 16 bytes in a row, by the bytes that a swizzle mode has in its name."""
ENCODED = {0: 0, 128: 1, 64: 2, 32: 3}


def encode(values: Array, kind: str) -> Array:
    """Small whole numbers as elements of a type."""
    if kind == "bf16":
        return (values.astype("f4").view("u4") >> 16).astype("u2")
    if kind in ("tf32", "f16"):
        return values.astype("f2" if kind == "f16" else "f4")
    if kind in ("s8", "u8"):
        return values.astype("i8").astype("u1")
    bias, fraction_bits = {"e4m3": (7, 3), "e5m2": (15, 2)}[kind]
    fraction, exponent = np.frexp(np.abs(values).astype("f8"))
    bits = (exponent - 1 + bias) << fraction_bits | ((2 * fraction - 1) * 2**fraction_bits).astype("i8")
    return (np.where(values == 0, 0, bits) | np.where(values < 0, 128, 0)).astype("u1")


@frozen
class Layout:
    """A matrix in shared memory: offsets in bytes from the start of its pattern, as the ISA's table has them."""

    swizzle: int
    transposed: bool
    leading: int
    stride: int
    start: int
    """Where in its pattern the matrix begins."""

    def place(self, element: int, line: int, k: int) -> int:
        """The offset of row `line` (of M or N) and column `k`, of elements of `element` bytes."""
        width, t = MODES[self.swizzle], 16 // element
        leading, stride = self.leading, self.stride
        if not self.transposed:
            # None: ((8,m),(T,2k)):((1T,SBO),(1,LBO)); 32 bytes: ((8,m),(T,2k)):((2T,SBO),(1,T)), and so on.
            step = leading if self.swizzle == 0 else 16
            at = line % 8 * width * 16 + line // 8 * stride + k % t * element + k // t * step
        elif self.swizzle == 0:
            # ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
            at = line % t * element + line // t * stride + k % 8 * 16 + k // 8 * leading
        else:
            # 32 bytes: ((T,2,m),(8,k)):((1,T,LBO),(2T,SBO)), and so on.
            at = line % t * element + line // t % width * 16 + line // (t * width) * leading
            at += k % 8 * width * 16 + k // 8 * stride
        at += self.start
        # Swizzle<0 to 3, 4, 3>.
        return at ^ (at >> 7 & width - 1) << 4

    def image(self, matrix: Array) -> Array:
        """The bytes of shared memory that hold a matrix."""
        places = np.array([[self.place(matrix.itemsize, *at) for at in row] for row in index_of(matrix)])
        content = np.full(int(places.max()) + matrix.itemsize, 0x77, "u1")
        for byte in range(matrix.itemsize):
            content[places + byte] = np.ascontiguousarray(matrix).view("u1").reshape(*matrix.shape, -1)[:, :, byte]
        return content

    def descriptor(self, at: int) -> int:
        """The descriptor of the matrix whose pattern begins at an address."""
        base = at >> 7 & 7 if self.swizzle else 0
        fields = (at + self.start) >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32
        return fields | base << 49 | ENCODED[self.swizzle] << 62


def index_of(matrix: Array) -> list[list[tuple[int, int]]]:
    return [[(line, k) for k in range(matrix.shape[1])] for line in range(matrix.shape[0])]


@st.composite
def layouts(draw: st.DrawFn, rows: int, kind: str) -> Layout:
    """A layout for a matrix of so many rows of 32 bytes."""
    swizzle = draw(st.sampled_from(sorted(MODES)))
    transposed = kind in ("f16", "bf16") and draw(st.booleans())
    atom, spare = 128 * MODES[swizzle], draw(st.integers(0, 2))
    start = 0
    if swizzle == 0:
        # One of the strides is within the other.
        inner = 128 + 16 * spare
        count = rows // 8
        leading, stride = draw(st.sampled_from([(inner * count, inner), (inner, 2 * inner)]))
    elif not transposed:
        leading, stride = draw(st.sampled_from([0, 16, 496])), atom * (1 + spare)
        start = 32 * draw(st.integers(0, swizzle // 32 - 1))
    else:
        count = -(-rows // (8 * MODES[swizzle]))
        leading, stride = draw(st.sampled_from([(atom, atom * (count + spare)), (atom * (2 + spare), atom)]))
    return Layout(swizzle, transposed, leading, stride, start)


@frozen
class Product:
    """One instruction, its operands, and where they are."""

    n: int
    d: str
    a: str
    b: str
    layout_a: Layout | None
    layout_b: Layout
    signs: tuple[int, int]
    satfinite: bool
    accumulate: bool
    shift: int
    """Where the patterns begin, in units of 128 bytes after a multiple of 1024."""
    seed: int

    @property
    def k(self) -> int:
        return 32 // BYTES[self.a]

    def text(self) -> str:
        """The instruction: %c, %a, %da, %db and %p are its operands."""
        count = self.n // (4 if self.d == "f16" else 2)
        left = "%da" if self.layout_a is not None else "{%a0, %a1, %a2, %a3}"
        choices = [] if self.d == "s32" else [*self.signs]
        if self.a in ("f16", "bf16"):
            choices += [] if self.layout_a is None else [int(self.layout_a.transposed)]
            choices.append(int(self.layout_b.transposed))
        registers = ", ".join(f"%c{i}" for i in range(count))
        satfinite = ".satfinite" if self.satfinite else ""
        shape = f"m64n{self.n}k{self.k}{satfinite}.{self.d}.{self.a}.{self.b}"
        rest = "".join(f", {choice}" for choice in choices)
        return f"wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, {left}, %db, %p{rest};"


@st.composite
def products(draw: st.DrawFn) -> Product:
    d, family = draw(st.sampled_from(sorted(PRODUCTS)))
    a, b = draw(st.sampled_from(PRODUCTS[d, family]))
    every = (8, 16, 24, *range(32, 257, 16)) if d == "s32" else range(8, 257, 8)
    n = draw(st.sampled_from(every))
    signs = (1, 1) if d == "s32" else draw(st.tuples(st.sampled_from([1, -1]), st.sampled_from([1, -1])))
    return Product(
        n,
        d,
        a,
        b,
        draw(st.none() | layouts(64, a)),
        draw(layouts(n, b)),
        signs,
        d == "s32" and draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 7)),
        draw(st.integers(0, 1000)),
    )


KERNEL = """
.extern .shared .align 1024 .b8 s[];
.visible .entry k(.param .u64 image, .param .u32 size, .param .u64 a, .param .u64 d, .param .u64 da, .param .u64 db,
                  .param .u32 accumulate)
{ .reg .b32 %t, %i, %n, %s, %x, %a<4>, %c<128>; .reg .b64 %g, %w, %da, %db, %base, %at; .reg .pred %p, %q;
  mov.u32 %t, %tid.x; ld.param.u64 %g, [image]; ld.param.u32 %n, [size]; mov.u32 %s, s; mov.u32 %i, %t;
copy: setp.ge.u32 %q, %i, %n; @%q bra copied;
  mul.wide.u32 %w, %i, 4; add.u64 %at, %g, %w; ld.global.u32 %x, [%at];
  shl.b32 %a0, %i, 2; add.u32 %a0, %a0, %s; st.shared.u32 [%a0], %x;
  mov.u32 %x, %ntid.x; add.u32 %i, %i, %x; bra copy;
copied: fence.proxy.async; bar.sync 0;
  shr.u32 %s, %s, 4; cvt.u64.u32 %base, %s;
  ld.param.u64 %da, [da]; add.u64 %da, %da, %base; ld.param.u64 %db, [db]; add.u64 %db, %db, %base;
  ld.param.u32 %x, [accumulate]; setp.ne.u32 %p, %x, 0;
  ld.param.u64 %g, [a]; mul.wide.u32 %w, %t, 16; add.u64 %at, %g, %w;
  ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%at];
  ld.param.u64 %g, [d]; mul.wide.u32 %w, %t, @BYTES@; add.u64 %at, %g, %w;
  @LOAD@
  @BODY@
  @STORE@
  ret; }
"""


def kernel(body: str, count: int) -> str:
    """The kernel whose threads have `count` registers of D."""
    load = "".join(f"ld.global.u32 %c{i}, [%at+{4 * i}]; " for i in range(count))
    store = "".join(f"st.global.u32 [%at+{4 * i}], %c{i}; " for i in range(count))
    ptx = SM_90A + KERNEL.replace("@BODY@", body).replace("@BYTES@", str(4 * count))
    return ptx.replace("@LOAD@", load).replace("@STORE@", store)


def count_held_by_groups(groups: Array, place: Callable[[int, int, int], tuple[int, int]], per_thread: int) -> Array:
    """Each thread's elements of the matrices of groups, whose warps have 16 rows each."""
    counts = [
        [group[16 * warp + row, column] for row, column in (place(i, lane // 4, lane % 4) for i in range(per_thread))]
        for group in groups
        for warp in range(4)
        for lane in range(32)
    ]
    return np.array(counts, groups.dtype)


def place_d(i: int, row: int, t: int) -> tuple[int, int]:
    """Where element i of D lies in a warp's 16 rows (PTX ISA, figures of wgmma)."""
    return row + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * t + i % 2


def place_a(size: int) -> Callable[[int, int, int], tuple[int, int]]:
    """The same for A, of elements of `size` bytes: registers have the rows 0 and 8, then the next 16 bytes of K."""
    elements = 4 // size

    def place(i: int, row: int, t: int) -> tuple[int, int]:
        register = i // elements
        return row + 8 * (register % 2), t * elements + i % elements + 4 * elements * (register // 2)

    return place


def operands(product: Product) -> tuple[Array, Array, Array]:
    """A, the transpose of B, and the D of each group before, as whole numbers whose sums are exact."""
    rng = np.random.default_rng(product.seed)

    def some(kind: str, rows: int) -> Array:
        low, high = {"s8": (-128, 128), "u8": (0, 256)}.get(kind, (-2, 3))
        return rng.integers(low, high, (rows, product.k))

    before = rng.integers(-9, 9, (GROUPS, 64, product.n))
    if product.d == "s32":
        before[:, ::2] += 2**31 - 20000
    return some(product.a, 64), some(product.b, product.n), before


def check(product: Product) -> None:
    """Run the instruction in two groups and compare what they get."""
    left, right, before = operands(product)
    raw_a, raw_b, sums = encode(left, product.a), encode(right, product.b), before.astype(SUMS[product.d])
    image_b = product.layout_b.image(raw_b)
    image_a = np.zeros(0, "u1") if product.layout_a is None else product.layout_a.image(raw_a)
    at_b = 128 * product.shift
    at_a = at_b + -(-len(image_b) // 1024) * 1024
    memory = np.zeros(-(-(at_a + len(image_a)) // 16) * 16, "u1")
    memory[at_b : at_b + len(image_b)] = image_b
    memory[at_a : at_a + len(image_a)] = image_a
    in_registers = count_held_by_groups(np.array([raw_a] * GROUPS), place_a(BYTES[product.a]), 16 // BYTES[product.a])
    held = np.ascontiguousarray(count_held_by_groups(sums, place_d, product.n // 2))
    descriptors = [0 if product.layout_a is None else product.layout_a.descriptor(at_a)]
    descriptors.append(product.layout_b.descriptor(at_b))
    device = Device(1 << 22)
    where = [device.put(operand) for operand in (memory, np.ascontiguousarray(in_registers), held)]
    module = device.load(kernel(whole(product), held.view("u4").shape[1]))
    arguments = (where[0], len(memory) // 4, *where[1:], *descriptors, int(product.accumulate))
    device.launch(module, "k", 1, 128 * GROUPS, *arguments, shared=len(memory))
    total = product.signs[0] * product.signs[1] * (left @ right.T) + (before if product.accumulate else 0)
    if product.d == "s32":
        wrapped = (total + 2**31) % 2**32 - 2**31
        total = np.clip(total, -(2**31), 2**31 - 1) if product.satfinite else wrapped
    total = np.broadcast_to(total, before.shape).astype(SUMS[product.d])
    np.testing.assert_array_equal(device.get(where[2], held), count_held_by_groups(total, place_d, product.n // 2))


@settings(max_examples=40)
@given(products())
def test_warp_group_products_match_whole_matrices(product: Product) -> None:
    check(product)


@pytest.mark.parametrize("types", ["f32.f16.f16", "f32.e4m3.e5m2"])
def test_the_largest_products(types: str) -> None:
    d, a, b = types.split(".")
    check(Product(256, d, a, b, None, Layout(128, False, 16, 1024, 96), (1, -1), False, True, 5, 1))


PLAIN = Product(8, "f32", "f16", "f16", None, Layout(0, False, 128, 256, 0), (1, 1), False, True, 0, 0)


def whole(product: Product, guard: str = "") -> str:
    """A product as a GPU wants it: in a group that is waited for."""
    after = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    return f"wgmma.fence.sync.aligned; {guard}{product.text()} {after}"


def run(body: str, threads: int, descriptor: int = 0, memory: int = 1024, blocks: int = 1) -> Array:
    """Launch the kernel with A and B of ones (and D of zeros); each thread's four floats of D."""
    ones = np.ones(memory // 2, "f2")
    device = Device(1 << 22)
    where = [device.put(ones), device.put(np.ones((threads, 8), "f2")), device.put(np.zeros((threads, 4), "f4"))]
    module = device.load(kernel(body, 4))
    arguments = (where[0], memory // 4, *where[1:], 0, descriptor or PLAIN.layout_b.descriptor(0), 1)
    device.launch(module, "k", blocks, threads, *arguments, shared=memory)
    return device.get(where[2], np.zeros((threads, 4), "f4"))


def test_warps_of_a_group_wait_for_each_other() -> None:
    body = """mov.u32 %i, %tid.x; shr.u32 %i, %i, 5; mul.lo.u32 %i, %i, 40;
        loop: setp.eq.u32 %q, %i, 0; @%q bra done; sub.u32 %i, %i, 1; bra loop;
        done: st.shared.u16 [s], 0x3c00; @PRODUCT@"""
    assert (run(body.replace("@PRODUCT@", whole(PLAIN)), 256) == 16).all()


def test_groups_may_go_different_ways() -> None:
    body = """mov.u32 %i, %tid.x; setp.lt.u32 %q, %i, 128; @%q bra other; @PRODUCT@ @PRODUCT@ bra done;
        other: @PRODUCT@
        done:"""
    sums = run(body.replace("@PRODUCT@", whole(PLAIN)), 256)
    assert (sums[:128] == 16).all()
    assert (sums[128:] == 32).all()


@pytest.mark.parametrize("groups", [0, 1, 2])
def test_a_predicate_leaves_groups_out(groups: int) -> None:
    body = f"mov.u32 %i, %tid.x; setp.lt.u32 %q, %i, {128 * groups}; @!%q mov.u64 %db, -1;"
    sums = run(body + whole(PLAIN, "@%q "), 256)
    assert (sums[: 128 * groups] == 16).all()
    assert (sums[128 * groups :] == 0).all()


@pytest.mark.parametrize(
    ("layout", "at"),
    [
        (Layout(0, False, 128, 256, 0), 1024 - 128),
        (Layout(0, False, 1024, 256, 0), 0),
        (Layout(128, False, 0, 1024, 0), 1024 - 256),
        (Layout(0, True, 1024, 128, 0), 0),
        (Layout(64, True, 0, 1024, 0), 0),
        (Layout(0, False, 0x3FFF0, 0x3FFF0, 0), 0x3FFF0),
    ],
)
def test_a_matrix_outside_of_shared_memory_faults(layout: Layout, at: int) -> None:
    body = f"mov.u32 %i, %tid.x; setp.lt.u32 %q, %i, 128; @%q bra done; {PLAIN.text()} done:"
    body = body.replace(", 1, 1, 0;", f", 1, 1, {int(layout.transposed)};")
    with pytest.raises(IllegalAddress, match=r"shared address .*thread \(128, 0, 0\)"):
        run(body, 256, layout.descriptor(at))


@pytest.mark.parametrize("threads", [32, 96, 120, 160])
def test_a_group_of_fewer_warps_faults(threads: int) -> None:
    with pytest.raises(LaunchFailed, match="four warps"):
        run(PLAIN.text(), threads)


@pytest.mark.parametrize("left_out", ["%i, 32", "%i, 1", "%i, 96"])
def test_threads_that_have_exited_are_missed(left_out: str) -> None:
    with pytest.raises(LaunchFailed, match="four warps"):
        run(f"mov.u32 %i, %tid.x; setp.lt.u32 %q, {left_out}; @%q exit; {PLAIN.text()}", 128)


def test_warps_at_different_places_never_meet() -> None:
    body = f"""mov.u32 %i, %tid.x; setp.lt.u32 %q, %i, 64; @%q bra other; {PLAIN.text()} bra done;
        other: {PLAIN.text()}
        done:"""
    with pytest.raises(LaunchFailed, match="deadlock"):
        run(body, 128)


def test_the_block_whose_warps_never_meet_is_named() -> None:
    body = f"""mov.u32 %i, %ctaid.x; setp.eq.u32 %q, %i, 2; @!%q bra done;
        mov.u32 %i, %tid.x; setp.lt.u32 %q, %i, 64; @%q bra other; {PLAIN.text()} bra done;
        other: {PLAIN.text()}
        done:"""
    with pytest.raises(LaunchFailed, match="deadlock") as caught:
        run(body, 128, blocks=4)
    assert caught.value.block == (2, 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%c0, %c1, %c2}, %da, %db, %p, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%c0, %c1, %c2, %c3}, %da, %db, %p, 1, 1, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%c0, %c1, %c2, %c3}, %da, %db, %p, 2, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%c0, %c1, %c2, %c3}, %da, %db, %p, 1, 1, 0, 2;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.bf16 {%c0, %c1, %c2, %c3}, %da, %db, %p, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.bf16.bf16 {%c0, %c1}, %da, %db, %p, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%c0, %c1, %c2, %c3}, %da, %db, %p, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.tf32.tf32 {%c0, %c1, %c2, %c3}, %da, %db, %p, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n8k32.satfinite.f32.e4m3.e4m3 {%c0, %c1, %c2, %c3}, %da, %db, %p, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%c0, %c1, %c2, %c3}, %da, %db, %p, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n40k32.s32.s8.s8 {%c0, %c1, %c2, %c3}, %da, %db, %p;",
        "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%c0, %c1, %c2, %c3}, %da, %db, %p;",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%c0, %c1, %c2, %c3}, %da, %db, %x, 0, %p, 1, 1, 0, 0;",
        "wgmma.mma_async.m64n8k16.f32.f16.f16 {%c0, %c1, %c2, %c3}, %da, %db, %p, 1, 1, 0, 0;",
        "wgmma.wait_group.sync.aligned;",
        "wgmma.fence.sync.aligned 0;",
    ],
)
def test_unsupported_warp_group_products_are_refused(text: str) -> None:
    with pytest.raises(InvalidPtx, match=r"unsupported.* wgmma"):
        Device(1 << 20).load(kernel(text, 4))
