/* What the programs here use of the driver API, declared as its reference manual has it. */

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef uint64_t CUdeviceptr;

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult error, const char **text);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
CUresult cuGetExportTable(const void **table, const void *id);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **parameters,
                        void **extra);

#define CHECK(call)                                                                                                     \
    do {                                                                                                                \
        CUresult result_ = (call);                                                                                      \
        if (result_ != 0) {                                                                                             \
            const char *name_ = NULL;                                                                                   \
            cuGetErrorName(result_, &name_);                                                                            \
            fprintf(stderr, "%s: %d %s\n", #call, result_, name_ ? name_ : "?");                                       \
            exit(1);                                                                                                    \
        }                                                                                                               \
    } while (0)

/* twice(int *values): doubles the value of each thread of a block. */
static const char *const TWICE = ".version 7.0\n.target sm_60\n.address_size 64\n"
                                 ".visible .entry twice(.param .u64 values)\n"
                                 "{ .reg .b64 %d<4>; .reg .b32 %r<4>;\n"
                                 "ld.param.u64 %d1, [values]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4;\n"
                                 "add.u64 %d3, %d1, %d2; ld.global.u32 %r2, [%d3]; add.u32 %r2, %r2, %r2;\n"
                                 "st.global.u32 [%d3], %r2; ret; }\n";
