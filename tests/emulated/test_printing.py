"""Text that kernels print: vprintf and failed assertions."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
from threading import Event
from typing import Any

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import Cancelled, DeviceAssertion, IllegalAddress, LaunchFailed
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.loading.program import load_program
from pympsd_server.ptx.math.c_format import MAX_STRING
from pympsd_server.ptx.runtime import printing
from pympsd_server.ptx.runtime.facilities import MAX_PRINT_BYTES, PrintBuffer
from tests.emulated.harness import HEADER, Device, Never, batches

# Each thread prints with the format at `form` and the arguments at `values`, and stores what vprintf returned.
SECONDS = 30.0
PRINT = """
.extern .func (.param .b32 result) vprintf (.param .b64 form, .param .b64 values);
.visible .entry show(.param .u64 form, .param .u64 values, .param .u64 out)
{
  .reg .b32 %r<4>; .reg .b64 %d<6>;
  ld.param.u64 %d0, [form]; ld.param.u64 %d1, [values]; ld.param.u64 %d2, [out];
  { .param .b64 a; st.param.b64 [a+0], %d0; .param .b64 b; st.param.b64 [b+0], %d1; .param .b32 back;
    call.uni (back), vprintf, (a, b); ld.param.b32 %r1, [back+0]; }
  mov.u32 %r0, %tid.x; mul.wide.u32 %d3, %r0, 4; add.s64 %d2, %d2, %d3;
  st.global.u32 [%d2], %r1;
  ret;
}
"""


def pack(*values: int | float | str, device: Device) -> bytes:
    """An argument buffer as CUDA's compilers make it: (code, value) with a `struct` code each."""
    buffer = b""
    for value in values:
        if isinstance(value, str):
            data = struct.pack("<Q", device.put(np.frombuffer(value.encode() + b"\0", "u1")))
        elif isinstance(value, float):
            data = struct.pack("<d", value)
        else:
            wide = not -(2**31) <= value < 2**32
            data = struct.pack("<Q" if wide else "<I", value % 2 ** (64 if wide else 32))
        buffer += bytes(-len(buffer) % len(data)) + data
    return buffer


def get_printed(form: str | bytes, *values: int | float | str, threads: int = 1) -> tuple[bytes, int]:
    """What a launch of PRINT prints, and what vprintf returned."""
    device = Device(1 << 24)
    module = LoadedModule(load_program((HEADER + PRINT).encode()), device.space)
    text = form.encode() if isinstance(form, str) else form
    arguments = device.put(np.frombuffer(pack(*values, device=device) + b"\0", "u1"))
    out = device.put(np.zeros(threads, "i4"))
    device.launch(module, "show", 1, threads, device.put(np.frombuffer(text + b"\0", "u1")), arguments, out)
    text, reports = module.facilities.output.take()
    assert reports == b""
    return text, int(device.get(out, np.zeros(threads, "i4"))[0])


def test_a_compiler_may_declare_no_result() -> None:
    text = (HEADER + PRINT).replace("(.param .b32 result) vprintf", "vprintf").replace("(back), vprintf", "vprintf")
    device = Device(1 << 24)
    module = LoadedModule(load_program(text.encode()), device.space)
    form, out = device.put(np.frombuffer(b"once\n\0", "u1")), device.put(np.zeros(1, "i4"))
    device.launch(module, "show", 1, 1, form, form, out)
    assert module.facilities.output.take() == (b"once\n", b"")


def print_string(device: Device, text: int, cancel: Any = None) -> bytes:
    """What a thread prints of the string at an address."""
    module = LoadedModule(load_program((HEADER + PRINT).encode()), device.space)
    form, values = device.put(np.frombuffer(b"%s\0", "u1")), device.put(np.array([text]))
    (batch,) = batches(module, "show", (1, 1, 1), (1, 1, 1), (form, values, device.put(np.zeros(1, "i4"))))
    batch.step(SECONDS, cancel or Never())
    return module.facilities.output.take()[0]


def test_the_memory_behind_a_string_is_not_read() -> None:
    device = Device(1 << 26)
    text = device.space.allocate(32 << 20)
    device.space.write(text, b"x" * 1000)
    assert print_string(device, text) == b"x" * 1000
    assert device.space.is_untouched(text + (1 << 20), 31 << 20)


