"""What kernels print comes out of the client's own standard output and standard error."""

from __future__ import annotations

import ctypes
import os
from threading import Thread
from typing import Any

import pytest

from pympsd_client import driver as cuda
from tests.client.conftest import ok

KERNELS = b"""
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 result) vprintf (.param .b64 form, .param .b64 values);
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 line[13] = {98, 108, 111, 99, 107, 32, 37, 100, 32, 37, 100, 10, 0};
.global .align 1 .b8 what[6] = {120, 32, 60, 32, 51, 0};
.visible .entry show(.param .u32 value)
{
  .local .align 8 .b8 frame[8]; .reg .b32 %r<4>; .reg .b64 %d<6>;
  ld.param.u32 %r1, [value]; mov.u32 %r0, %ctaid.x;
  mov.u64 %d0, frame; cvta.local.u64 %d1, %d0; st.local.v2.u32 [%d0], {%r0, %r1};
  mov.u64 %d2, line; cvta.global.u64 %d3, %d2;
  { .param .b64 a; st.param.b64 [a+0], %d3; .param .b64 b; st.param.b64 [b+0], %d1; .param .b32 back;
    call.uni (back), vprintf, (a, b); ld.param.b32 %r2, [back+0]; }
  ret;
}
.visible .entry fail()
{
  .reg .b64 %d<9>;
  mov.u64 %d0, what; cvta.global.u64 %d1, %d0;
  { .param .b64 a; st.param.b64 [a], %d1; .param .b64 b; st.param.b64 [b], %d1; .param .b32 c; st.param.b32 [c], 7;
    .param .b64 d; st.param.b64 [d], %d1; .param .b64 e; st.param.b64 [e], 1;
    call.uni __assertfail, (a, b, c, d, e); }
  ret;
}
"""
ASSERT = (cuda.CUresult.CUDA_ERROR_ASSERT,)


@pytest.fixture
def module(context: Any) -> Any:
    """Load the kernels that print."""
    return ok(cuda.cuModuleLoadData(KERNELS))


def _launch(module: Any, name: bytes, blocks: int = 1, value: int | None = None, stream: Any = 0) -> None:
    function = ok(cuda.cuModuleGetFunction(module, name))
    parameters = 0 if value is None else ((value,), (ctypes.c_uint,))
    ok(cuda.cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, stream, parameters, 0))


def _lines(value: int, blocks: int) -> str:
    return "".join(f"block {block} {value}\n" for block in range(blocks))


@pytest.mark.parametrize("how", ["context", "stream", "event", "copy", "free"])
def test_text_comes_with_the_next_call_that_waits(module: Any, how: str, capfd: pytest.CaptureFixture[str]) -> None:
    address, stream, event = ok(cuda.cuMemAlloc(4)), ok(cuda.cuStreamCreate(0)), ok(cuda.cuEventCreate(0))
    _launch(module, b"show", 3, 5, stream)
    ok(cuda.cuEventRecord(event, stream))
    assert capfd.readouterr().out == ""
    if how == "context":
        ok(cuda.cuCtxSynchronize())
    elif how == "stream":
        ok(cuda.cuStreamSynchronize(stream))
    elif how == "event":
        ok(cuda.cuEventSynchronize(event))
    elif how == "copy":
        ok(cuda.cuMemcpyDtoH(bytearray(4), address, 4))
    else:
        ok(cuda.cuMemFree(address))
    assert capfd.readouterr().out == _lines(5, 3)
    ok(cuda.cuCtxSynchronize())
    assert capfd.readouterr().out == ""


def test_text_longer_than_a_record(module: Any, capfd: pytest.CaptureFixture[str]) -> None:
    _launch(module, b"show", 20_000, 7)
    ok(cuda.cuCtxSynchronize())
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(_lines(7, 20_000).splitlines())  # in any order


