"""Add the grid synchronisation of the device runtime (libcudadevrt), in PTX, to modules that declare its functions.

The blocks of a cooperative launch synchronize in its workspace. The second word of the workspace counts their
arrivals as cooperative groups of CUDA 11 and newer do: the block that completes the count flips the word's highest
bit, and the other blocks wait for this.
"""

from pympsd.vocabulary.device_runtime import GRID_FUNCTIONS
from pympsd_server.ptx.syntax.parser import parse_module
from pympsd_server.ptx.syntax.tree import Module

_GRID_SYNCHRONISATION = """
.version 7.0
.target sm_60
.address_size 64

// The workspace of a cooperative launch for cudaCGScopeGrid; else 0.
.func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
    .reg .b64 %workspace, %low;
    .reg .b32 %half, %scope;
    .reg .pred %grid;
    mov.b32 %half, %envreg1;
    cvt.u64.u32 %workspace, %half;
    shl.b64 %workspace, %workspace, 32;
    mov.b32 %half, %envreg2;
    cvt.u64.u32 %low, %half;
    or.b64 %workspace, %workspace, %low;
    ld.param.b32 %scope, [scope];
    setp.eq.s32 %grid, %scope, 1;
    selp.b64 %workspace, %workspace, 0, %grid;
    st.param.b64 [handle], %workspace;
    ret;
}

// cudaSuccess, or cudaErrorInvalidValue for a handle of 0.
.func (.param .b32 error) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
    .reg .b64 %workspace;
    .reg .b32 %x, %y, %z, %arrival, %before, %now;
    .reg .pred %is;
    ld.param.b64 %workspace, [handle];
    setp.eq.u64 %is, %workspace, 0;
    @%is bra NONE;
    bar.sync 0;
    mov.u32 %x, %tid.x;
    mov.u32 %y, %tid.y;
    mov.u32 %z, %tid.z;
    or.b32 %x, %x, %y;
    or.b32 %x, %x, %z;
    setp.ne.u32 %is, %x, 0;
    @%is bra MET;
    mov.u32 %x, %ctaid.x;
    mov.u32 %y, %ctaid.y;
    mov.u32 %z, %ctaid.z;
    or.b32 %arrival, %x, %y;
    or.b32 %arrival, %arrival, %z;
    setp.ne.u32 %is, %arrival, 0;
    mov.u32 %x, %nctaid.x;
    mov.u32 %y, %nctaid.y;
    mov.u32 %z, %nctaid.z;
    mul.lo.u32 %x, %x, %y;
    mul.lo.u32 %x, %x, %z;
    sub.u32 %x, 0x80000001, %x;
    selp.u32 %arrival, 1, %x, %is;
    membar.gl;
    atom.global.add.u32 %before, [%workspace+4], %arrival;
WAIT:
    ld.volatile.global.u32 %now, [%workspace+4];
    xor.b32 %now, %now, %before;
    setp.ge.s32 %is, %now, 0;
    @%is bra WAIT;
    membar.gl;
MET:
    bar.sync 0;
    st.param.b32 [error], 0;
    ret;
NONE:
    st.param.b32 [error], 1;
    ret;
}
"""


def link_device_library(module: Module) -> None:
    """Add the bodies of the functions of grid synchronisation that ``module`` declares without a body."""
    declared = [f for name in GRID_FUNCTIONS if (f := module.functions.get(name)) is not None and f.body is None]
    if declared:
        library = parse_module(_GRID_SYNCHRONISATION).functions
        module.functions.update((function.name, library[function.name]) for function in declared)
