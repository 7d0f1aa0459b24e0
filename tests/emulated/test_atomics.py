"""Atomics against a loop over the threads, contended or not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64, c_void_p

import numpy as np
import pytest

from pympsd_server.native.library import load
from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.isa.faults import MisalignedAddress
from pympsd_server.ptx.runtime import atomics
from tests.emulated.fragments import Array, run_fragment
from tests.emulated.harness import HEADER, Device, Never, batches, three

RULES: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda old, v: old + v,
    "min.u32": min,
    "max.u32": max,
    "and.b32": lambda old, v: old & v,
    "or.b32": lambda old, v: old | v,
    "xor.b32": lambda old, v: old ^ v,
    "exch.b32": lambda old, v: v,
    "inc.u32": lambda old, v: 0 if old >= v else old + 1,
    "dec.u32": lambda old, v: v if old == 0 or old > v else old - 1,
}
MASK = 0xFFFFFFFF


@pytest.fixture(params=["in C", "in NumPy"])
def _both_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the C part, and as without it."""
    if request.param == "in C":
        assert atomics._native_functions()
    else:
        monkeypatch.setattr(atomics, "_native_functions", dict)


def kernel(operation: str, space: str, name: str) -> str:
    destination = "%r4, " if name == "atom" else ""
    return (
        HEADER
        + f"""
.visible .entry k(.param .u64 memory, .param .u64 where, .param .u64 values, .param .u64 old)
{{ .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .pred %p;
  ld.param.u64 %d0, [memory]; ld.param.u64 %d1, [where]; ld.param.u64 %d2, [values]; ld.param.u64 %d3, [old];
  mov.u32 %r0, %tid.x; mul.wide.u32 %d4, %r0, 4;
  add.s64 %d1, %d1, %d4; add.s64 %d2, %d2, %d4; add.s64 %d3, %d3, %d4;
  ld.global.u32 %r1, [%d1]; ld.global.u32 %r2, [%d2]; mul.wide.u32 %d5, %r1, 4; add.s64 %d0, %d0, %d5;
  mov.u32 %r4, 0; setp.ne.u32 %p, %r1, 99;
  @%p {name}{space}.{operation} {destination}[%d0], %r2;
  st.global.u32 [%d3], %r4; ret; }}
"""
    )


def run(operation: str, space: str, name: str, where: Array, values: Array) -> tuple[Array, Array]:
    device = Device(1 << 20)
    memory = np.arange(7, dtype="u4") * 5
    addresses = [device.put(x) for x in (memory, where, values, values)]
    device.launch(device.load(kernel(operation, space, name)), "k", 1, len(where), *addresses)
    return device.get(addresses[0], memory), device.get(addresses[3], values)


@pytest.mark.usefixtures("_both_parts")
@pytest.mark.parametrize("spread", [1, 7])
@pytest.mark.parametrize("operation", sorted(RULES))
@pytest.mark.parametrize("space", [".global", ""])
def test_atomics_match_a_loop_over_the_threads(operation: str, space: str, spread: int) -> None:
    rng = np.random.default_rng(5)
    where = rng.integers(0, spread, 200).astype("u4")
    where[::9] = 99
    values = rng.integers(0, 60, 200).astype("u4")
    memory, old = [x * 5 for x in range(7)], np.zeros(200, "u4")
    for i, (at, value) in enumerate(zip(where.tolist(), values.tolist(), strict=True)):
        if at != 99:
            old[i] = memory[at]
            memory[at] = RULES[operation](memory[at], value) & MASK
    actual, seen = run(operation, space, "atom", where, values)
    np.testing.assert_array_equal(actual, memory)
    np.testing.assert_array_equal(seen, old)
    if operation != "exch.b32":
        actual, seen = run(operation, space, "red", where, values)
        np.testing.assert_array_equal(actual, memory)
        assert not seen.any()


