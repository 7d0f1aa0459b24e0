/* What nvcc makes of a program with a kernel, a constant, a variable and a managed variable, written by hand:
 *
 *     __constant__ int factor; __device__ int calls; __managed__ int total;
 *     __global__ void scale(int *values) { values[threadIdx.x] *= factor; if (threadIdx.x == 0) { calls++; total += 5; } }
 *
 * The fat binary is in a file that the first argument names. The second argument is "whole"; "linked": the fat binary is
 * a part of a program that nvcc -rdc=true has linked; "refused": it has no PTX; "nested": linked, and a kernel launches
 * another; or "faulted": show what calls return after a fault. Prints "done", or the name of the error. */

#include "runtime.h"

#include <pthread.h>

enum { COUNT = 32, INVALID_SYMBOL = 13, INVALID_FUNCTION = 98, NO_KERNEL_IMAGE = 209, INVALID_HANDLE = 400, NOT_SUPPORTED = 801 };
enum { MAJOR_AT = 360, PROPERTIES_12 = 728, PROPERTIES_13 = 1008 }; /* cudaDeviceProp: its major, its size (12: CUDA 11's) */

static int factor, calls;
static int *total;
static void **handle;
static Wrapper wrapper = {0x466243b1, 1, NULL, NULL};

static void read_fat_binary(const char *name, int is_linked) {
    static const uint64_t nothing[2] = {0x00100001ba55ed50, 0}; /* a fat binary with no image */
    static char data[1 << 16];
    static void *parts[] = {data, NULL};
    FILE *file = fopen(name, "rb");
    EXPECT(file != NULL && fread(data, 1, sizeof data, file) > 0);
    fclose(file);
    wrapper.data = is_linked ? (const void *)nothing : data;
    if (is_linked) {
        wrapper.version = 2;
        wrapper.others = parts;
    }
}

/* Return the error of an impossible grid or block: CUDA 13 reports the driver's. */
static int configuration_error(void) {
    int version = 0;
    CHECK(cudaRuntimeGetVersion(&version));
    return version < 13000 ? 9 : 1;
}

static void unregister(void) {
    __cudaUnregisterFatBinary(handle);
}

static void scale(int *values) { /* the host function of the kernel */
    static void *kernel;
    void *parameters[] = {&values};
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    if (kernel == NULL)
        CHECK(__cudaGetKernel(&kernel, (void *)scale));
    CHECK(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &stream));
    __cudaLaunchKernel(kernel, grid, block, parameters, shared_bytes, stream);
}

