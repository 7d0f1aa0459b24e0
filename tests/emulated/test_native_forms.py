"""Instructions that the compiled tier writes itself: one kernel of many, the same bits in both tiers, no escape."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.isa.faults import DeviceFault
from tests.emulated.harness import HEADER, Device, Never, batches

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

TIERS = ()
COUNT = 512
TABLE = bytes(range(70, 250, 5))
EDGES = (0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 255, 256, 0x3210, 0xFEDC, 2**31 - 1, 2**31, 2**32 - 1)
FIELDS = (
    *(f"bfe.{t}32 %d, %a, {v};" for t in "us" for v in ("%b, %c", "4, 9", "28, 9", "3, 0", "40, 3")),
    *(f"bfe.{t}64 %w, %x, {v};" for t in "us" for v in ("%b, %c", "40, 9", "60, 9", "0, 64", "70, 3")),
    *(f"bfi.b32 %d, %a, %b, {v};" for v in ("%c, %a", "%b, 8", "4, 40", "32, 1")),
    *(f"bfi.b64 %w, %x, %y, {v};" for v in ("%a, %c", "%b, 8", "48, 40", "0, 64", "64, 1", "63, 1")),
    *(f"prmt.b32 %d, %a, %b, {v};" for v in ("%c", "0x5410", "0xba98", "0xf3e2")),
    *(f"prmt.b32.{mode} %d, %a, %b, %c;" for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")),
)
MATCHES = (
    "and.b32 %d, %a, 3; match.any.sync.b32 %d, %d, -1;",
    "and.b64 %x, %x, 0x100000001; match.any.sync.b64 %d, %x, -1;",
    "and.b32 %d, %a, 3; and.b32 %m, %c, 0xff00ff; match.any.sync.b32 %d, %d, %m;",
    "match.any.sync.b32 %d, 7, 0xff00ff00;",
    "match.all.sync.b32 %d|%t, 7, -1; @!%t mov.b32 %d, 5;",
    "match.all.sync.b32 %d|%t, %a, -1; @!%t mov.b32 %d, 5;",
    "shr.u32 %m, %i, 5; and.b32 %d, %m, %i; match.all.sync.b32 %d|%t, %d, -1; @!%t mov.b32 %d, 5;",
    (
        "setp.lt.u32 %t, %a, %b; @%t bra SKIP; and.b32 %d, %c, 1; activemask.b32 %m; "
        "match.any.sync.b32 %d, %d, %m; SKIP: bar.warp.sync -1;"
    ),
)
REDUCTIONS = (
    *(
        f"{masks} redux.sync.{function} %d, %a, %m;"
        for function in ("add.s32", "min.s32", "max.u32", "and.b32", "xor.b32")
        for masks in (
            "mov.b32 %m, -1;",
            "and.b32 %e0, %i, 24; shl.b32 %m, 0xff, %e0;",
            "and.b32 %e0, %i, 3; shl.b32 %m, 0x11111111, %e0;",
        )
    ),
    "mov.b32 %e7, -1; redux.sync.max.s32 %d, %b, %e7;",
    (
        "setp.lt.u32 %t, %a, %b; @%t bra LESS; activemask.b32 %m; redux.sync.or.b32 %d, %c, %m; "
        "bra MEET; LESS: activemask.b32 %m; redux.sync.min.u32 %d, %c, %m; MEET: bar.warp.sync -1;"
    ),
)
"""Reductions by one mask of the warp, by masks of parts of it, and of lanes that have diverged."""
TO_HALF = (
    *(f"cvt.rn.f16.{t}32 %h, %a; mov.b32 %d, {{%h, %h}};" for t in "us"),
    *(f"cvt.rn.f16.{t}64 %h, %x; mov.b32 %d, {{%h, %h}};" for t in "us"),
    *(
        f"shr.{t}32 %m, %a, {by}; cvt.rn.f16.{t}32 %h, %m; mov.b32 %d, {{%h, %h}};"
        for t in "us"
        for by in (13, 15, 16, 20)
    ),
    *(f"mov.b32 {{%g, _}}, %a; cvt.rn.f16.{t} %h, %g; mov.b32 %d, {{%h, %h}};" for t in ("u16", "s16")),
    "cvt.rn.sat.f16.s32 %h, %a; mov.b32 %d, {%h, %h};",
)
PARAMETERS = (
    "and.b32 %d, %a, 28; mov.u64 %o, table; cvt.u64.u32 %w, %d; add.s64 %o, %o, %w; ld.param.u32 %d, [%o+4];",
    "mov.u64 %o, table; ld.param.u32 %d, [%o+8];",
    "mov.u32 %m, table; ld.param.v2.u32 {%m, %d}, [%m+16];",
    (
        "shl.b32 %m, %i, 1; and.b32 %m, %m, 30; mov.u32 %d, table; add.u32 %m, %m, %d; ld.param.u16 %h, [%m]; "
        "mov.b32 %d, {%h, %h};"
    ),
    "and.b32 %m, %b, 31; mov.u32 %d, table; add.u32 %m, %m, %d; ld.param.s8 %d, [%m];",
    (
        "setp.lt.u32 %t, %a, %b; and.b32 %m, %b, 24; mov.u32 %d, table; add.u32 %m, %m, %d; mov.u64 %w, 3; "
        "@%t ld.param.u64 %w, [%m]; mov.u64 %w, %w;"
    ),
    "setp.lt.u32 %t, %a, %b; mov.u32 %m, table; @%t ld.param.u32 %d, [%m+12];",
    (
        "mov.u32 %m, 7; NEXT: mul.lo.u32 %d, %m, 4; mov.u64 %o, table; cvt.u64.u32 %w, %d; add.s64 %o, %o, %w; "
        "ld.param.u32 %d, [%o]; add.u32 %m, %m, -1; setp.ge.s32 %t, %m, 3; @%t bra NEXT;"
    ),
)
UNIFORM_AND_VARYING = (
    (
        "add.cc.u32 %d, %a, %b; addc.u32 %m, %b, 0; add.cc.u32 %e0, %u0, -1; addc.u32 %e1, %u0, 0; "
        "mad.lo.u32 %d, %d, 3, %e1;"
    ),
    (
        "mov.b64 %w, {%u0, %u0}; mov.b64 {%e2, %e3}, %w; mad.lo.u32 %d, %e2, 3, %e3; add.u32 %e2, %e2, %i; "
        "mad.lo.u32 %d, %d, 3, %e2; cvt.u64.u32 %w, %d;"
    ),
    "setp.eq.u32 %t|%v, %u0, 0; selp.u32 %d, 1, 2, %v; setp.eq.u32 %t, %i, 4; @%t mov.u32 %d, 3;",
    (
        "setp.ne.u32 %v, %u0, 1; lop3.or.b32 %e4|%z, %u0, %u0, %u0, 0x80, %v; selp.u32 %d, 1, 2, %z; "
        "add.u32 %d, %d, %e4; mov.u32 %e4, %i; mad.lo.u32 %d, %d, 3, %e4;"
    ),
    (
        "mov.u64 %o, table; ld.param.v2.u32 {%e5, %e6}, [%o+8]; mad.lo.u32 %d, %e5, 3, %e6; mov.u32 %e5, %i; "
        "mad.lo.u32 %d, %d, 3, %e5;"
    ),
)
"""Instructions with several results, of which one also gets a value that varies between lanes."""
NO_NAN = "and.b32 %a, %a, 0xbfbfbfbf; and.b32 %b, %b, 0xbfbfbfbf; and.b32 %c, %c, 0xbfbfbfbf; "
_PAIRS = [
    *(f"{name}.f16x2 %d, %a, %b;" for name in ("add.rn", "sub.ftz", "mul.rn", "min", "max.NaN", "mul.sat")),
    *("fma.rn.f16x2 %d, %a, %b, %c;", "neg.f16x2 %d, %a;", "abs.ftz.f16x2 %d, %a;"),
]
SMALL_FLOATS = (
    *(NO_NAN + text for text in _PAIRS),
    *(f"{name}.bf16x2 %d, %a, %b;" for name in ("add.rn", "sub.rn", "mul.rn", "min", "max", "min.NaN")),
    *("fma.rn.bf16x2 %d, %a, %b, %c;", "neg.bf16x2 %d, %a;", "abs.bf16x2 %d, %a;"),
    "mov.b32 {%h, %g}, %a; fma.rn.bf16 %h, %h, %g, %h; mov.b32 %d, {%h, %h};",
    "mov.b32 {%h, %g}, %a; setp.lt.bf16 %t, %h, %g; selp.b32 %d, 1, 2, %t;",
    "mov.b32 {%h, %g}, %a; cvt.f32.bf16 %d, %g;",
    *(f"cvt.rn.{kind}.f32 %d, %a, %b;" for kind in ("f16x2", "bf16x2")),
    "cvt.rn.bf16.f32 %h, %a; mov.b32 %d, {%h, %h};",
    *(f"cvt.{mode}.tf32.f32 %d, %a;" for mode in ("rna", "rn", "rz")),
)


def _multiply(shape: str, types: str, a: int, b: int, c: int, more: str = "") -> str:
    """A product of registers that are %a, %b and %c in turn, and the sum of its results."""
    registers = ["%a", "%b", "%c"]
    d = [f"%f{k}" for k in range(c)]
    groups = ["{" + ", ".join(registers[(k + by) % 3] for k in range(n)) + "}" for by, n in enumerate((a, b, c))]
    target = "{" + ", ".join(d) + "}"
    total = " ".join(f"mad.lo.u32 %d, %d, 3, {x};" for x in d)
    name = f"mma.sync.aligned.{shape}.row.col{more}.{types}"
    return f"{NO_NAN}{name} {target}, {groups[0]}, {groups[1]}, {groups[2]}; {total}"


_FRAGMENT = "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}"
_OTHER = "{%u0, %u1, %u2, %u3, %u4, %u5, %u6, %u7}"
_SUMS = "{%e0, %e1, %e2, %e3, %e4, %e5, %e6, %e7}"
_PLACE = (
    "shl.b32 %m, %i, 4; mov.u32 %at, s; add.u32 %m, %m, %at; cp.async.cg.shared.global [%m], [%p], 16; "
    "cp.async.wait_all; bar.sync 0; shr.u32 %at, %i, 5; shl.b32 %at, %at, 9; mov.u32 %m, s; add.u32 %at, %at, %m; "
)
_TOTAL = " ".join(f"mad.lo.u32 %d, %d, 3, %e{k};" for k in range(8))
MATRICES = (
    _multiply("m16n8k16", "f32.f16.f16.f32", 4, 2, 4),
    _multiply("m16n8k16", "f32.bf16.bf16.f32", 4, 2, 4),
    _multiply("m16n8k16", "f16.f16.f16.f16", 4, 2, 2),
    _multiply("m16n8k8", "f32.tf32.tf32.f32", 4, 2, 4),
    _multiply("m16n8k32", "f32.e4m3.e5m2.f32", 4, 2, 4),
    _multiply("m16n8k32", "s32.s8.u8.s32", 4, 2, 4, ".satfinite"),
    NO_NAN
    + " ".join(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        f"{{%f{d}, %f{d + 1}, %f{d + 2}, %f{d + 3}}}, {{%a, %b, %c, %a}}, {{%b, %c}}, {{{sums}}};"
        for d, sums in ((0, "%a, %c, %b, %a"), (4, "%b, %a, %a, %c"), (2, "%f0, %f1, %f2, %f3"))
    )
    + " ".join(f"mad.lo.u32 %d, %d, 3, %f{k};" for k in range(8)),
    f"{_PLACE} shl.b32 %m, %i, 4; mov.u32 %at, s; add.u32 %at, %at, %m; "
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%e0, %e1, %e2, %e3}, [%at]; "
    "movmatrix.sync.aligned.m8n8.trans.b16 %e4, %e3; mov.b32 %e5, 0; mov.b32 %e6, 0; mov.b32 %e7, 0; " + _TOTAL,
    f"{_PLACE} wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {_FRAGMENT}, [%at], 16; "
    f"wmma.load.b.sync.aligned.row.m16n16k16.shared.f16 {_OTHER}, [%at], 16; "
    f"wmma.mma.sync.aligned.row.row.m16n16k16.f16.f16 {{%e0, %e1, %e2, %e3}}, {_FRAGMENT}, {_OTHER}, "
    "{%a, %b, %c, %a}; bar.sync 0; "
    "wmma.store.d.sync.aligned.col.m16n16k16.shared.f16 [%at], {%e0, %e1, %e2, %e3}, 16; bar.sync 0; "
    "shl.b32 %m, %i, 4; mov.u32 %at, s; add.u32 %at, %at, %m; ld.shared.v4.u32 {%e4, %e5, %e6, %e7}, [%at]; "
    + _TOTAL,
)
ATOMIC_SUMS = tuple(
    f"{_PLACE} and.b32 %m, %i, 3; mad.lo.u32 %m, %m, 4, %at; mov.b32 {source}; "
    f"atom.shared.add.noftz.{kind} {old}, [%m], {operand}; {after} bar.sync 0; ld.shared.b32 %e0, [%m]; "
    f"cvt.u64.u32 %w, %m; cvta.shared.u64 %w, %w; red.add.noftz.{kind} [%w], {operand}; bar.sync 0; "
    "ld.shared.b32 %f0, [%m]; mad.lo.u32 %d, %e0, 3, %f0; mad.lo.u32 %d, %d, 3, %e2; cvt.u64.u32 %w, %d;"
    for kind, source, old, operand, after in (
        *((kind, "{%h, %g}, %a", "%g", "%h", "cvt.u32.u16 %e2, %g;") for kind in ("f16", "bf16")),
        *((kind, "%e1, %a", "%e2", "%e1", "") for kind in ("f16x2", "bf16x2")),
    )
)
SWAPS_AND_COPIES = (
    (
        f"{_PLACE} and.b32 %m, %i, 3; mad.lo.u32 %m, %m, 2, %at; ld.shared.b16 %h, [%m]; bar.sync 0; "
        "mov.b32 {%g, _}, %a; atom.shared.cas.b16 %h, [%m], %h, %g; bar.sync 0; ld.shared.b16 %g, [%m]; "
        "mov.b32 %d, {%h, %g};"
    ),
    (
        f"{_PLACE} setp.lt.u32 %t, %a, %b; shl.b32 %m, %i, 4; mov.u32 %at, s; add.u32 %m, %m, %at; bar.sync 0; "
        "cp.async.ca.shared.global [%m], [%p+8], 8, !%t; cp.async.wait_all; ld.shared.u32 %d, [%m];"
    ),
)
KERNEL = """.visible .entry k(.param .u64 p, .param .u64 q, .param .align 8 .b8 table[36])
{{ .reg .b32 %a, %b, %c, %d, %i, %m; .reg .b64 %x, %y, %w, %p, %q, %o; .reg .b16 %h, %g; .reg .pred %t, %v, %z;
.reg .b32 %e<8>, %f<8>, %u<8>, %at; .shared .align 16 .b8 s[8192];
mov.u32 %i, %tid.x; mov.u32 %u0, %ctaid.x; ld.param.u64 %p, [p]; ld.param.u64 %q, [q];
mul.wide.u32 %o, %i, 16; add.s64 %p, %p, %o;
ld.global.u32 %a, [%p]; ld.global.u32 %b, [%p+4]; ld.global.u32 %c, [%p+8];
mov.b64 %x, {{%a, %c}}; mov.b64 %y, {{%b, %a}}; mul.wide.u32 %o, %i, 8; add.s64 %q, %q, %o;
{body} ret; }}"""


def run_all(instructions: tuple[str, ...], words: np.ndarray[Any, Any], threads: int) -> list[list[int]]:
    """Return the results of instructions on the words of each thread; each sets %d, or %w."""
    parts = [
        f"mov.b64 %w, 0; mov.b32 %d, 0; {text} "
        + ("" if "%w," in text else "cvt.u64.u32 %w, %d; ")
        + f"st.global.u64 [%q+{8 * COUNT * number}], %w;"
        for number, text in enumerate(instructions)
    ]
    device, out = Device(1 << 22), np.zeros((len(instructions), COUNT), "u8")
    source, target = device.put(words), device.put(out)
    ptx = HEADER + KERNEL.format(body="\n".join(parts))
    (batch,) = batches(device.load(ptx), "k", (1, 1, 1), (threads, 1, 1), (source, target, TABLE))
    assert isinstance(batch, CompiledBatch) == (os.environ["PYMPSD_TIER"] == "compiled")
    if isinstance(batch, CompiledBatch):
        assert [o.opcode for o, _ in batch._code.escapes.values()] == []
    while not batch.step(10, Never()):
        pass
    return device.get(target, out).tolist()


def check(
    monkeypatch: pytest.MonkeyPatch, instructions: tuple[str, ...], threads: int = COUNT, mask: int = 2**32 - 1
) -> None:
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**32, (COUNT, 4), "u4")
    words[: COUNT // 2] = rng.choice(np.array(EDGES, "u4"), (COUNT // 2, 4))
    words &= np.uint32(mask)
    results = []
    for tier in ("numpy", "compiled"):
        monkeypatch.setenv("PYMPSD_TIER", tier)
        results.append(run_all(instructions, words, threads))
    for text, expected, actual in zip(instructions, *results, strict=True):
        assert actual == expected, text


def test_bit_fields_and_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, FIELDS)


@pytest.mark.parametrize("threads", [COUNT, COUNT - 20])
def test_matches_of_whole_and_partial_warps(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    check(monkeypatch, MATCHES, threads)


@pytest.mark.parametrize("threads", [COUNT, COUNT - 20])
def test_reductions_by_masks_in_registers(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    check(monkeypatch, REDUCTIONS, threads)


def test_conversions_of_integers_to_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, TO_HALF)


def test_parameters_by_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, PARAMETERS)


@pytest.mark.parametrize("index", ["%i", "%b"])
@pytest.mark.parametrize("width", [4, 8])
def test_an_index_outside_of_the_parameters(monkeypatch: pytest.MonkeyPatch, index: str, width: int) -> None:
    faults = []
    target = "%d" if width == 4 else "%w"
    load = f"mov.u32 %m, table; mad.lo.u32 %m, {index}, {width}, %m; ld.param.u{8 * width} {target}, [%m];"
    for tier in ("numpy", "compiled"):
        monkeypatch.setenv("PYMPSD_TIER", tier)
        with pytest.raises(DeviceFault) as caught:
            run_all((load,), np.full((COUNT, 4), 40, "u4"), COUNT)
        faults.append(str(caught.value))
    assert faults[0] == faults[1]


def test_several_results_of_which_one_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, UNIFORM_AND_VARYING)


def test_small_floats_and_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, SMALL_FLOATS)


def test_atomic_sums_of_small_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight lanes of a warp add to one address."""
    check(monkeypatch, ATOMIC_SUMS)


def test_swaps_of_halfwords_and_copies_by_a_negated_predicate(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, SWAPS_AND_COPIES)


def test_matrices_and_asynchronous_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are matrices whose sums are not exact."""
    check(monkeypatch, MATRICES, mask=0xBFBFBFBF)