@pytest.mark.usefixtures("_both_parts")
@pytest.mark.parametrize("threads", [5, 64, 300])
def test_compare_and_swap_in_thread_order(threads: int) -> None:
    """Thread i expects i and stores i+1: all succeed one after another."""
    text = """.shared .b32 s; setp.ne.u32 %p, %i0, 0; @%p bra GO; st.shared.u32 [s], 0; GO: bar.sync 0;
      add.u32 %i1, %i0, 1; mov.u64 %w1, s; atom.shared.cas.b32 %d, [%w1], %i0, %i1;"""
    np.testing.assert_array_equal(run_fragment(text, "u4", np.zeros(threads, "u4")), np.arange(threads))


@pytest.mark.usefixtures("_both_parts")
@pytest.mark.parametrize(("kind", "dtype"), [("f32", "f4"), ("f64", "f8"), ("s64", None), ("u64", "u8")])
def test_other_types_add(kind: str, dtype: str | None) -> None:
    if kind == "s64":
        text = (
            ".shared .b64 s; mov.u64 %w1, s; atom.shared.max.s64 %w2, [%w1], %a; bar.sync 0; ld.shared.b64 %d, [%w1];"
        )
        values = np.array([-5, -9, 3, 2], "i8")
        np.testing.assert_array_equal(run_fragment(text, "i8", values), [3] * 4)
        return
    size = 8 * np.dtype(dtype).itemsize
    text = (
        f".shared .b64 s; mov.u64 %w1, s; red.shared.add.{kind} [%w1], %a; bar.sync 0; ld.shared.b{size} %d, [%w1];"
    )
    values = np.arange(100).astype(dtype)
    np.testing.assert_array_equal(run_fragment(text, str(dtype), values), [4950] * 100)


VECTORS = """
.visible .entry k(.param .u64 memory, .param .u64 values, .param .u64 old)
{ .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .f32 %f<9>; .reg .b16 %h<9>;
  ld.param.u64 %d0, [memory]; ld.param.u64 %d1, [values]; ld.param.u64 %d2, [old];
  mov.u32 %r0, %tid.x; mul.wide.u32 %d3, %r0, 8; add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3;
  and.b32 %r1, %r0, 3; mul.wide.u32 %d4, %r1, 8; add.s64 %d0, %d0, %d4;
  @BODY@
  ret; }
"""
HOPPER = HEADER.replace("8.0", "8.1").replace("sm_80", "sm_90")
BODIES = {
    "f32": "ld.global.v2.f32 {%f0, %f1}, [%d1]; atom.global.add.v2.f32 {%f2, %f3}, [%d0], {%f0, %f1};"
    " st.global.v2.f32 [%d2], {%f2, %f3};",
    "f16x2": "ld.global.v2.b32 {%r2, %r3}, [%d1]; atom.global.OP.noftz.v2.f16x2 {%r4, %r5}, [%d0], {%r2, %r3};"
    " st.global.v2.b32 [%d2], {%r4, %r5};",
    "f16": "ld.global.v4.b16 {%h0, %h1, %h2, %h3}, [%d1]; atom.global.OP.noftz.v4.f16 {%h4, %h5, %h6, %h7}, [%d0],"
    " {%h0, %h1, %h2, %h3}; st.global.v4.b16 [%d2], {%h4, %h5, %h6, %h7};",
}


@pytest.mark.parametrize(
    ("kind", "function"), [("f32", "add"), *((k, f) for k in ("f16x2", "f16") for f in ("add", "min", "max"))]
)
def test_vectors_of_floats(kind: str, function: str) -> None:
    dtype, width = ("f4", 2) if kind == "f32" else ("f2", 4)
    rng = np.random.default_rng(len(kind + function))
    memory = rng.integers(-8, 8, (4, width)).astype(dtype)
    values = rng.integers(-8, 8, (50, width)).astype(dtype)
    device = Device(1 << 20)
    addresses = [device.put(x) for x in (memory, values, values)]
    text = HOPPER + VECTORS.replace("@BODY@", BODIES[kind].replace("OP", function))
    device.launch(device.load(text), "k", 1, 50, *addresses)
    rule = {"add": np.add, "min": np.minimum, "max": np.maximum}[function]
    expected = memory.copy()
    for thread in range(50):
        expected[thread % 4] = rule(expected[thread % 4], values[thread])
    np.testing.assert_array_equal(device.get(addresses[0], memory), expected)
    old = device.get(addresses[2], values)
    new = rule(old, values)
    for row in range(4):
        # Elements are updated one by one, in any order of the threads: what one leaves the next one finds.
        values_read = np.vstack([old[row::4], expected[row : row + 1]])
        values_written = np.vstack([new[row::4], memory[row : row + 1]])
        np.testing.assert_array_equal(np.sort(values_read, axis=0), np.sort(values_written, axis=0))


