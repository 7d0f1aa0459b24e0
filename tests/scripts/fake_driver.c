/* A libcuda.so.1 for tests of the GPU benchmark: a GPU on which every stream works for itself, in real time.
 *
 * A kernel's time is its first parameter (ns); a stream holds 1,024 launches. Copies are memcpy. What fails: memory of
 * more than 1 GiB, and every launch where DRIVER_STAND_IN_FAILS is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SUCCESS 0
#define OUT_OF_MEMORY 2
#define NOT_FOUND 500
#define LAUNCH_FAILED 719
#define QUEUE 1024

typedef struct {
    int64_t end; /* of all that was launched, ns */
    int64_t ends[QUEUE];
    unsigned long count;
} Stream;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int wait_for(int64_t moment)
{
    struct timespec t = {moment / 1000000000, moment % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
    return SUCCESS;
}

static int make(void **place, size_t bytes)
{
    return bytes <= (size_t)1 << 30 && (*place = calloc(1, bytes)) ? SUCCESS : OUT_OF_MEMORY;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal; }
int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) { return flags == 2 ? device : 1; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &now, device; }
int cuCtxSetCurrent(void *context) { return context != (void *)&now; }
int cuModuleLoadData(void **module, const void *image) { return !strstr(*module = (void *)image, ".entry spin("); }
int cuModuleGetFunction(void **function, void *module, const char *name) { return !strstr(*function = module, name); }
int cuStreamCreate(void **stream, unsigned flags) { return flags == 1 ? make(stream, sizeof(Stream)) : 1; }
int cuStreamSynchronize(void *stream) { return wait_for(((Stream *)stream)->end); }
int cuEventCreate(void **event, unsigned flags) { return flags == 2 ? make(event, sizeof(int64_t)) : 1; }
int cuEventRecord(void *event, void *stream) { return *(int64_t *)event = ((Stream *)stream)->end, SUCCESS; }
int cuEventSynchronize(void *event) { return wait_for(*(int64_t *)event); }
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) { return make((void **)pointer, bytes); }
int cuMemAllocHost_v2(void **pointer, size_t bytes) { return make(pointer, bytes); }
int cuMemFree_v2(unsigned long long pointer) { return free((void *)pointer), SUCCESS; }
int cuMemFreeHost(void *pointer) { return free(pointer), SUCCESS; }

int cuDeviceGetAttribute(int *value, int number, int device)
{
    *value = number == 16 ? 132 : 0;
    return device;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes)
{
    return memcpy((void *)to, from, bytes), SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes)
{
    return memcpy(to, (void *)from, bytes), SUCCESS;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *given, void **parameters, void **extra)
{
    Stream *stream = given;
    int64_t *oldest = &stream->ends[stream->count++ % QUEUE], time = now();
    if (!function || !x || !bx || y * z * by * bz != 1 || shared || extra || getenv("DRIVER_STAND_IN_FAILS"))
        return LAUNCH_FAILED;
    wait_for(*oldest);
    stream->end = (stream->end > time ? stream->end : time) + *(int64_t *)parameters[0];
    *oldest = stream->end;
    return SUCCESS;
}

int cuGetErrorName(int result, const char **name)
{
    *name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
                                      : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}

/* cuda.bindings looks everything up with this. */
int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    char name[128];
    Dl_info here;
    (void)version, (void)flags;
    if (!dladdr((void *)&cuGetProcAddress_v2, &here))
        return NOT_FOUND;
    void *library = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    snprintf(name, sizeof name, "%s_v2", symbol);
    *function = dlsym(library, name);
    if (!*function)
        *function = dlsym(library, symbol);
    if (status)
        *status = !*function;
    return *function ? SUCCESS : NOT_FOUND;
}