static void register_all(void) {
    handle = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(handle, (char *)scale, (char *)"scale", "scale", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterVar(handle, (char *)&factor, (char *)"factor", "factor", 0, sizeof factor, 1, 0);
    __cudaRegisterVar(handle, (char *)&calls, (char *)"calls", "calls", 0, sizeof calls, 0, 0);
    __cudaRegisterManagedVar(handle, (void **)&total, (char *)"total", "total", 0, sizeof *total, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
    atexit(unregister);
}

static void call_scale(dim3 grid, dim3 block, int *values) { /* scale<<<grid, block>>>(values) */
    if (__cudaPushCallConfiguration(grid, block, 0, NULL) == 0)
        scale(values);
}

static const dim3 ONE = {1, 1, 1}, BLOCK = {COUNT, 1, 1};

static void test_launches(int *memory) {
    void *parameters[] = {&memory};
    int values[COUNT], three = 3, count;
    cudaLaunchConfig_t config = {ONE, BLOCK, 0, NULL, NULL, 0};
    for (int index = 0; index < COUNT; index++)
        values[index] = index;
    CHECK(cudaMemcpy(memory, values, sizeof values, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpyToSymbol(&factor, &three, sizeof three, 0, cudaMemcpyHostToDevice));
    call_scale(ONE, BLOCK, memory);
    CHECK(cudaGetLastError());
    CHECK(cudaLaunchKernel((void *)scale, ONE, BLOCK, parameters, 0, NULL));
    CHECK(cudaLaunchKernelExC(&config, (void *)scale, parameters));
    CHECK(cudaLaunchCooperativeKernel((void *)scale, ONE, BLOCK, parameters, 0, NULL));
    CHECK(cudaLaunchKernel_ptsz((void *)scale, ONE, BLOCK, parameters, 0, NULL));
    CHECK(cudaMemcpyAsync_ptsz(values, memory, sizeof values, cudaMemcpyDeviceToHost, NULL));
    CHECK(cudaStreamSynchronize_ptsz(NULL));
    EXPECT(values[COUNT - 1] == 243 * (COUNT - 1));
    CHECK(cudaMemcpyFromSymbol(&count, &calls, sizeof count, 0, cudaMemcpyDeviceToHost));
    EXPECT(count == 5);
    EXPECT(total == NULL && __cudaInitModule(handle) && *total == 25);
}

static void test_symbols(void) {
    void *address, *end;
    size_t size;
    CHECK(cudaGetSymbolAddress(&address, &calls));
    CHECK(cudaGetSymbolSize(&size, &calls));
    EXPECT(address != NULL && size == sizeof calls);
    CHECK(cudaGetSymbolAddress(&end, &total));
    EXPECT(end == total);
    CHECK(cudaGetSymbolAddress(&end, total)); /* what a compiler makes of the name of a managed variable */
    EXPECT(end == total);
    EXPECT(cudaGetSymbolAddress(&address, &wrapper) == INVALID_SYMBOL && cudaGetLastError() == INVALID_SYMBOL);
    EXPECT(cudaMemcpyToSymbol(&calls, &size, sizeof size, 0, cudaMemcpyHostToDevice) == 1);
    EXPECT(cudaGetLastError() == 1 && cudaGetLastError() == 0);
}

static void test_errors(int *memory) {
    void *parameters[] = {&memory}, *function;
    int status = -1;
    call_scale(ONE, (dim3){4096, 1, 1}, memory);
    EXPECT(cudaPeekAtLastError() == configuration_error() && cudaGetLastError() == configuration_error());
    EXPECT(cudaLaunchKernel((void *)test_symbols, ONE, ONE, parameters, 0, NULL) == INVALID_HANDLE);
    EXPECT(cudaLaunchKernel(NULL, ONE, ONE, parameters, 0, NULL) == INVALID_FUNCTION);
    EXPECT(cudaGetLastError() == INVALID_FUNCTION && cudaGetLastError() == 0);
    EXPECT(strcmp(cudaGetErrorName(9), "cudaErrorInvalidConfiguration") == 0);
    EXPECT(strcmp(cudaGetErrorString(98), "invalid device function") == 0);
    EXPECT(strcmp(cudaGetErrorName(12345), "unrecognized error code") == 0);
    CHECK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, 0, &status));
    EXPECT(function != NULL && status == 0);
    CHECK(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, 0, &status));
    EXPECT(function == NULL && status == 1);
    EXPECT(cudaGetExportTable((const void **)&function, &status) == NOT_SUPPORTED);
    EXPECT(cudaGetLastError() == NOT_SUPPORTED);
}

/* Recorded: H200, driver 580.159, CUDA 13.0. cudaOccupancyMax*Cluster*, cudaKernelSetAttributeForDevice and the address of
 * a variable were not asked there. */