@pytest.mark.parametrize("function", ["add", "min", "max"])
def test_pairs_of_bfloats(function: str) -> None:
    rng = np.random.default_rng(3)
    floats = rng.integers(-8, 8, (50, 4)).astype("f4")
    bits = (floats.view("u4") >> 16).astype("u2")
    device = Device(1 << 20)
    addresses = [device.put(x) for x in (bits[:4], bits, bits)]
    body = (
        f"ld.global.v2.b32 {{%r2, %r3}}, [%d1]; red.global.{function}.noftz.L2::cache_hint.v2.bf16x2 [%d0],"
        " {%r2, %r3}, %d6;"
    )
    device.launch(device.load(HOPPER + VECTORS.replace("@BODY@", body)), "k", 1, 50, *addresses)
    expected = floats[:4].copy()
    rule = {"add": np.add, "min": np.minimum, "max": np.maximum}[function]
    for thread in range(50):
        expected[thread % 4] = rule(expected[thread % 4], floats[thread])
    np.testing.assert_array_equal(device.get(addresses[0], bits[:4]), (expected.view("u4") >> 16).astype("u2"))


def test_a_vector_must_be_aligned_as_a_whole() -> None:
    device = Device(1 << 20)
    values = np.zeros((50, 2), "f4")
    addresses = [device.put(x) for x in (values[:5], values, values)]
    module = device.load(HOPPER + VECTORS.replace("@BODY@", BODIES["f32"]))
    with pytest.raises(MisalignedAddress):
        device.launch(module, "k", 1, 50, addresses[0] + 4, *addresses[1:])


ATOMICS = """.visible .entry k(.param .u64 p, .param .u32 rounds)
{ .reg .b32 %i, %n, %old, %new, %seen; .reg .b64 %a; .reg .pred %q; ld.param.u64 %a, [p]; mov.u32 %i, 0;
ld.param.u32 %n, [rounds];
AGAIN: atom.sys.global.add.u32 %old, [%a], 1; atom.sys.global.inc.u32 %old, [%a+4], 0xffffffff;
red.sys.global.dec.u32 [%a+8], 0xffffffff; red.sys.add.u64 [%a+16], 1; red.sys.global.add.f32 [%a+24], 0f3F800000;
TRY: ld.volatile.global.u32 %old, [%a+12]; add.u32 %new, %old, 1;
atom.sys.global.cas.b32 %seen, [%a+12], %old, %new; setp.ne.u32 %q, %seen, %old; @%q bra TRY;
add.u32 %i, %i, 1; setp.lt.u32 %q, %i, %n; @%q bra AGAIN; ret; }"""


SUMS = {
    "global": "red.global.add.f32 [%a], %v; ld.global.f32 %v, [%a];",
    "global, whose address is generic": "atom.add.f32 %v, [%a], %v; ld.global.f32 %v, [%a];",
    "global, as a vector": "red.global.add.v2.f32 [%a], {%v, %v}; ld.global.f32 %v, [%a];",
    "global, in bulk": """mov.u32 %s, cell; st.shared.v4.f32 [%s], {%v, %v, %v, %v}; fence.proxy.async;
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%a], [%s], 16;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ld.global.f32 %v, [%a];""",
    "shared": "mov.u32 %s, cell; ld.global.f32 %w, [%a]; st.shared.f32 [%s], %w; atom.shared.add.f32 %w, [%s], %v;"
    "ld.shared.f32 %v, [%s];",
    "shared, without the old value": "mov.u32 %s, cell; ld.global.f32 %w, [%a]; st.shared.f32 [%s], %w;"
    "red.shared.add.f32 [%s], %v; ld.shared.f32 %v, [%s];",
    "shared, whose address is generic": "mov.u64 %b, cell; cvta.shared.u64 %b, %b; ld.global.f32 %w, [%a];"
    "st.f32 [%b], %w; red.add.f32 [%b], %v; ld.f32 %v, [%b];",
}
NAN = 0x7FFFFFFF


