"""Programs that are hostile to the translator are refused by name, or bounded; none takes the executor's memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.device import kept_programs
from pympsd_server.backends.emulated.device.kept_programs import MAX_PROGRAMS, KeptPrograms, UsedPrograms
from pympsd_server.backends.emulated.device.module import load, refusals_as_backend_errors
from pympsd_server.backends.interface import BackendError
from pympsd_server.ptx.isa.faults import DeviceFault, InvalidPtx, OutOfMemory
from pympsd_server.ptx.loading import program as program_module
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.loading.program import load_program
from pympsd_server.ptx.lowering import control_flow, inlining
from pympsd_server.ptx.lowering.ir import Register, registers_written
from pympsd_server.ptx.numpy_tier import translation
from tests.emulated.harness import HEADER, Device

MORE_MEMORY = 1 << 30


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Let this process have little more memory than it has."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_MEMORY, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def kernel(body: str, top: str = "") -> str:
    registers = ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<9>;"
    return f"{HEADER}{top}.visible .entry k() {{ {registers}\n{body}\nret; }}\n"


def functions(count: int, callees: str) -> str:
    """Functions f0, f1 ...; `callees` is what function f{i} calls, from {i} and {before}."""
    first = ".func f0() { .reg .b32 %a; mov.u32 %a, 1; ret; }\n"
    bodies = [callees.format(before=i - 1, after=(i + 1) % count) for i in range(1, count)]
    return first + "".join(f".func f{i}() {{ {body} ret; }}\n" for i, body in enumerate(bodies, 1))


def branches(blocks: int) -> str:
    """Blocks each of which may branch to all of them."""
    labels = ", ".join(f"L{i}" for i in range(blocks))
    return f"T: .branchtargets {labels};\n" + "".join(f"L{i}: brx.idx %r1, T;\n" for i in range(blocks))


def loops(count: int, alive: int) -> str:
    """Loops, during all of which some registers are alive."""
    first = "".join(f"mov.u32 %v{i}, {i};" for i in range(alive))
    body = "".join(f"L{i}: setp.lt.u32 %p1, %r1, {i}; @%p1 bra L{i};\n" for i in range(count))
    return f".reg .b32 %v<{alive}>; {first} mov.u32 %r1, 0x7fffffff; {body} " + "".join(
        f"add.u32 %r1, %r1, %v{i};" for i in range(alive)
    )


def list_declared(count: int) -> str:
    return "".join(f".func f{i}();\n" for i in range(count))


@pytest.mark.parametrize(
    ("ptx", "words"),
    [
        (kernel(";" * 1_000_000), "k has more than 400000 statements"),
        (kernel(".reg .b32 %z<2000000000>;"), "declares more than 1048576 registers"),
        (kernel(".reg .b32 %z<600000>; .reg .b32 %y<600000>;"), "declares more than 1048576 registers"),
        (kernel(".local .b8 x[10000000000]; mov.u64 %d1, x;"), "10000000000 bytes of local memory"),
        (
            kernel("call f1;", list_declared(400) + functions(400, "call f{after}; call f1; ret;")),
            "calls that are not inlined, and",
        ),
        (kernel("{" * 10_000 + "}" * 10_000), "nests too deeply"),
        (kernel("mov.u32 %r1, " + "(" * 10_000 + "1" + ")" * 10_000 + ";"), "nests too deeply"),
        (kernel("mov.u32 %r1, 0x" + "f" * 100_000 + ";"), "more than 64 bits"),
        (kernel(branches(1500)), "branches have more than 2000000 targets"),
        (kernel("/* " * 100_000), "syntax error"),
        (HEADER + '"\\' * 100_000, "syntax error"),
        (kernel('"\\' * 100_000), "syntax error"),
    ],
    ids=lambda value: value if len(value) < 80 else "",
)
def test_a_program_that_would_take_too_much_is_refused(ptx: str, words: str) -> None:
    with pytest.raises(BackendError, match=words) as caught, refusals_as_backend_errors():
        _ = load(ptx.encode(), (9, 0)).kernels["k"]
    assert caught.value.code is Result.ERROR_INVALID_PTX


def test_registers_of_inlined_functions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlining, "MAX_REGISTERS", 1000)
    with pytest.raises(InvalidPtx, match="line 4: the kernel has more than 1000 registers"):
        load_program(kernel("call f; call f; call f;", ".func f() { .reg .b32 %z<400>; ret; }\n").encode())


def test_values_that_are_alive_everywhere_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow, "MAX_LIVE", 50_000)
    count = 300
    declarations = "".join(f".reg .b32 %q{i};" for i in range(count))
    jumps = "".join(
        f"L{i}: @%p1 bra L{i * 79 % count}; add.u32 %q{i}, %q{i * 31 % count}, 1;\n" for i in range(count)
    )
    with pytest.raises(BackendError, match="live registers"), refusals_as_backend_errors():
        _ = load(kernel(declarations + jumps).encode(), (9, 0)).kernels["k"]


@pytest.mark.parametrize("mask", ["0xffffffff", "%r2"])
def test_lanes_that_meet_often_are_found_in_one_pass(monkeypatch: pytest.MonkeyPatch, mask: str) -> None:
    """Otherwise 20,000 matrix products take minutes, in which other clients wait for the interpreter."""
    count, looks = 300, 0

    def look(*arguments: Any) -> list[Register]:
        nonlocal looks
        looks += 1
        return registers_written(*arguments)

    monkeypatch.setattr(control_flow, "registers_written", look)
    ptx = kernel(f"vote.sync.ballot.b32 %r1, %p1, {mask};" * count)
    _ = load_program(ptx.encode()).kernels["k"]
    assert count <= looks < 10 * count


def test_the_size_of_a_translated_kernel_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "MAX_SOURCE", 100_000)
    with pytest.raises(
        InvalidPtx, match=r"kernel k is too large: .* more than 100000 characters .* split the kernel"
    ):
        _ = load_program(kernel(loops(20, 1000)).encode()).kernels["k"]


@pytest.mark.long
def test_many_loops_with_many_registers_take_little_memory() -> None:
    """Compiled as one source they take 1.4 GB."""
    device = Device()
    device.launch(device.load(kernel(loops(1000, 500))), "k", 1, 32)


def test_a_long_block_is_compiled_in_parts() -> None:
    """The memory for compiling a part is about 100 bytes for each of its characters."""
    body = "ld.global.u32 %r1, [t]; add.u32 %r1, %r1, 1; st.global.u32 [t], %r1;\n" * 3000
    device = Device()
    module = device.load(kernel(body, ".global .u32 t;"))
    sizes = [len(source) for source in module.program.kernels["k"].translation.sources]
    assert len(sizes) > 2
    assert max(sizes) < 500_000
    device.launch(module, "k", 1, 1)
    assert device.space.read(module.address_of("t"), 4) == (3000).to_bytes(4, "little")


def test_programs_are_kept_while_their_code_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptPrograms()
    small, large, other = (kernel(body).encode() for body in ("", loops(20, 50), "mov.u32 %r1, 1;"))
    first = kept.load(small)
    assert kept.load(small) is first
    second = kept.load(large)
    _ = second.kernels["k"]
    assert kept.load(large) is second
    monkeypatch.setattr(kept_programs, "MAX_KEPT_BYTES", second.kernels.nbytes - 1)
    kept.load(other)
    assert kept.load(large) is not second


def test_few_programs_are_kept() -> None:
    kept = KeptPrograms()
    images = [kernel(f"mov.u32 %r1, {i};").encode() for i in range(MAX_PROGRAMS + 1)]
    programs = [kept.load(image) for image in images]
    assert kept.load(images[1]) is programs[1]
    assert kept.load(images[0]) is not programs[0]


def test_a_user_gets_no_more_kernels_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    used = UsedPrograms()
    programs = [load_program(kernel(f"mov.u32 %r1, {i};").encode()) for i in range(3)]
    monkeypatch.setattr(kept_programs, "MAX_USER_BYTES", 2 * programs[0].kernels.nbytes)
    for program in programs[:2]:
        used.check(1, program.kernels)
    with pytest.raises(BackendError, match=r"user 1's modules take .* unload modules") as caught:
        used.check(1, programs[2].kernels)
    assert caught.value.code is Result.ERROR_OUT_OF_MEMORY
    used.check(2, programs[2].kernels)
    del program, programs[1]
    used.check(1, programs[-1].kernels)


def test_a_users_account_is_dropped_with_the_last_program() -> None:
    used = UsedPrograms()
    programs = [load_program(kernel(f"mov.u32 %r1, {i};").encode()) for i in range(2)]
    for user in range(100):
        used.check(user, programs[0].kernels)
    used.check(100, programs[1].kernels)
    assert len(used._kernels) == 101
    del programs[0]
    used.check(100, programs[0].kernels)
    assert list(used._kernels) == [100]


def test_a_variable_larger_than_the_device_is_refused_when_it_is_placed() -> None:
    program = load_program(f"{HEADER}.global .u32 t[1000000000000] = {{ 1, 2 }};".encode())
    with pytest.raises(OutOfMemory):
        LoadedModule(program, Device().space)


def test_a_small_image_of_many_large_kernels_is_not_translated_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "EAGER_OPERATIONS", 1000)
    top = functions(6, "call f{before}; call f{before}; call f{before};")
    kernels = "".join(f".visible .entry k{i}() {{ call f5; ret; }}\n" for i in range(200))
    program = load_program((HEADER + top + kernels).encode())
    translated = [name for name in program.kernels if program.kernels.is_translated(name)]
    assert 1 <= len(translated) < 10


def test_a_function_that_calls_itself_without_end_faults() -> None:
    top = ".func deep(.reg .u32 x) { .reg .u32 y; add.u32 y, x, 1; call deep, (y); ret; }\n"
    device = Device()
    module = LoadedModule(load_program(kernel("call deep, (%r1);", top).encode()), device.space)
    with pytest.raises(DeviceFault):
        device.launch(module, "k", 1, 32)


def test_a_table_of_many_values_is_loaded() -> None:
    values = np.arange(5_000, dtype="i4") - 2_500
    text = ", ".join(map(str, values.tolist()))
    module = LoadedModule(load_program(f"{HEADER}.global .s32 t[5000] = {{ {text} }};".encode()), Device().space)
    assert module.space.read(module.address_of("t"), values.nbytes) == values.tobytes()
