/* A client in C that does one command a line, as client_program.py does: its steps have the same names and results.
 *
 * It is linked with nothing but libcuda.so.1, and declares itself what it calls of cuda.h. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 65536
#define OUTSIDE 0x700000000000ull

typedef int CUresult;
typedef int CUdevice;
typedef void *CUhandle;
typedef unsigned long long CUdeviceptr;

extern CUresult cuInit(unsigned);
extern CUresult cuGetErrorName(CUresult, const char **);
extern CUresult cuDeviceGetAttribute(int *, int, CUdevice);
extern CUresult cuDevicePrimaryCtxRetain(CUhandle *, CUdevice);
extern CUresult cuCtxSetCurrent(CUhandle);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuMemGetInfo_v2(size_t *, size_t *);
extern CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
extern CUresult cuMemFree_v2(CUdeviceptr);
extern CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
extern CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
extern CUresult cuModuleLoadData(CUhandle *, const void *);
extern CUresult cuModuleGetFunction(CUhandle *, CUhandle, const char *);
extern CUresult cuLaunchKernel(CUhandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUhandle,
                               void **, void **);

static const char ADD_ONE[] =
    ".version 7.0\n.target sm_60\n.address_size 64\n"
    ".visible .entry add_one(.param .u64 data, .param .u32 n) {\n"
    "    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .f32 %f<3>;\n"
    "    ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [n];\n"
    "    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "    mad.lo.s32 %r5, %r2, %r3, %r4;\n"
    "    setp.ge.s32 %p1, %r5, %r1;\n"
    "    @%p1 bra DONE;\n"
    "    cvta.to.global.u64 %rd1, %rd1;\n"
    "    mul.wide.s32 %rd2, %r5, 4; add.s64 %rd3, %rd1, %rd2;\n"
    "    ld.global.f32 %f1, [%rd3]; add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%rd3], %f2;\n"
    "DONE:\n"
    "    ret;\n"
    "}\n";

static CUhandle function;
static float host[COUNT];

static const char *name_of(CUresult result)
{
    const char *name = "?";
    cuGetErrorName(result, &name);
    return name;
}

static CUresult launch(CUdeviceptr data, unsigned count, unsigned blocks, unsigned threads)
{
    void *parameters[] = {&data, &count};
    CUhandle module;
    CUresult result = 0;
    if (!function && !(result = cuModuleLoadData(&module, ADD_ONE)))
        result = cuModuleGetFunction(&function, module, "add_one");
    return result ? result : cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL);
}

static void add(void)
{
    CUdeviceptr data = 0;
    CUresult launched, synchronized;
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)i;
    cuMemAlloc_v2(&data, sizeof host);
    cuMemcpyHtoD_v2(data, host, sizeof host);
    launched = launch(data, COUNT, COUNT / 256, 256);
    synchronized = cuCtxSynchronize();
    cuMemcpyDtoH_v2(host, data, sizeof host);
    cuMemFree_v2(data);
    for (int i = 0; i < COUNT; i++)
        wrong += host[i] != (float)i + 1;
    printf("%s %s wrong=%d\n", name_of(launched), name_of(synchronized), wrong);
}

int main(void)
{
    char line[256];
    while (fgets(line, sizeof line, stdin) && strncmp(line, "exit", 4)) {
        const char *word = strtok(line, " \n"), *argument = strtok(NULL, " \n");
        CUhandle context;
        CUresult result;
        if (!strcmp(word, "init")) {
            puts(name_of(cuInit(0)));
        } else if (!strcmp(word, "ctx")) {
            function = NULL;
            if (!(result = cuDevicePrimaryCtxRetain(&context, atoi(argument))))
                result = cuCtxSetCurrent(context);
            puts(name_of(result));
        } else if (!strcmp(word, "sm")) {
            int count = -1;
            cuDeviceGetAttribute(&count, 16, 0); /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
            printf("%d\n", count);
        } else if (!strcmp(word, "mem")) {
            size_t available = 0, total = 0;
            cuMemGetInfo_v2(&available, &total);
            printf("%zu %zu\n", available >> 20, total >> 20);
        } else if (!strcmp(word, "alloc")) {
            CUdeviceptr allocated = 0;
            result = cuMemAlloc_v2(&allocated, strtoull(argument, NULL, 10));
            printf("%s %#llx\n", name_of(result), allocated);
        } else if (!strcmp(word, "add")) {
            add();
        } else if (!strcmp(word, "illegal")) {
            puts(name_of(launch(OUTSIDE, 1, 1, 32)));
        } else if (!strcmp(word, "sync")) {
            puts(name_of(cuCtxSynchronize()));
        } else {
            puts("no such step");
        }
        fflush(stdout);
    }
    return 0;
}
