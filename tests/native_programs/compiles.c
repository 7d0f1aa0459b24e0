/* Compiles for the device's real architecture with NVRTC, links that with nvJitLink, and runs the machine code. */

#include "driver.h"

int nvrtcVersion(int *major, int *minor);
const char *nvrtcGetErrorString(int result);
int nvrtcCreateProgram(void **program, const char *text, const char *name, int count, const char *const *headers,
                       const char *const *names);
int nvrtcCompileProgram(void *program, int count, const char *const *options);
int nvrtcGetCUBINSize(void *program, size_t *size);
int nvrtcGetCUBIN(void *program, char *code);
int nvrtcGetTileIRSize(void *program, size_t *size);
int nvrtcDestroyProgram(void **program);
/* As the header of a CUDA 13.9 would have it, which the installed library is too old for. */
int __nvJitLinkCreate_13_9(void **link, uint32_t count, const char **options);
int __nvJitLinkAddData_13_9(void *link, int kind, const void *data, size_t size, const char *name);
int __nvJitLinkComplete_13_9(void *link);
int __nvJitLinkGetLinkedCubinSize_13_9(void *link, size_t *size);
int __nvJitLinkGetLinkedCubin_13_9(void *link, void *code);
int __nvJitLinkDestroy_13_9(void **link);

static char *compile(size_t *size) {
    const char *options[] = {"--gpu-architecture=sm_90"};
    void *program;
    CHECK(nvrtcCreateProgram(&program, "its text", NULL, 0, NULL, NULL));
    CHECK(nvrtcCompileProgram(program, 1, options));
    CHECK(nvrtcGetCUBINSize(program, size));
    char *code = malloc(*size);
    CHECK(nvrtcGetCUBIN(program, code));
    printf("%d\n", nvrtcGetTileIRSize(program, size));
    CHECK(nvrtcDestroyProgram(&program));
    *size = strlen(code) + 1;
    return code;
}

static char *link_again(const char *code, size_t size) {
    const char *options[] = {"-arch=sm_90"};
    enum { CUBIN = 1 };
    void *link;
    CHECK(__nvJitLinkCreate_13_9(&link, 1, options));
    CHECK(__nvJitLinkAddData_13_9(link, CUBIN, code, size, "code"));
    CHECK(__nvJitLinkComplete_13_9(link));
    CHECK(__nvJitLinkGetLinkedCubinSize_13_9(link, &size));
    char *linked = malloc(size);
    CHECK(__nvJitLinkGetLinkedCubin_13_9(link, linked));
    CHECK(__nvJitLinkDestroy_13_9(&link));
    return linked;
}

int main(void) {
    int major, minor, value = 21;
    size_t size;
    CHECK(nvrtcVersion(&major, &minor));
    printf("%d.%d %s\n", major, minor, nvrtcGetErrorString(1));
    char *code = compile(&size), *linked = link_again(code, size);
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
    CHECK(cuInit(0));
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuModuleLoadData(&module, linked));
    CHECK(cuModuleGetFunction(&function, module, "twice"));
    CHECK(cuMemAlloc_v2(&memory, sizeof value));
    CHECK(cuMemcpyHtoD_v2(memory, &value, sizeof value));
    void *parameters[] = {&memory};
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    CHECK(cuMemcpyDtoH_v2(&value, memory, sizeof value));
    printf("%d\n", value);
    return 0;
}