def test_a_string_without_an_end() -> None:
    """A string without a NUL is a fault, unless it has more than MAX_STRING bytes; the first ones are printed."""
    device = Device(1 << 24)
    text = device.put(np.full(MAX_STRING + 1, ord("x"), "u1"))
    assert print_string(device, text) == b"x" * MAX_STRING
    with pytest.raises(IllegalAddress, match="has no end"):
        print_string(device, text + 1)


def test_printing_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel flag is tested before each string, because many threads may print long ones."""
    device, cancel = Device(1 << 24), Event()
    text = device.put(np.frombuffer(b"text\0", "u1"))
    reads = printing._format

    def cancel_first(*arguments: Any) -> Any:
        cancel.set()
        return reads(*arguments)

    monkeypatch.setattr(printing, "_format", cancel_first)
    with pytest.raises(Cancelled):
        print_string(device, text, cancel)


BIG = 2**40 + 5


# What C prints, written out by hand.
@pytest.mark.parametrize(
    ("form", "values", "text"),
    [
        ("plain\n", (), "plain\n"),
        ("%d %i", (-5, 7), "-5 7"),
        ("%u", (-1,), "4294967295"),
        ("%x %X %#x %o %#o", (255, 255, 255, 8, 8), "ff FF 0xff 10 010"),
        ("%5d|%-5d|%05d|%+d|% d", (42, 42, 42, 42, 42), "   42|42   |00042|+42| 42"),
        ("%.3d|%8.3d|%08.3d", (5, 5, 5), "005|     005|     005"),
        ("%*d|%-*d|%.*f", (5, 42, 5, 42, 2, 3.14159), "   42|42   |3.14"),
        ("%lld %llu %ld", (BIG, BIG, BIG), f"{BIG} {BIG} {BIG}"),
        ("%d %lld %d", (1, BIG, 2), f"1 {BIG} 2"),
        ("%hd %hhd %hu", (65537, 257, 65537), "1 1 1"),
        ("%hd", (0x8000,), "-32768"),
        ("%c%c", (65, 66), "AB"),
        ("%5c|%-3c|", (65, 66), "    A|B  |"),
        ("%f %e %g", (1.5, 1.5, 1e-7), "1.500000 1.500000e+00 1e-07"),
        ("%F %E %G %a", (float("inf"), 1.5, 1e-7, 1.0), "INF 1.500000E+00 1E-07 0x1p+0"),
        ("%8.2f|%-8.2f|%+.1f", (3.14159, 3.14159, 2.0), "    3.14|3.14    |+2.0"),
        ("%f %f", (float("nan"), float("-inf")), "nan -inf"),
        ("%s and %s", ("one", "two"), "one and two"),
        ("%5s|%-5s|%.2s", ("ab", "ab", "abcd"), "   ab|ab   |ab"),
        ("100%%", (), "100%"),
        ("%p", (BIG,), hex(BIG)),
        ("%", (), "%"),
        ("%y %d", (3,), "%y 3"),
        ("%zu", (2**63,), str(2**63)),
        ("%#.3x|%#10x", (5, 5), "0x005|       0x5"),
    ],
)
def test_as_c_prints(form: str, values: tuple[int | float | str, ...], text: str) -> None:
    actual, count = get_printed(form, *values)
    assert actual.decode() == text
    assert count == len(values)


def test_every_thread_prints_in_order() -> None:
    text, _ = get_printed("line\n", threads=70)
    assert text == b"line\n" * 70


def test_bytes_that_are_not_text_pass() -> None:
    assert get_printed(b"\xff%d\x80", 1)[0] == b"\xff1\x80"


@pytest.mark.parametrize("form", ["%2000000000d", f"%{'9' * 5000}d", f"%.{'9' * 5000}d", f"%-{'9' * 5000}.1d"])
def test_a_huge_width_costs_no_memory(form: str) -> None:
    text, _ = get_printed(form, 1)
    assert 1 < len(text) < 10_000


def test_zeros_before_a_precision_count_for_nothing() -> None:
    assert get_printed(f"%.{'0' * 5000}3d", 5)[0] == b"005"


READ_LONG_FORMATS = """
import resource
from pympsd_server.ptx.math.c_format import parse_format
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for flag in (b"0", b"-", b" "):
    for dot in (b"", b"."):
        form = b"%" + flag * 30_000 + dot + b"0" * 30_000
        assert parse_format(form) == [form]
