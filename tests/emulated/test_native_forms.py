"""Instructions that the compiled tier writes itself: one kernel of many, the same bits in both tiers, no escape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pympsd_server.backends.emulated.ptx.compiled_tier.batch import CompiledBatch
from pympsd_server.backends.emulated.ptx.isa.faults import DeviceFault
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
KERNEL = """.visible .entry k(.param .u64 p, .param .u64 q, .param .align 8 .b8 table[36])
{{ .reg .b32 %a, %b, %c, %d, %i, %m; .reg .b64 %x, %y, %w, %p, %q, %o; .reg .b16 %h, %g; .reg .pred %t;
mov.u32 %i, %tid.x; ld.param.u64 %p, [p]; ld.param.u64 %q, [q]; mul.wide.u32 %o, %i, 16; add.s64 %p, %p, %o;
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
    if isinstance(batch, CompiledBatch):
        assert [o.opcode for o, _ in batch._code.escapes.values()] == []
    while not batch.step(10, Never()):
        pass
    return device.get(target, out).tolist()


def check(monkeypatch: pytest.MonkeyPatch, instructions: tuple[str, ...], threads: int = COUNT) -> None:
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**32, (COUNT, 4), "u4")
    words[: COUNT // 2] = rng.choice(np.array(EDGES, "u4"), (COUNT // 2, 4))
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
