"""Fat binaries as nvcc writes them, of the kernel of registered.c."""

from __future__ import annotations

import struct

import lz4.block

_TEXT = """
.version 8.0
.target sm_80
.address_size 64
.visible .const .align 4 .b8 factor[4];
.visible .global .align 4 .u32 calls;
.visible .global .attribute(.managed) .align 4 .u32 total;
.visible .entry scale(.param .u64 values)
{
    .reg .b64 %d<5>; .reg .b32 %r<6>; .reg .pred %p;
    ld.param.u64 %d1, [values]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2;
    ld.global.u32 %r2, [%d3]; ld.const.u32 %r3, [factor]; mul.lo.u32 %r2, %r2, %r3; st.global.u32 [%d3], %r2;
    setp.ne.u32 %p, %r1, 0; @%p bra END;
    ld.global.u32 %r4, [calls]; add.u32 %r4, %r4, 1; st.global.u32 [calls], %r4;
    ld.global.u32 %r5, [total]; add.u32 %r5, %r5, 5; st.global.u32 [total], %r5;
END: ret;
}
"""
_NESTED = (
    _TEXT
    + """
.extern .func (.param .b64 buffer) __cudaCDP2GetParameterBufferV2(.param .b64 kernel, .param .b32 shape);
.visible .entry parent()
{
    .reg .b64 %d<2>; .param .b64 buffer; .param .b64 kernel; .param .b32 shape;
    mov.u64 %d1, scale; st.param.b64 [kernel], %d1; st.param.b32 [shape], 1;
    call (buffer), __cudaCDP2GetParameterBufferV2, (kernel, shape); ret;
}
"""
)
_PTX, _CUBIN = 1, 2
_PLAIN, _LZ4 = 0x11, 0x2011


def _binary(kind: int, flags: int, data: bytes, compressed: int = 0, whole: int = 0) -> bytes:
    data += bytes(-len(data) % 8)
    header = struct.pack("<HHIQI8xI8xQ8xQ", kind, 0x101, 64, len(data), compressed, 80, flags, whole)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 + len(data)) + header + data


def plain() -> bytes:
    """Return a fat binary with PTX."""
    return _binary(_PTX, _PLAIN, _TEXT.encode() + b"\0")


def compress() -> bytes:
    """Return a fat binary with PTX that is compressed with LZ4."""
    text = _TEXT.encode() + b"\0"
    block = lz4.block.compress(text, store_size=False)
    return _binary(_PTX, _LZ4, block, len(block), len(text))


def nested() -> bytes:
    """Return a fat binary with the PTX of a kernel that launches the other."""
    return _binary(_PTX, _PLAIN, _NESTED.encode() + b"\0")


def without_ptx() -> bytes:
    """Return a fat binary with machine code only."""
    return _binary(_CUBIN, _PLAIN, b"\x7fELF" + bytes(60))
