/* The driver for the native clients: its functions are declared here and looked up in libcuda.so.1, so that no CUDA
 * header is needed to build them. Before it, a client defines _GNU_SOURCE and DRIVER(X), which is X(NAME, SYMBOL,
 * PARAMETERS) of each function that it calls; it then calls CHECK(NAME, ARGUMENTS), or cu.NAME(ARGUMENTS).
 */
#ifndef DRIVER_H
#define DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *Handle;

#define DECLARE(name, symbol, ...) CUresult (*name)(__VA_ARGS__);
static struct {
    DRIVER(DECLARE)
    DECLARE(GetErrorName, "cuGetErrorName", CUresult, const char **)
} cu;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    _exit(1); /* a partial answer stays without its end */
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

static void load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        fail("no driver", dlerror());
#define LOOK_UP(name, symbol, ...) \
    if (!(*(void **)&cu.name = dlsym(library, symbol))) \
        fail("the driver is too old", symbol);
    DRIVER(LOOK_UP)
    LOOK_UP(GetErrorName, "cuGetErrorName")
}

/* Return the text of a file of PTX. */
static const char *read_ptx(const char *path)
{
    static char ptx[1 << 16];
    FILE *file = fopen(path, "r");
    if (!file || !fread(ptx, 1, sizeof ptx - 1, file))
        fail(path, "cannot be read");
    fclose(file);
    return ptx;
}

/* Return ns of CLOCK_MONOTONIC. */
static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

#endif