static void test_what_is_not_a_kernel(void) {
    static struct {
        size_t sizes[3];
        int fields[30];
    } attributes;
    const void *wrong[] = {NULL, (void *)test_symbols, &calls};
    void *function;
    cudaLaunchConfig_t config = {ONE, BLOCK, 0, NULL, NULL, 0};
    cudaGraph_t graph;
    cudaGraphNode_t node;
    const char *name;
    int number;
    size_t size;
    CHECK(cudaGraphCreate(&graph, 0));
    for (size_t index = 0; index < sizeof wrong / sizeof *wrong; index++) {
        const void *host = wrong[index];
        const int expected = host == NULL ? INVALID_FUNCTION : INVALID_HANDLE;
        cudaKernelNodeParams parameters = {(void *)host, ONE, BLOCK, 0, NULL, NULL};
        EXPECT(cudaFuncGetAttributes(&attributes, host) == expected);
        EXPECT(cudaFuncSetAttribute(host, 8, 1 << 16) == expected);
        EXPECT(cudaFuncSetCacheConfig(host, 0) == expected);
        EXPECT(cudaFuncGetName(&name, host) == expected);
        EXPECT(cudaKernelSetAttributeForDevice((void *)host, 8, 1 << 16, 0) == expected);
        EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&number, host, 32, 0) == expected);
        EXPECT(cudaOccupancyAvailableDynamicSMemPerBlock(&size, host, 1, 32) == expected);
        EXPECT(cudaOccupancyMaxActiveClusters(&number, host, &config) == expected);
        EXPECT(cudaOccupancyMaxPotentialClusterSize(&number, host, &config) == expected);
        EXPECT(cudaGraphAddKernelNode(&node, graph, NULL, 0, &parameters) == expected);
        EXPECT(cudaLaunchKernelExC(&config, host, NULL) == expected);
        EXPECT(cudaLaunchKernel(host, ONE, BLOCK, NULL, 0, NULL) == expected);
        EXPECT(cudaLaunchCooperativeKernel(host, ONE, BLOCK, NULL, 0, NULL) == expected);
        EXPECT(cudaFuncGetParamInfo(host, 0, &size, &size) == expected);
        EXPECT(cudaGetLastError() == expected);
        EXPECT(cudaGetFuncBySymbol(&function, host) == INVALID_FUNCTION);
    }
    CHECK(cudaGraphDestroy(graph));
}

static void test_kernels_by_address(int *memory) {
    void *parameters[] = {&memory};
    cudaKernelNodeParams node_parameters = {(void *)scale, ONE, BLOCK, 0, parameters, NULL}, read;
    cudaGraph_t graph;
    cudaGraphNode_t node;
    cudaGraphExec_t executable;
    struct {
        size_t sizes[3];
        int fields[30];
    } attributes;
    int blocks, before, after;
    CHECK(cudaFuncGetAttributes(&attributes, (void *)scale));
    EXPECT(attributes.fields[0] == 1024);
    void *kernel;
    CHECK(cudaGetKernel(&kernel, (void *)scale));
    CHECK(cudaKernelSetAttributeForDevice(kernel, 8, 1 << 15, 0));
    EXPECT(cudaKernelSetAttributeForDevice(kernel, 8, 1 << 30, 0) == 1 && cudaGetLastError() == 1);
    CHECK(cudaFuncGetAttributes(&attributes, (void *)scale));
    EXPECT(attributes.fields[5] == 1 << 15); /* maxDynamicSharedSizeBytes */
    CHECK(cudaFuncSetAttribute((void *)scale, 8, 1 << 16)); /* cudaFuncAttributeMaxDynamicSharedMemorySize */
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (void *)scale, 1024, 0));
    EXPECT(blocks == 2);
    CHECK(cudaMemcpyFromSymbol(&before, &calls, sizeof before, 0, cudaMemcpyDeviceToHost));
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddKernelNode(&node, graph, NULL, 0, &node_parameters));
    CHECK(cudaGraphKernelNodeGetParams(node, &read));
    EXPECT(read.func == (void *)scale && read.block.x == COUNT);
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, NULL));
    CHECK(cudaMemcpyFromSymbol(&after, &calls, sizeof after, 0, cudaMemcpyDeviceToHost));
    EXPECT(after == before + 1);
}

static void *launch_in_thread(void *memory) {
    void *parameters[] = {&memory};
    for (int count = 0; count < 10; count++)
        CHECK(cudaLaunchKernel((void *)scale, ONE, BLOCK, parameters, 0, NULL));
    CHECK(cudaLaunchKernel((void *)scale, (dim3){0, 1, 1}, BLOCK, parameters, 0, NULL) == configuration_error() ? 0 : 1);
    EXPECT(cudaGetLastError() == configuration_error());
    return NULL;
}

static void test_threads(int *memory) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    int before, after;
    CHECK(cudaMemcpyFromSymbol(&before, &calls, sizeof before, 0, cudaMemcpyDeviceToHost));
    for (int index = 0; index < THREADS; index++)
        EXPECT(pthread_create(&threads[index], NULL, launch_in_thread, memory) == 0);
    for (int index = 0; index < THREADS; index++)
        EXPECT(pthread_join(threads[index], NULL) == 0);
    EXPECT(cudaGetLastError() == 0);
    CHECK(cudaMemcpyFromSymbol(&after, &calls, sizeof after, 0, cudaMemcpyDeviceToHost));
    EXPECT(after == before + 10 * THREADS);
}

