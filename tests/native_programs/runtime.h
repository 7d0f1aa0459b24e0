/* What the programs here use of the CUDA runtime, declared as its reference manual has it, and what a compiler of CUDA C++
 * puts into each program: the registration of its kernels and variables (crt/host_runtime.h of the toolkit). */

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned x, y, z;
} dim3;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

typedef struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    void *attributes;
    unsigned attribute_count;
} cudaLaunchConfig_t;
typedef struct {
    void *func;
    dim3 grid, block;
    unsigned shared_bytes;
    void **parameters, **extra;
} cudaKernelNodeParams;

int cudaMalloc(void **address, size_t size);
int cudaFree(void *address);
int cudaMemcpy(void *to, const void *from, size_t size, int kind);
int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset, int kind);
int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t offset, int kind);
int cudaGetSymbolAddress(void **address, const void *symbol);
int cudaGetSymbolSize(size_t *size, const void *symbol);
int cudaDeviceSynchronize(void);
int cudaDeviceReset(void);
int cudaSetDevice(int device);
int cudaGetDeviceCount(int *count);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
const char *cudaGetErrorName(int error);
const char *cudaGetErrorString(int error);
int cudaRuntimeGetVersion(int *version);
int cudaLaunchKernel(const void *func, dim3 grid, dim3 block, void **parameters, size_t shared_bytes, cudaStream_t stream);
int cudaLaunchKernel_ptsz(const void *func, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
                          cudaStream_t stream);
int cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **parameters);
int cudaLaunchCooperativeKernel(const void *func, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
                                cudaStream_t stream);
int cudaFuncGetAttributes(void *attributes, const void *func);
int cudaFuncSetAttribute(const void *func, int attribute, int value);
int cudaFuncSetCacheConfig(const void *func, int config);
int cudaFuncGetName(const char **name, const void *func);
int cudaFuncGetParamInfo(const void *func, size_t index, size_t *offset, size_t *size);
int cudaGetFuncBySymbol(void **function, const void *symbol);
int cudaGetKernel(void **kernel, const void *func);
int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device);
int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *size, const void *func, int blocks, int block_size);
int cudaOccupancyMaxActiveClusters(int *clusters, const void *func, const cudaLaunchConfig_t *config);
int cudaOccupancyMaxPotentialClusterSize(int *size, const void *func, const cudaLaunchConfig_t *config);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *func, int block_size, size_t shared_bytes);
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *status);
int cudaGetExportTable(const void **table, const void *id);
int cudaGetDeviceProperties(void *properties, int device);
int cudaStreamCreate(cudaStream_t *stream);
int cudaStreamSynchronize_ptsz(cudaStream_t stream);
int cudaMemcpyAsync_ptsz(void *to, const void *from, size_t size, int kind, cudaStream_t stream);
int cudaGraphCreate(cudaGraph_t *graph, unsigned flags);
int cudaGraphDestroy(cudaGraph_t graph);
int cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies, size_t count,
                           const cudaKernelNodeParams *parameters);
int cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams *parameters);
int cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags);
int cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int thread_limit, void *thread,
                            void *block, dim3 *block_size, dim3 *grid_size, int *warp_size);
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int is_external, size_t size,
                       int is_constant, int is_global);
void __cudaRegisterManagedVar(void **handle, void **place, char *address, const char *name, int is_external, size_t size,
                              int is_constant, int is_global);
char __cudaInitModule(void **handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream);
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);
int __cudaGetKernel(void **kernel, const void *func);
int __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **parameters, size_t shared_bytes, cudaStream_t stream);

/* __fatBinC_Wrapper_t (fatbinary_section.h) */
typedef struct {
    int magic, version;
    const void *data;
    void *others;
} Wrapper;

#define CHECK(call)                                                                                                     \
    do {                                                                                                                \
        int result_ = (call);                                                                                           \
        if (result_ != 0) {                                                                                             \
            fprintf(stderr, "line %d: %s: %d %s\n", __LINE__, #call, result_, cudaGetErrorName(result_));               \
            exit(1);                                                                                                    \
        }                                                                                                               \
    } while (0)
#define EXPECT(condition)                                                                                               \
    do {                                                                                                                \
        if (!(condition)) {                                                                                             \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #condition);                                                 \
            exit(1);                                                                                                    \
        }                                                                                                               \
    } while (0)
