/* What a C program can get wrong, names of all versions, and twenty threads: one process, many expectations. */

#include "driver.h"

#include <pthread.h>

typedef CUresult (*Function)();

CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context);
CUresult cuCtxSynchronize_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, void **green);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, void **graph);
CUresult cuMemAlloc(uint32_t *address, unsigned size);
CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count);
CUresult cuMemsetD8_v2_ptds(CUdeviceptr address, unsigned char value, size_t count);
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **parameters,
                             void **extra);
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuTexRefCreate(void **reference);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
CUresult cuGraphCreate(void **graph, unsigned flags);
CUresult cuGraphAddKernelNode(void **node, void *graph, void *const *dependencies, size_t count, const void *parameters);
CUresult cuGraphInstantiate(void **executable, void *graph, void **node, char *log, size_t size);
CUresult cuGraphExecUpdate(void *executable, void *graph, void **node, int *verdict);
CUresult cuGraphLaunch(void *executable, CUstream stream);

enum { NOT_INITIALIZED = 3, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

#define EXPECT(expected, call)                                                                                          \
    do {                                                                                                                \
        long result_ = (long)(call);                                                                                    \
        if (result_ != (long)(expected)) {                                                                              \
            fprintf(stderr, "line %d: %s: %ld, not %s\n", __LINE__, #call, result_, #expected);                        \
            failures++;                                                                                                 \
        }                                                                                                               \
    } while (0)

static int failures;
static CUfunction twice;

static void names(void) {
    void *address = NULL, *other = NULL;
    int status = -1;
    EXPECT(0, cuGetProcAddress_v2("cuMemAlloc", &address, 12000, 0, &status));
    EXPECT(1, address == (void *)cuMemAlloc_v2 && status == 0);
    EXPECT(0, cuGetProcAddress_v2("cuCtxCreate", &address, 11000, 0, NULL));
    EXPECT(1, address == (void *)cuCtxCreate_v2);
    EXPECT(0, cuGetProcAddress_v2("cuLaunchKernel", &address, 13000, 2, NULL));
    EXPECT(1, address == (void *)cuLaunchKernel_ptsz);
    EXPECT(0, cuGetProcAddress_v2("cuMemsetD8", &address, 13000, 2, NULL));
    EXPECT(1, address == (void *)cuMemsetD8_v2_ptds);
    EXPECT(0, cuGetProcAddress_v2("cuGetProcAddress", &address, 12000, 0, NULL));
    EXPECT(0, cuGetProcAddress_v2("cuGetProcAddress", &other, 11030, 0, NULL));
    EXPECT(1, address == (void *)cuGetProcAddress_v2 && other != address);
    EXPECT(NOT_FOUND, cuGetProcAddress_v2("cuGreenCtxCreate", &address, 11000, 0, &status));
    EXPECT(1, address == NULL && status == 2);
    EXPECT(NOT_FOUND, cuGetProcAddress_v2("cuNothing", &address, 13000, 0, &status));
    EXPECT(1, address == NULL && status == 1);
    EXPECT(NOT_FOUND, cuGetProcAddress_v2("", &address, 0, 0, &status));
    EXPECT(INVALID_VALUE, cuGetProcAddress_v2(NULL, &address, 13000, 0, NULL));
    EXPECT(INVALID_VALUE, cuGetProcAddress_v2("cuInit", NULL, 13000, 0, NULL));
}

static void *use_own_context(void *argument) {
    CUcontext context = NULL, current = NULL;
    CUdevice device;
    EXPECT(0, cuCtxGetCurrent(&current));
    EXPECT(1, current == NULL);
    EXPECT(INVALID_CONTEXT, cuCtxGetDevice(&device));
    EXPECT(0, cuCtxCreate_v2(&context, 0, 0));
    for (int turn = 0; turn < 20; turn++) {
        EXPECT(0, cuCtxGetCurrent(&current));
        EXPECT(1, current == context);
        EXPECT(0, cuCtxGetDevice(&device));
    }
    EXPECT(0, cuCtxDestroy_v2(context));
    return argument;
}

static void threads(void) {
    enum { THREADS = 20 };
    pthread_t ids[THREADS];
    for (int index = 0; index < THREADS; index++)
        pthread_create(&ids[index], NULL, use_own_context, NULL);
    for (int index = 0; index < THREADS; index++)
        pthread_join(ids[index], NULL);
}

static void old_graphs(CUdeviceptr memory) {
    struct {
        CUfunction function;
        unsigned sizes[7];
        void **parameters, **extra;
    } kernel = {twice, {1, 1, 1, 8, 1, 1, 0}, (void *[]){&memory}, NULL};
    void *graph, *node, *executable, *refused = &node;
    int verdict = -1, values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    char log[8] = "?";
    CHECK(cuMemcpyHtoD_v2(memory, values, sizeof values));
    EXPECT(0, cuGraphCreate(&graph, 0));
    EXPECT(0, cuGraphAddKernelNode(&node, graph, NULL, 0, &kernel));
    EXPECT(0, cuGraphInstantiate(&executable, graph, &refused, log, sizeof log));
    EXPECT(1, refused == NULL && log[0] == '\0');
    EXPECT(0, cuGraphExecUpdate(executable, graph, &refused, &verdict));
    EXPECT(0, verdict);
    EXPECT(0, cuGraphLaunch(executable, NULL));
    EXPECT(0, cuMemcpyDtoH_v2(values, memory, sizeof values));
    EXPECT(16, values[7]);
}

int main(void) {
    CUcontext context, other;
    CUdevice device = -1;
    CUmodule module;
    CUdeviceptr memory;
    CUstream stream;
    void *graph = &graph;
    const void *table = &table;
    uint32_t narrow;
    names();
    EXPECT(NOT_SUPPORTED, cuGetExportTable(&table, "0123456789abcdef"));
    EXPECT(1, table == NULL);
    EXPECT(NOT_INITIALIZED, cuDeviceGet(&device, 0));
    EXPECT(NOT_INITIALIZED, cuMemAlloc_v2(&memory, 64));
    EXPECT(INVALID_VALUE, cuInit(7));
    CHECK(cuInit(0));
    EXPECT(INVALID_VALUE, cuDeviceGet(NULL, 0));
    EXPECT(101, cuDeviceGet(&device, 99));
    EXPECT(INVALID_CONTEXT, cuMemAlloc_v2(&memory, 64));
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    EXPECT(0, cuCtxGetDevice_v2(&device, context));
    EXPECT(0, device);
    EXPECT(0, cuCtxSynchronize_v2(context));
    EXPECT(INVALID_CONTEXT, cuCtxSynchronize_v2((CUcontext)&device));
    EXPECT(INVALID_VALUE, cuMemAlloc_v2(NULL, 64));
    EXPECT(INVALID_VALUE, cuModuleLoadData(&module, NULL));
    CHECK(cuModuleLoadData(&module, TWICE));
    EXPECT(INVALID_VALUE, cuModuleGetFunction(&twice, module, NULL));
    EXPECT(NOT_FOUND, cuModuleGetFunction(&twice, module, "thrice"));
    CHECK(cuModuleGetFunction(&twice, module, "twice"));
    CHECK(cuMemAlloc_v2(&memory, 64));
    EXPECT(INVALID_VALUE, cuMemFree_v2(memory + 1));
    EXPECT(INVALID_HANDLE, cuLaunchKernel((CUfunction)&device, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    EXPECT(NOT_SUPPORTED, cuMemAlloc(&narrow, 64));
    EXPECT(NOT_SUPPORTED, cuTexRefCreate(&graph));
    EXPECT(NOT_SUPPORTED, cuTexRefCreate(&graph));
    EXPECT(0, cuProfilerStart());
    EXPECT(0, cuProfilerStop());

    CHECK(cuStreamCreate(&stream, 1));
    void *green = &green;
    EXPECT(0, cuStreamGetCtx_v2(stream, &other, &green));
    EXPECT(1, other == context && green == NULL);
    EXPECT(0, cuStreamBeginCapture_v2(stream, 0));
    EXPECT(0, cuStreamEndCapture(stream, NULL));

    unsigned bytes = 0;
    EXPECT(0, cuMemsetD8_v2_ptds(memory, 1, 64));
    EXPECT(0, cuLaunchKernel_ptsz(twice, 1, 1, 1, 8, 1, 1, 0, NULL, (void *[]){&memory}, NULL));
    EXPECT(0, cuStreamSynchronize_ptsz(NULL));
    EXPECT(0, cuMemcpyDtoH_v2(&bytes, memory, 4));
    EXPECT(0x02020202, bytes);
    old_graphs(memory);

    EXPECT(0, cuCtxPopCurrent_v2(&other));
    EXPECT(1, other == context);
    EXPECT(0, cuCtxPushCurrent_v2(context));
    EXPECT(0, cuCtxPopCurrent_v2(NULL));
    threads();
    EXPECT(0, cuCtxSetCurrent(context));
    CHECK(cuMemFree_v2(memory));
    EXPECT(INVALID_VALUE, cuMemFree_v2(memory));
    CHECK(cuCtxDestroy_v2(context));
    EXPECT(INVALID_CONTEXT, cuCtxSetCurrent(context));
    if (failures == 0)
        printf("as documented\n");
    return failures != 0;
}