@pytest.mark.usefixtures("_both_parts")
@pytest.mark.parametrize("where", SUMS)
@pytest.mark.parametrize(
    ("old", "value", "total", "flushed"),
    [
        (1, 2, 3, 0),
        (0x80000001, 0x80000000, 0x80000001, 0x80000000),
        (0x00800001, 0x80800000, 1, 0),  # the sum of two normal numbers is subnormal
        (0x3F800000, 1, 0x3F800000, 0x3F800000),
        (0xFFC12345, 1, NAN, NAN),
        (0x7F800000, 0xFF800000, NAN, NAN),
    ],
)
def test_sums_of_floats_flush_subnormal_numbers_in_global_memory(
    where: str, old: int, value: int, total: int, flushed: int
) -> None:
    """As recorded on an H200; the PTX ISA says it of atom and red, whose sums in shared memory do not flush."""
    device = Device(1 << 20)
    memory, out = device.put(np.full(4, old, "u4")), device.put(np.zeros(1, "u4"))
    module = device.load(f"""{HEADER.replace("8.0", "8.6").replace("sm_80", "sm_90")}
.visible .entry k(.param .u64 memory, .param .u64 out, .param .f32 value)
{{ .shared .align 16 .b8 cell[16]; .reg .b64 %a, %b, %o; .reg .b32 %s; .reg .f32 %v, %w;
ld.param.u64 %a, [memory]; ld.param.u64 %o, [out]; ld.param.f32 %v, [value];
{SUMS[where]}
st.global.f32 [%o], %v; ret; }}""")
    device.launch(module, "k", 1, 1, memory, out, np.uint32(value))
    flushes = where.startswith("global") and "bulk" not in where
    assert device.get(out, np.zeros(1, "u4")).tolist() == [flushed if flushes else total]


@pytest.mark.parametrize(("tier", "blocks", "rounds"), [("compiled", 4, 300), ("numpy", 1, 20)])
def test_atomics_are_atomic_towards_the_processor(
    monkeypatch: pytest.MonkeyPatch, tier: str, blocks: int, rounds: int
) -> None:
    """As towards a program that changes managed memory while a kernel runs: here a thread that runs C."""
    monkeypatch.setenv("PYMPSD_TIER", tier)
    if tier == "compiled":
        pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")
    device = Device(1 << 20)
    address = device.put(np.zeros(8, "u4"))
    module = device.load(HEADER + ATOMICS)
    runs = [batches(module, "k", three(blocks), three(64), (address, rounds))[0] for _ in range(2)]
    assert all(isinstance(batch, CompiledBatch) == (tier == "compiled") for batch in runs)
    ended, added = threading.Event(), 0
    memory = device.space.views[np.dtype("u4")].ctypes.data + address - device.space.base
    arrays = np.zeros(1000, "i8"), np.ones(1000, "u4"), np.zeros(1000, "u4")
    places, ones, old = (array.ctypes.data for array in arrays)
    add = load("_kernels", {"atomic_add_u4": (None, (c_void_p, c_void_p, c_int64, *[c_void_p] * 3))}).atomic_add_u4

    def run(batch: object) -> bool:
        return batch.step(60, Never())  # type: ignore[attr-defined]

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(run, batch) for batch in runs]
        ends[-1].add_done_callback(lambda end: ended.set())
        while not ended.is_set():
            for word in range(4):
                add(memory + 4 * word, places, 1000, ones, ones, old)
            added += 1000
        assert all(end.result() for end in ends)
    total = 2 * blocks * 64 * rounds
    actual = device.get(address, np.zeros(8, "u4"))
    down = (added - total) % 2**32
    assert actual[:5].tolist() == [total + added, total + added, down, total + added, total]
    assert actual[6:7].view("f4")[0] == total