static void test_properties(void) {
    /* More bytes than the version of the program has must not be written. */
    unsigned char properties[2048];
    int version;
    CHECK(cudaRuntimeGetVersion(&version));
    memset(properties, 0xA5, sizeof properties);
    CHECK(cudaGetDeviceProperties(properties, 0));
    size_t size = version >= 13000 ? PROPERTIES_13 : PROPERTIES_12;
    EXPECT(properties[size - 1] != 0xA5 && properties[size] == 0xA5);
    EXPECT(strcmp((char *)properties, "NVIDIA H200") == 0);
    EXPECT(*(int *)(properties + MAJOR_AT) == 9);
}

static void *driver_function(const char *name) {
    void *function;
    int status;
    CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, 0, &status));
    return function;
}

/* Print the result of each call after a fault. */
#define SHOW(call) printf("%s %d\n", #call, call)
static void show_fault(int *memory) {
    int (*cuDevicePrimaryCtxGetState)(int, unsigned *, int *) = driver_function("cuDevicePrimaryCtxGetState");
    int (*cuDevicePrimaryCtxReset)(int) = driver_function("cuDevicePrimaryCtxReset");
    int (*cuDevicePrimaryCtxRetain)(void **, int) = driver_function("cuDevicePrimaryCtxRetain");
    void *address, *context;
    unsigned flags;
    int active = -1;
    call_scale(ONE, BLOCK, (int *)8);
    SHOW(cudaDeviceSynchronize());
    SHOW(cudaMalloc(&address, 4));
    for (int again = 0; again < 2; again++) {
        SHOW(cudaDeviceReset());
        SHOW(cudaMalloc(&address, 4));
    }
    SHOW(cudaSetDevice(0));
    SHOW(cudaFree(0));
    SHOW(cudaDeviceSynchronize());
    cudaGetLastError();
    call_scale(ONE, BLOCK, memory);
    SHOW(cudaPeekAtLastError());
    SHOW(cudaDeviceSynchronize());
    SHOW(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active %d\n", active);
    SHOW(cuDevicePrimaryCtxReset(0));
    SHOW(cuDevicePrimaryCtxRetain(&context, 0));
    SHOW(cudaMalloc(&address, 4));
}

int main(int count, char **arguments) {
    int *memory;
    EXPECT(count == 3);
    int is_nested = strcmp(arguments[2], "nested") == 0;
    read_fat_binary(arguments[1], is_nested || strcmp(arguments[2], "linked") == 0);
    register_all();
    if (is_nested) {
        void *parameters[] = {&memory};
        int devices;
        CHECK(cudaGetDeviceCount(&devices));
        EXPECT(devices == 1 && cudaSetDevice(0) == NOT_SUPPORTED && cudaGetLastError() == NOT_SUPPORTED);
        EXPECT(cudaLaunchKernel((void *)scale, ONE, BLOCK, parameters, 0, NULL) == NOT_SUPPORTED);
        EXPECT(cudaMalloc((void **)&memory, COUNT) == NOT_SUPPORTED && cudaFree(NULL) == NOT_SUPPORTED);
        puts(cudaGetErrorName(cudaGetLastError()));
        return 0;
    }
    if (strcmp(arguments[2], "refused") == 0) {
        void *parameters[] = {&memory};
        for (int again = 0; again < 2; again++)
            EXPECT(cudaLaunchKernel((void *)scale, ONE, BLOCK, parameters, 0, NULL) == NO_KERNEL_IMAGE);
        puts(cudaGetErrorName(cudaGetLastError()));
        return 0;
    }
    CHECK(cudaMalloc((void **)&memory, COUNT * sizeof *memory));
    if (strcmp(arguments[2], "faulted") == 0)
        return show_fault(memory), 0;
    test_launches(memory);
    test_symbols();
    test_errors(memory);
    test_what_is_not_a_kernel();
    test_kernels_by_address(memory);
    test_threads(memory);
    test_properties();
    CHECK(cudaDeviceReset());
    CHECK(cudaMalloc((void **)&memory, COUNT * sizeof *memory));
    call_scale(ONE, BLOCK, memory);
    CHECK(cudaDeviceSynchronize());
    puts("done");
    return 0;
}
