"""What a load finds in a large image, whose kernels are translated when they are needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.loading.program import EAGER_BYTES, Program, load_program
from tests.emulated.harness import HEADER, Device

CORPUS = sorted((Path(__file__).parents[1] / "data" / "corpus").glob("*.ptx"))
SMALL = [path for path in CORPUS if path.stat().st_size <= EAGER_BYTES][::3]
PADDING = "// what makes it large\n" * (EAGER_BYTES // 20)


def load_large(ptx: str) -> Program:
    """Load PTX with so many comments at its end that its kernels are translated later."""
    return load_program((ptx + "\n" + PADDING).encode())


def kernel(name: str, body: str) -> str:
    return f".visible .entry {name}()\n{{ .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p;\n{body}\nret; }}\n"


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_a_kernel_is_translated_alike_at_load_and_later(path: Path) -> None:
    now, later = load_program(path.read_bytes()), load_large(path.read_text())
    assert list(now.kernels) == list(later.kernels)
    assert now.variables == later.variables
    for name in now.kernels:
        assert now.kernels.is_translated(name)
        assert not later.kernels.is_translated(name)
        first, second = now.kernels[name], later.kernels[name]
        assert first.translation.sources == second.translation.sources
        assert first.translation.plans == second.translation.plans
        assert (first.parameters, first.shared_bytes, first.local_bytes) == (
            second.parameters,
            second.shared_bytes,
            second.local_bytes,
        )


@pytest.mark.parametrize(
    "body",
    [
        "mov.u32 %r0, unknown;",
        "add.u32 %r0, %r1 %r2;",
        "add.wrong.u32 %r0, %r1, %r2;",
        "bra nowhere;",
        "call absent;",
        "add.u32 %r0, %r1, `;",
    ],
)
def test_errors_of_a_kernel_are_those_of_a_small_image(body: str) -> None:
    ptx = HEADER + kernel("good", "") + kernel("bad", body)
    with pytest.raises(InvalidPtx) as at_load:
        load_program(ptx.encode())
    program = load_large(ptx)
    assert program.kernels["good"].name == "good"
    for _ in range(2):
        with pytest.raises(InvalidPtx) as later:
            program.kernels["bad"]
        assert str(later.value) == str(at_load.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (kernel("k", "@!%p frobnicate.u32 %r0, %r1;"), "line 6: unsupported instruction frobnicate.u32"),
        (kernel("k", "{ here: frobnicate.u32 %r0; }"), "line 6: unsupported instruction frobnicate.u32"),
        (".func f() {\n frobnicate; }", "line 5: unsupported instruction frobnicate"),
        (".entry k() {\n add.u32 %r, %r, 1;", "expected"),
        (kernel("k", "") + "}", "expected a directive, found '}'"),
        (kernel("k", "") + kernel("k", ""), "k is defined twice"),
        (".visible .entry k(.param .u64 x {}", "expected ',', found '{'"),
        (".global .b32 x { 1 };", "expected ';', found '{'"),
        (".entry k() { .global .b64 a = absent; ret; }", "absent"),
        (".entry", "expected a function name"),
    ],
)
def test_what_a_load_of_a_large_image_finds(text: str, words: str) -> None:
    with pytest.raises(InvalidPtx, match=words):
        load_large(HEADER + text)


def test_braces_in_strings_comments_and_values_end_no_function() -> None:
    program = load_large(
        HEADER
        + '.global .b32 values[2] = /* { */ { 1, 2 };\n.pragma "}{";\n'
        + '.file 1 "{.cu"\n'
        + kernel("first", '// }\n/* { } } */ .pragma "}";\n{ mov.u32 %r1, 1; }')
        + ".section .debug { .b8 1, 2 { } }\n"
        + kernel("second", "frob: bra frob; { mov.u32 low, 1; }".replace("low", "%r1"))
    )
    assert list(program.kernels) == ["first", "second"]
    assert program.globals["values"].size == 8
    assert program.kernels["second"].name == "second"


def test_a_kernel_that_calls_by_address_finds_the_functions_of_the_others() -> None:
    ptx = HEADER + (
        ".func (.reg .u32 r) seven(.reg .u32 x) { add.u32 r, x, 7; ret; }\n"
        ".func (.reg .u32 r) unused(.reg .u32 x) { mov.u32 r, x; ret; }\n"
        ".visible .global .u64 pointer;\n"
        ".visible .entry set() { .reg .u64 %a; mov.u64 %a, seven; st.global.u64 [pointer], %a; ret; }\n"
        ".visible .entry call_it(.param .u64 out) { .reg .u64 %a, %o; .reg .u32 %r;\n"
        "ld.param.u64 %o, [out]; ld.global.u64 %a, [pointer];\n"
        "type: .callprototype (.reg .u32 r) _ (.reg .u32 x);\n"
        "call (%r), %a, (35), type; st.global.u32 [%o], %r; ret; }\n"
    )
    device = Device()
    module = LoadedModule(load_large(ptx), device.space)
    out = device.put(np.zeros(1, np.uint32))
    device.launch(module, "set", 1, 1)
    device.launch(module, "call_it", 1, 1, out)
    assert device.get(out, np.zeros(1, np.uint32)).tolist() == [42]


def test_static_variables_of_a_function_exist_before_it_is_translated() -> None:
    ptx = HEADER + (
        ".visible .entry count(.param .u64 out) { .global .u32 counter = 5; .reg .u64 %o; .reg .u32 %r;\n"
        "ld.param.u64 %o, [out]; ld.global.u32 %r, [counter]; add.u32 %r, %r, 1; st.global.u32 [counter], %r;\n"
        "st.global.u32 [%o], %r; ret; }\n"
    )
    device = Device()
    program = load_large(ptx)
    assert len(program.variables) == 1
    module = LoadedModule(program, device.space)
    out = device.put(np.zeros(1, np.uint32))
    for expected in (6, 7):
        device.launch(module, "count", 1, 1, out)
        assert device.get(out, np.zeros(1, np.uint32)).tolist() == [expected]
