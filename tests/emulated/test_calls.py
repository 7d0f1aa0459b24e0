"""Calls that cannot be inlined: recursion, calls through addresses; the stack; malloc and free of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd_server.ptx.isa.faults import Cancelled, DeviceFault, IllegalAddress, InvalidProgramCounter, InvalidPtx
from pympsd_server.ptx.runtime.facilities import DeviceHeap
from tests.emulated.harness import HEADER, CancelAfter, Device, batches

# Thread i stores f(i) at out + 4 * i; each test appends f and what it calls.
ENTRY = """
.visible .entry k(.param .u64 out)
{
  .reg .b64 %d<4>; .reg .b32 %r<4>;
  ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1;
  { .param .b32 a; st.param.b32 [a+0], %r0; .param .b32 b; call.uni (b), f, (a); ld.param.b32 %r1, [b+0]; }
  st.global.u32 [%d0], %r1;
  ret;
}
"""
Array = np.ndarray[Any, Any]
SECONDS = 30.0
DECLARED = ".func (.param .b32 b) f(.param .b32 a);\n"


def results(text: str, threads: int = 70, entry: str = ENTRY) -> list[int]:
    device = Device(1 << 25)
    module = device.load(HEADER + DECLARED + entry + text)
    out = device.put(np.zeros(threads, "i4"))
    device.launch(module, "k", 1, threads, out)
    return [int(n) for n in device.get(out, np.zeros(threads, "i4"))]


def call(target: str, argument: str, result: str, tail: str = "") -> str:
    return (
        f"{{ .param .b32 p; st.param.b32 [p+0], {argument}; .param .b32 q; call (q), {target}, (p){tail};"
        f" ld.param.b32 {result}, [q+0]; }}"
    )


FIBONACCI = f"""
.func (.param .b32 b) f(.param .b32 a)
{{
  .reg .b32 %r<9>; .reg .pred %p<3>;
  ld.param.u32 %r0, [a];
  and.b32 %r0, %r0, 15;
  setp.lt.u32 %p0, %r0, 2;
  mov.u32 %r1, %r0;
  @%p0 bra done;
  sub.u32 %r2, %r0, 1; sub.u32 %r3, %r0, 2;
  setp.gt.u32 %p1, %r0, 100;
  {call("f", "%r2", "%r4")}
  {call("f", "%r3", "%r5")}
  add.u32 %r1, %r4, %r5;
  @%p1 add.u32 %r1, %r1, 1000;
done:
  st.param.b32 [b+0], %r1;
  ret;
}}
"""


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def test_a_function_that_calls_itself_twice() -> None:
    assert results(FIBONACCI) == [fibonacci(n % 16) for n in range(70)]


MUTUAL = f"""
.func (.param .b32 b) g(.param .b32 a)
{{
  .reg .b32 %r<9>; .reg .pred %p;
  .local .align 8 .b8 own[16]; .reg .b64 %l;
  mov.u64 %l, own;
  ld.param.u32 %r0, [a]; st.local.u32 [%l+4], %r0;
  setp.eq.u32 %p, %r0, 0;
  mov.u32 %r2, 7;
  @%p bra out;
  sub.u32 %r1, %r0, 1;
  {call("f", "%r1", "%r2")}
  ld.local.u32 %r3, [%l+4];
  mad.lo.u32 %r2, %r2, 3, %r3;
out:
  st.param.b32 [b+0], %r2;
  @%p ret;
  ret;
}}
.func (.param .b32 b) f(.param .b32 a)
{{
  .reg .b32 %r<9>; .reg .pred %p; .reg .b64 %w;
  ld.param.u32 %r0, [a];
  setp.eq.u32 %p, %r0, 0;
  mov.u32 %r2, 1; mov.u64 %w, 0x100000001;
  @%p bra out;
  sub.u32 %r1, %r0, 1;
  {call("g", "%r1", "%r2")}
  shr.u64 %w, %w, 32; cvt.u32.u64 %r3, %w;
  add.u32 %r2, %r2, %r3;
out:
  st.param.b32 [b+0], %r2;
  ret;
}}
"""


def test_two_functions_that_call_each_other_keep_their_own_variables() -> None:
    def f(n: int) -> int:
        return 1 if n == 0 else (g(n - 1) + 1) % 2**32

    def g(n: int) -> int:
        return 7 if n == 0 else (f(n - 1) * 3 + n) % 2**32

    declared = ".func (.param .b32 b) g(.param .b32 a);\n"
    assert [n % 2**32 for n in results(declared + MUTUAL, 40)] == [f(n) for n in range(40)]


POINTERS = """
.func (.param .b32 b) twice(.param .b32 a)
{ .reg .b32 %r; ld.param.u32 %r, [a]; add.u32 %r, %r, %r; st.param.b32 [b], %r; ret; }
.func (.param .b32 b) square(.param .b32 a)
{ .reg .b32 %r; ld.param.u32 %r, [a]; mul.lo.u32 %r, %r, %r; st.param.b32 [b], %r; ret; }
.func (.param .b32 b) negative(.param .b32 a)
{ .reg .b32 %r; ld.param.u32 %r, [a]; neg.s32 %r, %r; st.param.b32 [b], %r; ret; }
.func (.param .b64 b) other(.param .b64 a)
{ .reg .b64 %r; ld.param.u64 %r, [a]; st.param.b64 [b], %r; ret; }
.global .align 8 .u64 table[4] = {twice, square, negative, other};
"""
INDIRECT = f"""
.func (.param .b32 b) f(.param .b32 a)
{{
  .reg .b32 %r<9>; .reg .b64 %d<4>; .reg .pred %p;
  ld.param.u32 %r0, [a];
  rem.u32 %r1, %r0, MANY;
  mul.wide.u32 %d0, %r1, 8; mov.u64 %d1, table; add.u64 %d1, %d1, %d0; ld.global.u64 %d2, [%d1];
  proto: .callprototype (.param .b32 _) _ (.param .b32 _);
  {call("%d2", "%r0", "%r2", ", proto")}
  mov.u64 %d3, twice;
  {call("%d3", "%r2", "%r2", ", proto")}
  add.u32 %r2, %r2, %r1;
  st.param.b32 [b+0], %r2;
  ret;
}}
"""


def test_functions_out_of_a_table() -> None:
    functions = (lambda n: 2 * n, lambda n: n * n, lambda n: -n)
    expected = [2 * functions[n % 3](n) + n % 3 for n in range(70)]
    assert results(POINTERS + INDIRECT.replace("MANY", "3")) == expected


def test_call_targets_name_the_functions() -> None:
    text = INDIRECT.replace(
        ".callprototype (.param .b32 _) _ (.param .b32 _)", ".calltargets twice, square, negative"
    )
    functions = (lambda n: 2 * n, lambda n: n * n, lambda n: -n)
    assert results(POINTERS + text.replace("MANY", "3")) == [2 * functions[n % 3](n) + n % 3 for n in range(70)]


def test_a_function_of_another_shape_faults() -> None:
    with pytest.raises(InvalidProgramCounter, match=r"thread \(3, 0, 0\)") as caught:
        results(POINTERS + INDIRECT.replace("MANY", "4"))
    assert caught.value.code == 718


def test_an_indirect_call_needs_a_prototype() -> None:
    with pytest.raises(InvalidPtx, match="callprototype"):
        results(POINTERS + INDIRECT.replace("MANY", "3").replace(", proto", ""))


def test_a_recursion_without_end_faults() -> None:
    endless = FIBONACCI.replace("setp.lt.u32 %p0, %r0, 2;", "setp.gt.u32 %p0, %r0, 99;")
    with pytest.raises(IllegalAddress, match="local address"):
        results(endless, 3)


STRUCTURE = """
.func (.param .align 8 .b8 b[24]) deep(.param .align 8 .b8 s[24], .param .b32 n)
{
  .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p;
  ld.param.u64 %d0, [s]; ld.param.v2.u32 {%r0, %r1}, [s+8]; ld.param.u8 %r2, [s+16]; ld.param.u32 %r3, [n];
  setp.eq.u32 %p, %r3, 0;
  @%p bra out;
  add.u64 %d1, %d0, 5; mad.lo.u32 %r4, %r0, 3, %r1; add.u32 %r5, %r2, 1; sub.u32 %r6, %r3, 1;
  { .param .align 8 .b8 x[24]; st.param.b64 [x], %d1; st.param.v2.b32 [x+8], {%r4, %r0}; st.param.b8 [x+16], %r5;
    .param .b32 y; st.param.b32 [y], %r6; .param .align 8 .b8 z[24];
    call.uni (z), deep, (x, y);
    ld.param.b64 %d2, [z]; ld.param.v2.b32 {%r4, %r5}, [z+8]; ld.param.b8 %r7, [z+16]; }
  // The parameter is read again after the call.
  ld.param.u64 %d0, [s]; add.u64 %d0, %d0, %d2; add.u32 %r0, %r4, %r3; mov.u32 %r1, %r5; mov.u32 %r2, %r7;
out:
  st.param.b64 [b], %d0; st.param.v2.b32 [b+8], {%r0, %r1}; st.param.b8 [b+16], %r2;
  ret;
}
.func (.param .b32 b) f(.param .b32 a)
{
  .reg .b32 %r<9>; .reg .b64 %d<9>;
  ld.param.u32 %r0, [a]; cvt.u64.u32 %d0, %r0; and.b32 %r1, %r0, 7;
  { .param .align 8 .b8 x[24]; st.param.b64 [x], %d0; st.param.v2.b32 [x+8], {%r0, 11}; st.param.b8 [x+16], 250;
    .param .b32 y; st.param.b32 [y], %r1; .param .align 8 .b8 z[24];
    call.uni (z), deep, (x, y);
    ld.param.b64 %d2, [z]; ld.param.v2.b32 {%r4, %r5}, [z+8]; ld.param.b8 %r7, [z+16]; }
  cvt.u32.u64 %r2, %d2; add.u32 %r2, %r2, %r4; add.u32 %r2, %r2, %r5; add.u32 %r2, %r2, %r7;
  st.param.b32 [b], %r2;
  ret;
}
"""


def test_structures_pass_through_a_recursion() -> None:
    def deep(x: int, u: int, v: int, c: int, n: int) -> tuple[int, int, int, int]:
        if n == 0:
            return x, u, v, c
        y, p, q, d = deep(x + 5, (u * 3 + v) % 2**32, u, (c + 1) % 256, n - 1)
        return x + y, (p + n) % 2**32, q, d

    assert [n % 2**32 for n in results(STRUCTURE)] == [sum(deep(n, n, 11, 250, n & 7)) % 2**32 for n in range(70)]


STACK = """
.func (.param .b32 b) f(.param .b32 a)
{
  .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p;
  ld.param.u32 %r0, [a]; and.b32 %r0, %r0, 31; add.u32 %r1, %r0, 1; mul.wide.u32 %d0, %r1, 4;
  stacksave.u64 %d1;
  alloca.u64 %d2, %d0, 4;
  alloca.u64 %d3, %d0, 64;
  mov.u32 %r2, 0;
fill:
  mul.wide.u32 %d4, %r2, 4; add.u64 %d5, %d2, %d4; add.u64 %d6, %d3, %d4;
  mul.lo.u32 %r3, %r2, %r2; st.local.u32 [%d5], %r3; st.local.u32 [%d6], 9;
  add.u32 %r2, %r2, 1; setp.le.u32 %p, %r2, %r0;
  @%p bra fill;
  mov.u32 %r4, 0; mov.u32 %r2, 0;
sum:
  mul.wide.u32 %d4, %r2, 4; add.u64 %d5, %d2, %d4; ld.local.u32 %r3, [%d5]; add.u32 %r4, %r4, %r3;
  add.u32 %r2, %r2, 1; setp.le.u32 %p, %r2, %r0;
  @%p bra sum;
  and.b64 %d7, %d3, 63; cvt.u32.u64 %r5, %d7; mad.lo.u32 %r4, %r5, 1000, %r4;
  stackrestore.u64 %d1;
  alloca.u64 %d6, 4; sub.u64 %d6, %d6, %d2; cvt.u32.u64 %r6, %d6; mad.lo.u32 %r4, %r6, 100000, %r4;
  st.param.b32 [b], %r4;
  ret;
}
"""


def test_alloca_is_aligned_and_given_back() -> None:
    assert results(STACK) == [sum(k * k for k in range(n % 32 + 1)) for n in range(70)]


HEAP = """
.extern .func (.param .b64 r) malloc (.param .b64 n);
.extern .func free (.param .b64 p);
.visible .entry take(.param .u64 out, .param .u64 count)
{
  .reg .b64 %d<9>; .reg .b32 %r<4>;
  ld.param.u64 %d0, [out]; ld.param.u64 %d4, [count]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 8;
  add.u64 %d0, %d0, %d1;
  { .param .b64 n; st.param.b64 [n], %d4; .param .b64 r; call.uni (r), malloc, (n); ld.param.b64 %d2, [r]; }
  st.global.u64 [%d0], %d2;
  ret;
}
.visible .entry give(.param .u64 out)
{
  .reg .b64 %d<9>; .reg .b32 %r<4>;
  ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 8;
  add.u64 %d0, %d0, %d1; ld.global.u64 %d2, [%d0];
  st.u32 [%d2], %r0;
  { .param .b64 n; st.param.b64 [n], %d2; call.uni free, (n); }
  ret;
}
"""


def run_and_take(device: Device, module: object, count: int, threads: int = 40) -> tuple[int, Array]:
    out = device.put(np.zeros(threads, "u8"))
    device.launch(module, "take", 1, threads, out, count)  # type: ignore[arg-type]
    return out, device.get(out, np.zeros(threads, "u8"))


def test_each_thread_gets_memory_of_its_own_that_lasts() -> None:
    device = Device(1 << 25)
    module = device.load(HEADER + HEAP)
    out, addresses = run_and_take(device, module, 100)
    assert (addresses % 16 == 0).all()
    assert (np.diff(np.sort(addresses).astype("i8")) >= 100).all()
    device.launch(module, "give", 1, 40, out)
    _, again = run_and_take(device, module, 100)
    assert sorted(again.tolist()) == sorted(addresses.tolist())


def test_what_does_not_fit_is_null() -> None:
    device = Device(1 << 25)
    module = device.load(HEADER + HEAP)
    assert not run_and_take(device, module, 9 << 20)[1].any()
    _, addresses = run_and_take(device, module, 3 << 20)
    assert (addresses != 0).sum() == 2


def test_memory_freed_twice_faults() -> None:
    device = Device(1 << 25)
    module = device.load(HEADER + HEAP)
    out, _ = run_and_take(device, module, 8)
    device.launch(module, "give", 1, 40, out)
    with pytest.raises(DeviceFault, match="no malloc"):
        device.launch(module, "give", 1, 40, out)


@pytest.mark.parametrize("name", ["take", "give"])
def test_malloc_and_free_of_many_threads_can_be_cancelled(name: str) -> None:
    device = Device(1 << 25)
    module = device.load(HEADER + HEAP)
    out, _ = run_and_take(device, module, 100, 1024)
    arguments = (out, 100) if name == "take" else (out,)
    (batch,) = batches(module, name, (1, 1, 1), (1024, 1, 1), arguments)
    with pytest.raises(Cancelled):
        batch.step(SECONDS, CancelAfter(900))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=60))
def test_the_heap_never_gives_the_same_byte_twice(steps: list[tuple[bool, int]]) -> None:
    heap = DeviceHeap(lambda count: 4096)
    assert heap.set_limit(2048)
    held: dict[int, int] = {}
    for takes, number in steps:
        if takes:
            address = heap.allocate(number)
            if address:
                assert 4096 <= address <= 4096 + 2048 - max(number, 1)
                assert all(address >= a + n or a >= address + max(number, 1) for a, n in held.items())
                held[address] = max(number, 1)
        elif held:
            chosen = sorted(held)[number % len(held)]
            assert heap.free(chosen)
            del held[chosen]
            assert not heap.free(chosen)
    for address in held:
        assert heap.free(address)
    assert heap.allocate(2048) == 4096
