"""Unsupported instructions are refused when the module is loaded, by name and line."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd_server.ptx.isa.faults import InvalidPtx, NotPtx, UnsupportedByMps
from pympsd_server.ptx.loading.program import load_program
from tests.emulated.harness import HEADER

PAGE = run_path(str(Path(__file__).parents[2] / "scripts" / "ptx_page.py"))
REFUSED, REFUSED_FORMS, REFUSED_REGISTERS = (PAGE[name] for name in ("REFUSED", "REFUSED_FORMS", "REFUSED_REGISTERS"))
EXAMPLES = settings.default.max_examples  # fewer if the long tests are left out


def kernel(text: str) -> bytes:
    declarations = ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<4>; .reg .f32 %f<9>;"
    return f"{HEADER}.visible .entry k()\n{{ {declarations}\n{text}\nret; }}\n".encode()


TENSOR, BYTES = "cp.async.bulk.tensor", "mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    "text",
    [
        "frobnicate.u32 %r0, %r1;",
        "add.u33 %r0, %r1, %r2;",
        "add.wrong.u32 %r0, %r1, %r2;",
        "add.u32 %r0, !%p0, 1;",
        "tex.1d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d0, %d1, {%f4}];",
        "tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d0, {%f4}];",
        "tex.2d.v4.f16.f32 {%f0, %f1, %f2, %f3}, [%d0, {%f4, %f5}];",
        "suld.p.1d.b32.trap %r0, [%d0, {%r1}];",
        "sured.b.add.1d.u32.trap [%d0, {%r1}], %r0;",
        "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r0, %r1}, [%d0];",
        "wmma.load.a.sync.aligned.row.m16n16k16.local.s8 {%r0, %r1}, [%d0];",
        "wmma.load.a.sync.aligned.m16n16k16.s8 {%r0, %r1}, [%d0];",
        "wmma.load.d.sync.aligned.row.m16n16k16.s8 {%r0, %r1}, [%d0];",
        "wmma.load.a.sync.aligned.row.m16n16k8.s8 {%r0, %r1}, [%d0];",
        "wmma.store.a.sync.aligned.row.m16n16k16.f16 [%d0], {%r0, %r1, %r2, %r3};",
        "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32 {%r0}, {%r0}, {%r0}, {%r0};",
        "wmma.mma.sync.aligned.row.m8n32k16.s32.s8.s8.s32 {%r0}, {%r0}, {%r0}, {%r0};",
        "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {%r0, %r1}, {%r2}, {%r3}, {%r0, %r1};",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0}, {%r0}, {%r1}, {%f1};",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r0}, [%r1];",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r0}, [%r1];",
        "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%r0}, {%r0}, {%r1}, {%r1};",
        "mma.sync.aligned.m16n8k32.row.col.s32.s4.s4.s32 {%r0}, {%r0}, {%r1}, {%r1};",
        "cp.async.ca.shared.global [%r0], [%d0], 12;",
        "cp.async.cg.shared.global [%r0], [%d0], 8;",
        f"{TENSOR}.2d.shared::cluster.global.{BYTES} [%r0], [%d0, {{%r1}}], [%r2];",
        f"{TENSOR}.2d.shared::cta.global.tile::gather4.{BYTES} [%r0], [%d0, {{%r1, %r2, %r3, %r4, %r5}}], [%r6];",
        f"{TENSOR}.3d.shared::cta.global.im2col.{BYTES} [%r0], [%d0, {{%r1, %r2, %r3}}], [%r6], {{1, 2}};",
        f"{TENSOR}.1d.global.shared::cta.bulk_group [%d0, {{%r1}}], [%r0], %d1;",
        f"{TENSOR}.1d.global.shared::cta.{BYTES} [%d0, {{%r1}}], [%r0];",
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d0, {%r1}], [%r0];",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.max.f32 [%d0], [%r0], %r1;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%d0], [%r0], %r1;",
        f"cp.reduce.async.bulk.shared::cluster.shared::cta.{BYTES}.add.f32 [%r0], [%r1], %r2, [%r3];",
        f"cp.async.bulk.shared::cluster.global.{BYTES}.multicast::cluster [%r0], [%d0], %r1, [%r2];",
        f"st.async.shared::cluster.{BYTES}.v4.b64 [%r0], {{%d0, %d1, %d2, %d3}}, [%r1];",
        "st.async.shared::cluster.b32 [%r0], %r2, [%r1];",
        f"red.async.relaxed.cluster.shared::cluster.{BYTES}.min.u64 [%r0], %d0, [%r1];",
        "tensormap.replace.tile.box_dim.global.b1024.b32 [%d0], 5, %r0;",
        "tensormap.replace.tile.rank.global.b1024.b64 [%d0], %d1;",
        "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%d0], 0;",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d0], [%r0], 64;",
        "st.bulk.weak.shared::cta [%r0], %d0, 0;",
        "mbarrier.init.shared.b64 [%r0];",
        "cvt.rna.bf16.f32 %r0, %f0;",
        "cvt.rn.satfinite.e2m1x2.f32 %r0, %f0, %f1;",
        "add.tf32 %r0, %r1, %r2;",
        "cvt.rn.e4m3x2.f32 %r0, %f0, %f1;",
        "cvt.rn.satfinite.e4m3.f32 %r0, %f0;",
        "shfl.bfly.b32 %r0, %r1, 1, 31;",
        "vote.all.pred %p0, %p1;",
        "alloca.u64 %d0, %d1, 7;",
        "stacksave.u32 %d0, %d1;",
        "add.u32 %r0, %r1;",
        "barrier.wait 0;",
        "barrier.cluster.sync;",
        "barrier.cluster.arrive 1;",
        "add.f32 %r0, %r1, %p0;",
        "bra nowhere;",
        "mov.u32 %r0, unknown;",
        "mov.u32 %r0, %envreg3;",
        "mov.u64 %d0, k;",
        "ld.global.b32 %p0, [%d0];",
        "call (%r0), %d0, (%r1), proto;",
        "system:vprintf %r0, %d0, %d1;",
        "call (%r0), vprintf, (%d0);",
        "ld.global.v4.u32 {%r0, %r1}, [%d0];",
        "red.global.exch.b32 [%d0], 1, 2, 3;",
        "atom.global.add.b32 %r0, [%d0], %r1;",
        "@%d0 add.u32 %r0, %r1, %r2;",
        "add.u32 %r0, %r1 %r2;",
        "add.u32 %r0, %r1, ?;",
        "tcgen05.fence::before_thread_sync;",
        "vote.sync.any.pred;",
        "bra;",
        "call;",
        "ld.param.b32 %r0;",
        "st.param.b32 [%d0];",
    ],
)
def test_an_unsupported_instruction_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InvalidPtx, match="line 6") as caught:
        load_program(kernel(text))
    assert caught.value.line == 6
    first = text.split()[0].split(".")[0].lstrip("@%")
    assert first in str(caught.value) or any(word in str(caught.value) for word in NAMED)


NAMED = ("wrong number", "expected", "unknown", "unsupported", "wide", "wider", "syntax error")


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (".global .texref t;", "texref"),
        (".extern .func malloc(); .visible .entry k() { call malloc; ret; }", "malloc"),
        (".extern .global .b32 x; .visible .entry k() { .reg .b64 %d; mov.u64 %d, x; ret; }", "external variable x"),
        (".global .b64 a[1] = {b};", "initialiser b"),
        (".visible .entry k() { add.u32", "end of file"),
        (
            ".func (.reg .u32 r) f(.reg .u32 x) { ret; } .entry j() { .reg .u32 %x; call (%x), f, (%x, %x); ret; }",
            "arguments or results in a call of f: it must be 1 and 1, not 2 and 1",
        ),
    ],
)
def test_unsupported_items_are_refused(item: str, words: str) -> None:
    with pytest.raises(InvalidPtx, match=words):
        load_program((HEADER + item).encode())


LAUNCHES = """
.extern .func (.param .b32 result) {name} (.param .b64 buffer, .param .b64 stream);
.visible .entry parent() {{ .reg .b64 %d; mov.u64 %d, 0; ret; }}
"""


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchDevice", "cudaLaunchDeviceV2", "cudaGetParameterBuffer", "cudaGetParameterBufferV2",
        "cudaDeviceSynchronize", "cudaStreamCreateWithFlags", "__cudaCDP2LaunchDeviceV2", "cudaCDP2DeviceSynchronize",
    ],
)  # fmt: skip
def test_dynamic_parallelism_is_refused_where_it_is_declared(name: str) -> None:
    with pytest.raises(UnsupportedByMps, match=rf"line 5: unsupported: {name} .*dynamic parallelism"):
        load_program((HEADER + LAUNCHES.format(name=name)).encode())


def test_dynamic_parallelism_is_refused_where_it_is_called() -> None:
    with pytest.raises(UnsupportedByMps, match="cudaDeviceSynchronize is a function of the device runtime"):
        load_program(kernel("call (%r0), cudaDeviceSynchronize;"))


@pytest.mark.parametrize("name", ["cudabra", "my_cudaLaunchDevice", "__cuda_helper"])
def test_a_function_with_a_name_like_it_is_not_dynamic_parallelism(name: str) -> None:
    load_program((HEADER + LAUNCHES.format(name=name)).encode())


def test_a_function_of_ones_own_may_be_called_as_the_device_runtimes() -> None:
    program = load_program((HEADER + ".func cudaMine() { ret; } .entry k() { call cudaMine; ret; }").encode())
    assert list(program.kernels) == ["k"]


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (b"\x7fELF\x02\x01", "cubin"),
        (b"\xff\xfe\x00", "not PTX"),
        (b".version 8.0\0\0.target sm_80", "NUL"),
    ],
)
def test_images_that_are_not_ptx_are_refused(image: bytes, words: str) -> None:
    with pytest.raises(NotPtx, match=words):
        load_program(image)


def test_ptx_without_a_version_is_refused() -> None:
    with pytest.raises(InvalidPtx, match="version"):
        load_program(b".target sm_80\n")


def test_trailing_nul_bytes_are_fine() -> None:
    program = load_program(kernel("exit;") + b"\0\0\0")
    assert list(program.kernels) == ["k"]
    assert program.kernels["k"].target == 80


def test_properties_of_a_kernel() -> None:
    program = load_program(
        (
            HEADER + ".const .align 4 .b32 c[3] = {1, 2, 3};\n"
            ".visible .entry k(.param .u8 a, .param .u64 b, .param .align 16 .b8 s[20]) .reqntid 8, 4\n"
            "{ .shared .align 8 .b8 x[24]; .local .b8 y[40]; .reg .b32 %r; mov.u32 %r, x; ret; }"
        ).encode()
    )
    kernel = program.kernels["k"]
    assert kernel.parameters == (("a", 0, 1), ("b", 8, 8), ("s", 16, 20))
    assert (kernel.parameter_bytes, kernel.shared_bytes, kernel.local_bytes) == (36, 24, 40)
    assert (kernel.constant_bytes, kernel.max_threads_per_block) == (12, 32)
    assert kernel.required_block == (8, 4, 1)
    assert program.globals["c"].size == 12
    assert program.globals["c"].constant


CORPUS = sorted((Path(__file__).parents[1] / "data" / "corpus").glob("*.ptx"))
SMALL = [path.read_text().splitlines() for path in CORPUS if path.stat().st_size < 5000]


@settings(max_examples=3 * EXAMPLES)
@given(st.data())
def test_a_mutilated_program_is_refused_or_loads(data: st.DataObject) -> None:
    lines = list(data.draw(st.sampled_from(SMALL)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        words = lines[at].split()
        if words and data.draw(st.booleans()):
            del words[data.draw(st.integers(0, len(words) - 1))]
            lines[at] = " ".join(words)
        else:
            lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
    refused = ""
    try:
        load_program("\n".join(lines).encode())
    except (InvalidPtx, NotPtx) as refusal:
        refused = str(refusal) or "without a word"
    assert refused != "without a word"


ISA = Path(__file__).parents[1] / "data" / "ptx_isa_9_0.txt"
WORDS = [word for line in ISA.read_text().splitlines() if not line.startswith("#") for word in line.split()]
IN_THE_ISA = [word for word in WORDS if not word.startswith("%")]
SPECIAL_REGISTERS = [word for word in WORDS if word.startswith("%")]


def is_named(name: str, names: list[str]) -> bool:
    """Return whether one of the names is this one, or the beginning of it up to a dot."""
    return any(name == listed or name.startswith(f"{listed}.") for listed in names)


@pytest.mark.parametrize("name", IN_THE_ISA)
def test_every_instruction_of_the_isa_is_executed_or_listed_as_refused(name: str) -> None:
    refused = is_named(name, " ".join(REFUSED).split())
    assert PAGE["executes"](name) != refused
    if refused:
        with pytest.raises(InvalidPtx, match=name.split(".", maxsplit=1)[0]):
            load_program(kernel(f"{name} %r0, %r1;"))


def test_what_is_listed_as_refused_is_in_the_isa() -> None:
    for name in " ".join(REFUSED).split():
        assert any(is_named(listed, [name]) for listed in IN_THE_ISA), name


GROUP_F, GROUP_R = "{%f0, %f1, %f2, %f3}", "{%r0, %r1, %r2, %r3}"
REFUSED_OPERANDS = {
    "add.f32.f16": "%f0, %h0, %f1",
    "sub.f32.bf16": "%f0, %h0, %f1",
    "fma.rn.f32.f16": "%f0, %h0, %h1, %f1",
    "add.rn.f32x2": "%d0, %d1, %d2",
    "sub.rn.f32x2": "%d0, %d1, %d2",
    "mul.rn.f32x2": "%d0, %d1, %d2",
    "fma.rn.f32x2": "%d0, %d1, %d2, %d3",
    "min.f32": "%f0, %f1, %f2, %f3",
    "max.f32": "%f0, %f1, %f2, %f3",
    "cvt.rn.satfinite.e2m1x2.f32": "%h0, %f0, %f1",
    "cvt.rn.satfinite.e2m3x2.f32": "%h0, %f0, %f1",
    "cvt.rz.ue8m0x2.f32": "%h0, %f0, %f1",
    "cvt.rs.f16x2.f32": "%r0, %f0, %f1, %r1",
    "cvt.rn.satfinite.tf32.f32": "%r0, %f0",
    "cvt.rna.satfinite.tf32.f32": "%r0, %f0",
    "redux.sync.min.f32": "%f0, %f1, -1",
    "redux.sync.max.abs.NaN.f32": "%f0, %f1, -1",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8": "{%r0, %r1}, [%r2]",
    "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32": "{%r0}, [%r2]",
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8": "[%r2], {%r0}",
    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32": (
        f"{GROUP_F}, {GROUP_R}, {{%r0, %r1}}, {GROUP_F}"
    ),
    "mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32": "{%r0, %r1}, {%r2}, {%r3}, {%r0, %r1}",
    "wmma.mma.sync.aligned.row.col.m8n8k32.s32.u4.u4.s32": "{%r0, %r1}, {%r2}, {%r3}, {%r0, %r1}",
    "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16": f"{GROUP_R}, {{%r0, %r1}}, {{%r2, %r3}}, {GROUP_R}",
    f"{TENSOR}.2d.shared::cta.global.tile::gather4.{BYTES}": "[%r0], [%d0, {%r1, %r2, %r3, %r4, %r5}], [%r6]",
    f"{TENSOR}.2d.global.shared::cta.tile::scatter4.bulk_group": "[%d0, {%r1, %r2, %r3, %r4, %r5}], [%r6]",
    f"{TENSOR}.3d.shared::cta.global.im2col::w.{BYTES}": "[%r0], [%d0, {%r1, %r2, %r3}], [%r6], {1, 2}",
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask": "[%d0], [%r0], 16, %h0",
    "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32": "[%d0], 0",
    "st.async.mmio.release.sys.global.b32": "[%d0], %r0",
    "red.async.mmio.release.sys.global.add.u32": "[%d0], %r0",
    "tex.2dms.v4.f32.s32": f"{GROUP_F}, [%d0, {GROUP_R}]",
    "tex.2d.v2.f16x2.f32": "{%r0, %r1}, [%d0, {%f4, %f5}]",
    "tld4.r.cube.v4.f32.f32": f"{GROUP_F}, [%d0, {{%f4, %f5, %f6, %f7}}]",
    "sust.p.2d.b32.trap": "[%d0, {%r0, %r1}], {%r2}",
    "txq.channel_data_type.b32": "%r0, [%d0]",
    "suq.channel_order.b32": "%r0, [%d0]",
    "txq.num_samples.b32": "%r0, [%d0]",
}


@pytest.mark.parametrize("opcode", " ".join(REFUSED_FORMS).split())
def test_forms_that_the_manual_calls_refused_are_refused(opcode: str) -> None:
    """With the operands that the ISA has for them, so that nothing else is to blame."""
    text = f"{{ .reg .b16 %h<4>; {opcode} {REFUSED_OPERANDS[opcode]}; }}"
    with pytest.raises(InvalidPtx, match=rf"line 6: unsupported.*{opcode.split('.')[0]}\."):
        load_program(kernel(text))


@pytest.mark.parametrize("name", sorted({*SPECIAL_REGISTERS, *" ".join(REFUSED_REGISTERS).split()}))
def test_every_special_register_is_known_or_listed_as_refused(name: str) -> None:
    program = kernel(f"mov.u64 %d0, {name};")
    if name in " ".join(REFUSED_REGISTERS).split():
        with pytest.raises(InvalidPtx, match=f"special register {name}"):
            load_program(program)
    elif name != "%is_explicit_cluster":  # a predicate
        assert list(load_program(program).kernels) == ["k"]


def test_a_refused_type_is_named_with_the_reason() -> None:
    with pytest.raises(InvalidPtx, match=r"type \.f32x2: needs compute capability 10\.0"):
        load_program(kernel("add.rn.f32x2 %d0, %d1, %d2;"))
    with pytest.raises(InvalidPtx, match=r"operands of two types: needs compute capability 10\.0"):
        load_program(kernel("{ .reg .b16 %h; add.f32.f16 %f0, %h, %f1; }"))
