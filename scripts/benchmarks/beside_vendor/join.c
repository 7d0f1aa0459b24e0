/* A CUDA program that waits for a line, then gets to its first kernel as fast as it can.
 *
 *   join PTX    says `ok` with libcuda loaded but not initialised. `join` is answered by `ok` and four times, ns of
 *               CLOCK_MONOTONIC: before cuInit, after it, after the context is made, after the first kernel's end.
 *               It keeps its context until the end of its input. A failure is printed on standard error, status 1.
 *
 * No CUDA header is needed to build this (driver.h).
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define DRIVER(X) \
    X(Init, "cuInit", unsigned) \
    X(DeviceGet, "cuDeviceGet", CUdevice *, int) \
    X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", Handle *, CUdevice) \
    X(CtxSetCurrent, "cuCtxSetCurrent", Handle) \
    X(ModuleLoadData, "cuModuleLoadData", Handle *, const void *) \
    X(ModuleGetFunction, "cuModuleGetFunction", Handle *, Handle, const char *) \
    X(StreamCreate, "cuStreamCreate", Handle *, unsigned) \
    X(StreamSynchronize, "cuStreamSynchronize", Handle) \
    X(LaunchKernel, "cuLaunchKernel", Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
      Handle, void **, void **)

#include "../gpu/driver.h"

static void join(const char *ptx)
{
    CUdevice device;
    Handle context, module, function, stream;
    uint64_t ns = 0;
    void *parameters[] = {&ns};
    int64_t start = now(), initialised, connected;
    CHECK(Init, 0);
    initialised = now();
    CHECK(DeviceGet, &device, 0);
    CHECK(DevicePrimaryCtxRetain, &context, device);
    CHECK(CtxSetCurrent, context);
    connected = now();
    CHECK(ModuleLoadData, &module, ptx);
    CHECK(ModuleGetFunction, &function, module, "spin");
    CHECK(StreamCreate, &stream, 1); /* CU_STREAM_NON_BLOCKING */
    CHECK(LaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
    CHECK(StreamSynchronize, stream);
    printf("ok %lld %lld %lld %lld\n", (long long)start, (long long)initialised, (long long)connected,
           (long long)now());
}

int main(int argc, char **argv)
{
    char line[256];
    if (argc < 2)
        fail("usage: join PTX", "cannot be read");
    const char *ptx = read_ptx(argv[1]);
    load_driver();
    printf("ok\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "join\n"))
            fail("no such command", line);
        join(ptx);
        fflush(stdout);
    }
    return 0;
}
