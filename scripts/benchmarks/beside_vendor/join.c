/* A CUDA program that does nothing until it is told, then gets to its first kernel as fast as it can.
 *
 *   join PTX    says `ok` with libcuda loaded but not initialised. `join` is answered by `ok` and four times, ns of
 *               CLOCK_MONOTONIC: before cuInit, after it, after the context is made, after the first kernel's end.
 *               It keeps its context until the end of its input. A failure is told on standard error, status 1.
 *
 * The driver's functions are declared here and looked up in libcuda.so.1: no CUDA header is needed to build this.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult, CUdevice;
typedef void *Handle;

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
      Handle, void **, void **) \
    X(GetErrorName, "cuGetErrorName", CUresult, const char **)

#define DECLARE(name, symbol, ...) CUresult (*name)(__VA_ARGS__);
static struct {
    DRIVER(DECLARE)
} cu;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void check(CUresult result, const char *what)
{
    const char *name = NULL;
    if (result == 0)
        return;
    cu.GetErrorName(result, &name);
    fail(what, name ? name : "an unknown CUresult");
}

#define CHECK(call, ...) check(cu.call(__VA_ARGS__), "cu" #call)

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

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
    static char ptx[1 << 16];
    char line[256];
    FILE *file = argc > 1 ? fopen(argv[1], "r") : NULL;
    if (!file || !fread(ptx, 1, sizeof ptx - 1, file))
        fail(argc > 1 ? argv[1] : "usage: join PTX", "cannot be read");
    fclose(file);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        fail("no driver", dlerror());
#define LOOK_UP(name, symbol, ...) \
    if (!(*(void **)&cu.name = dlsym(library, symbol))) \
        fail("the driver is too old", symbol);
    DRIVER(LOOK_UP)
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