def test_of_too_much_text_the_oldest_is_lost(module: Any, capfd: pytest.CaptureFixture[str]) -> None:
    for value in range(1000, 1100):
        _launch(module, b"show", 1000, value)
    ok(cuda.cuCtxSynchronize())
    text = capfd.readouterr().out
    everything = "".join(_lines(value, 1000) for value in range(1000, 1100))
    assert len(everything) > 1 << 20 >= len(text) > (1 << 20) - 100
    lines, first = text.splitlines(), int(text.split()[2])
    launches = [int(line.split()[2]) for line in lines]
    assert launches == sorted(launches)
    whole = "".join(_lines(value, 1000) for value in range(first + 1, 1100)).splitlines()
    assert sorted(line for line, launch in zip(lines, launches, strict=True) if launch > first) == sorted(whole)


def test_a_context_that_ends_prints(devices: None, capfd: pytest.CaptureFixture[str]) -> None:
    context = ok(cuda.cuCtxCreate(None, 0, 0))
    _launch(ok(cuda.cuModuleLoadData(KERNELS)), b"show", 2, 9)
    ok(cuda.cuCtxDestroy(context))
    assert capfd.readouterr().out == _lines(9, 2)


def test_contexts_print_their_own(module: Any, devices: None, capfd: pytest.CaptureFixture[str]) -> None:
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    _launch(ok(cuda.cuModuleLoadData(KERNELS)), b"show", 1, 1)
    ok(cuda.cuCtxPopCurrent())
    _launch(module, b"show", 1, 2)
    ok(cuda.cuCtxSynchronize())
    assert capfd.readouterr().out == _lines(2, 1)
    ok(cuda.cuCtxDestroy(other))
    assert capfd.readouterr().out == _lines(1, 1)


def test_a_failed_assertion(module: Any, capfd: pytest.CaptureFixture[str]) -> None:
    _launch(module, b"show", 1, 4)
    _launch(module, b"fail", 2)
    assert cuda.cuCtxSynchronize() == ASSERT
    out, err = capfd.readouterr()
    assert out == _lines(4, 1)
    assert err == "".join(
        f"x < 3:7: x < 3: block: [{block},0,0], thread: [0,0,0] Assertion `x < 3` failed.\n" for block in range(2)
    )
    assert cuda.cuCtxSynchronize() == ASSERT
    assert cuda.cuMemAlloc(4)[:1] == ASSERT


def test_a_closed_standard_output_loses_the_text_only(module: Any) -> None:
    _launch(module, b"show", 1, 4)
    kept = os.dup(1)
    os.close(1)
    try:
        answer = cuda.cuCtxSynchronize()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    ok(answer)


def test_a_full_standard_output_holds_only_the_call_that_waits(module: Any) -> None:
    context, address = ok(cuda.cuCtxGetCurrent()), ok(cuda.cuMemAlloc(4))
    _launch(module, b"show", 20_000, 7)
    answers: list[Any] = []

    def synchronize() -> None:
        ok(cuda.cuCtxSetCurrent(context))
        answers.append(cuda.cuCtxSynchronize())

    def copy() -> None:
        ok(cuda.cuCtxSetCurrent(context))
        answers.append(cuda.cuMemcpyDtoH(bytearray(4), address, 4))

    printing, copying = Thread(target=synchronize, daemon=True), Thread(target=copy, daemon=True)
    reading, writing = os.pipe()
    kept = os.dup(1)
    os.dup2(writing, 1)
    try:
        printing.start()
        text = os.read(reading, 1)  # it has begun, and the pipe does not hold all of the text
        copying.start()
        copying.join(30)
        done = len(answers)
        while len(text) < len(_lines(7, 20_000)):
            text += os.read(reading, 1 << 16)
    finally:
        os.dup2(kept, 1)
        for descriptor in (kept, reading, writing):
            os.close(descriptor)
    printing.join(30)
    assert done == 1
    assert sorted(text.decode().splitlines()) == sorted(_lines(7, 20_000).splitlines())
    assert [int(answer[0]) for answer in answers] == [0, 0]