"""


def test_a_long_format_takes_little_time_to_read() -> None:
    """No other client is served meanwhile: a pattern that tries each division of the zeros stops all for minutes."""
    assert subprocess.run([sys.executable, "-c", READ_LONG_FORMATS]).returncode == 0


ORDERED = """
.extern .func (.param .b32 result) vprintf (.param .b64 form, .param .b64 values);
.global .align 1 .b8 form[15] = {37, 100, 47, 37, 100, 32, 37, 100, 32, 37, 115, 10, 0};
.visible .entry show()
{
  .local .align 8 .b8 frame[24]; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p;
  .reg .b64 %SP, %SPL;
  mov.u64 %SPL, frame; cvta.local.u64 %SP, %SPL;
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x;
  // The string is in the thread's own local memory: a letter of its own.
  add.u32 %r3, %r1, 97; st.local.u8 [%SPL+16], %r3; st.local.u8 [%SPL+17], 0;
  and.b32 %r4, %r1, 1; setp.eq.u32 %p, %r4, 0;
  @%p bra after;
  st.local.v2.u32 [%SPL], {%r0, %r1}; st.local.u32 [%SPL+8], %r2;
  add.u64 %d2, %SP, 16;
  .local .align 8 .b8 more[24]; .reg .b64 %M, %ML; mov.u64 %ML, more; cvta.local.u64 %M, %ML;
  st.local.v2.u32 [%ML], {%r0, %r1}; st.local.u32 [%ML+8], %r2; st.local.u64 [%ML+16], %d2;
  mov.u64 %d0, form; cvta.global.u64 %d1, %d0;
  { .param .b64 a; st.param.b64 [a], %d1; .param .b64 b; st.param.b64 [b], %M; .param .b32 back;
    call.uni (back), vprintf, (a, b); }
after:
  ret;
}
"""


def test_the_arguments_of_each_thread_in_the_order_of_blocks_and_threads() -> None:
    device = Device(1 << 20)
    module = device.load(ORDERED if ORDERED.startswith(".version") else HEADER + ORDERED)
    device.launch(module, "show", 3, 4)
    expected = "".join(f"{b}/{t} 4 {chr(97 + t)}\n" for b in range(3) for t in (1, 3))
    assert module.facilities.output.take() == (expected.encode(), b"")
    assert module.facilities.output.take() == (b"", b"")


def test_a_null_format() -> None:
    device = Device(1 << 20)
    module = device.load(HEADER + PRINT)
    out = device.put(np.zeros(1, "i4"))
    device.launch(module, "show", 1, 1, 0, 0, out)
    assert device.get(out, np.zeros(1, "i4"))[0] == -1


@pytest.mark.parametrize("form", ["%d", "%s"])
def test_arguments_that_are_not_there_fault(form: str) -> None:
    device = Device(1 << 20)
    module = device.load(HEADER + PRINT)
    out = device.put(np.zeros(1, "i4"))
    text = device.put(np.frombuffer(form.encode() + b"\0", "u1"))
    with pytest.raises(IllegalAddress):
        device.launch(module, "show", 1, 1, text, 1 << 44, out)


def test_past_its_limit_the_oldest_text_is_dropped() -> None:
    buffer = PrintBuffer()
    buffer.limit = 10
    for text in (b"one\n", b"two\n", b"three\n"):
        buffer.print(text)
    assert buffer.take() == (b"two\nthree\n", b"")


def test_reports_are_limited() -> None:
    buffer = PrintBuffer()
    half = bytes(MAX_PRINT_BYTES // 2)
    for text in (half, half, b"more", b""):
        buffer.report(text)
    assert buffer.take()[1] == half + half
    buffer.report(b"more")
    assert buffer.take()[1] == b"more"


def test_arguments_after_the_last_possible_one_are_not_printed() -> None:
    """Their conversions are output as they are, as on a GPU."""
    text, count = get_printed("%d" * 31 + "%*d%d%s%%", *range(40))
    assert text == b"".join(b"%d" % number for number in range(31)) + b"%*d31%s%"
    assert count == 32


def test_long_texts_of_many_threads_take_little_memory() -> None:
    tracemalloc.start()
    try:
        text, _ = get_printed("%4096d" * 32, *range(32), threads=512)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(text) == 2**20
    assert peak < 40 << 20, "all threads' texts are 64 MiB"


def test_a_string_that_faults_names_its_thread() -> None:
    device, threads = Device(1 << 24), 100
    text = PRINT.replace("mov.u32 %r0, %tid.x; mul", "mul").replace(
        "{ .param", "mov.u32 %r0, %tid.x; mul.wide.u32 %d3, %r0, 8; add.s64 %d1, %d1, %d3;\n  { .param", 1
    )
    addresses = np.full(threads, device.put(np.frombuffer(b"text\0", "u1")))
    addresses[70] = 1 << 44
    form, out = device.put(np.frombuffer(b"%s\0", "u1")), device.put(np.zeros(threads, "i4"))
    with pytest.raises(IllegalAddress, match=r"thread \(70, 0, 0\)"):
        device.launch(device.load(HEADER + text), "show", 1, threads, form, device.put(addresses), out)


ASSERT = """
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 what[6] = {120, 32, 60, 32, 51, 0};
.global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
.global .align 1 .b8 name[10] = {118, 111, 105, 100, 32, 107, 40, 41, 0, 0};
.visible .entry k()
{
  .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p;
  mov.u32 %r0, %tid.x; setp.lt.u32 %p, %r0, 3;
  @%p bra fine;
  mov.u64 %d0, what; cvta.global.u64 %d1, %d0; mov.u64 %d2, file; cvta.global.u64 %d3, %d2;
  mov.u64 %d4, name; cvta.global.u64 %d5, %d4;
  { .param .b64 a; st.param.b64 [a], %d1; .param .b64 b; st.param.b64 [b], %d3; .param .b32 c; st.param.b32 [c], 12;
    .param .b64 d; st.param.b64 [d], %d5; .param .b64 e; st.param.b64 [e], 1;
    call.uni __assertfail, (a, b, c, d, e); }
fine:
  ret;
}
"""


def test_a_failed_assertion_is_reported_for_each_thread() -> None:
    device = Device(1 << 20)
    module = device.load(HEADER + ASSERT)
    with pytest.raises(DeviceAssertion) as caught:
        device.launch(module, "k", (1, 2), (5, 1))
    assert caught.value.code == 710
    assert (caught.value.block, caught.value.thread) == ((0, 0, 0), (3, 0, 0))
    lines = [
        f"a.cu:12: void k(): block: [0,{block},0], thread: [{thread},0,0] Assertion `x < 3` failed.\n"
        for block in range(2)
        for thread in (3, 4)
    ]
    assert module.facilities.output.take() == (b"", "".join(lines).encode())


ACCESSES = (
    "st.global.u32 [%d1], %r0;",
    "ld.global.u32 %r1, [%d1]; st.global.u32 [%d0], %r1;",
    "@%p st.u32 [%d1], %r0;",
    "atom.global.add.u32 %r1, [%d1], 1; st.global.u32 [%d0], %r1;",
    "@%p ld.shared.u32 %r1, [%r4]; st.global.u32 [%d0], %r1;",
    "@%p trap;",
)


@pytest.mark.parametrize("access", ACCESSES)
def test_a_fault_names_block_and_thread(access: str) -> None:
    device = Device(1 << 20)
    module = device.load(
        HEADER
        + ".visible .entry k(.param .u64 p) { .reg .b64 %d<4>; .reg .b32 %r<9>; .reg .pred %p; .shared .b32 s[2];"
        " ld.param.u64 %d0, [p]; mov.u32 %r0, %ctaid.y; mov.u32 %r2, %tid.y; and.b32 %r3, %r0, %r2;"
        " setp.eq.u32 %p, %r3, 1; mul.wide.u32 %d1, %r3, 65536; add.u64 %d1, %d0, %d1; mul.lo.u32 %r4, %r3, 64;"
        f" {access} ret; }}"
    )
    address = device.put(np.zeros(1, "u4"))
    with pytest.raises((IllegalAddress, LaunchFailed), match=r"block \(0, 1, 0\), thread \(0, 1, 0\)"):
        device.launch(module, "k", (1, 2), (1, 2), address)
