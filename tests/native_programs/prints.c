/* Prints on the host, on the device and on the host again: one order, whether stdout is a terminal or not. */

#include "driver.h"

static const char *const SPEAK = ".version 7.0\n.target sm_60\n.address_size 64\n"
                                 ".extern .func (.param .b32 count) vprintf (.param .b64 text, .param .b64 values);\n"
                                 ".global .align 1 .b8 text[8] = {100, 101, 118, 105, 99, 101, 10, 0};\n"
                                 ".visible .entry speak()\n"
                                 "{ .reg .b64 %d<3>; .reg .b32 %r1;\n"
                                 "mov.u64 %d1, text; cvta.global.u64 %d1, %d1; mov.u64 %d2, 0;\n"
                                 "{ .param .b64 a; .param .b64 b; .param .b32 c;\n"
                                 "st.param.b64 [a], %d1; st.param.b64 [b], %d2;\n"
                                 "call.uni (c), vprintf, (a, b); ld.param.b32 %r1, [c]; }\n"
                                 "ret; }\n";

int main(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v2(&context, 0, device));
    CHECK(cuModuleLoadData(&module, SPEAK));
    CHECK(cuModuleGetFunction(&function, module, "speak"));
    printf("before\n");
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cuCtxSynchronize());
    printf("after\n");
    return 0;
}
