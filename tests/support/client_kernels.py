"""The kernels of the client program, in two modules: most clients load only the first."""

from __future__ import annotations

HEADER = b".version 7.0\n.target sm_60\n.address_size 64\n"

BASIC = (
    HEADER
    + b"""
.visible .entry add_one(.param .u64 data, .param .u32 n) {
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .f32 %f<3>;
    ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.s32 %rd2, %r5, 4; add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3]; add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%rd3], %f2;
DONE:
    ret;
}
.visible .entry endless() {
    .reg .b32 %r<2>;
    mov.u32 %r1, 0;
AGAIN:
    add.u32 %r1, %r1, 1;
    bra AGAIN;
}
"""
)

MORE = (
    HEADER
    + b"""
.visible .entry wait_for_word(.param .u64 words) {
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words]; cvta.to.global.u64 %rd1, %rd1;
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;
    mul.lo.u32 %r3, %r1, %r2;
    st.global.u32 [%rd3+4], %r3;
    ret;
}
.visible .entry places(.param .u64 out, .param .u64 nanoseconds) {
    .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out]; cvta.to.global.u64 %rd1, %rd1; ld.param.u64 %rd2, [nanoseconds];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %smid;
    mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3;
    st.global.u32 [%rd4], %r2;
    mov.u64 %rd5, %globaltimer;
AGAIN:
    mov.u64 %rd6, %globaltimer;
    sub.u64 %rd7, %rd6, %rd5;
    setp.lt.u64 %p1, %rd7, %rd2;
    @%p1 bra AGAIN;
    ret;
}
.visible .entry busy(.param .u64 nanoseconds) {
    .reg .pred %p<2>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [nanoseconds];
    mov.u64 %rd2, %globaltimer;
AGAIN:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra AGAIN;
    ret;
}
.visible .entry store(.param .u64 address) {
    .reg .b32 %r<2>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [address]; cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, 1;
    st.global.u32 [%rd2], %r1;
    ret;
}
.visible .entry trapped() { trap; ret; }
"""
)

MODULES = (
    (BASIC, ("add_one", "endless")),
    (MORE, ("wait_for_word", "places", "busy", "store", "trapped")),
)

UNKNOWN_INSTRUCTION = HEADER + b".visible .entry k() { .reg .u32 %r1; frobnicate.u32 %r1; ret; }\n"

DYNAMIC_PARALLELISM = (
    HEADER
    + b"""
.extern .func (.param .b32 result) cudaLaunchDevice (.param .b64 parameters);
.visible .entry parent() {
    .reg .b32 %r<2>; .reg .b64 %rd<2>; .param .b64 given; .param .b32 got;
    mov.u64 %rd1, 0;
    st.param.b64 [given], %rd1;
    call.uni (got), cudaLaunchDevice, (given);
    ld.param.b32 %r1, [got];
    ret;
}
"""
)
