/* Launches: `kernel<<<grid, block, shared, stream>>>(...)` and the functions of the runtime that launch.
 *
 * nvcc splits a launch into two steps. __cudaPushCallConfiguration keeps grid, block, shared memory and stream for the
 * thread. Then the host function of the kernel takes them back with __cudaPopCallConfiguration. It calls cudaLaunchKernel
 * with its own address or, since CUDA 13, __cudaLaunchKernel with the result of __cudaGetKernel, which is here the
 * registration, because the driver's kernel may not exist yet.
 *
 * The first launch of a kernel finds the driver's handle with Python (pympsd_kernel), which loads the fat binary. The
 * handle is valid in all contexts as long as the program has the kernel. A later launch is only a look-up and a call of
 * cuLaunchKernel, which is quick if it repeats. A thread gets the primary context of its device before its first launch.
 * If the driver reports that the thread has no context, or a destroyed one, it gets one and the launch is repeated. */

#include "runtime.h"

#include <stdatomic.h>

enum { MAX_DEPTH = 64, MAX_THREADS = 1024, MAX_BLOCK_Z = 64, MAX_GRID_YZ = 65535 };

typedef struct {
    dim3 grid, block;
    size_t shared_bytes;
    Stream stream;
} Configuration;

static __thread Configuration configurations[MAX_DEPTH];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, Stream stream) {
    if (depth == MAX_DEPTH)
        return (unsigned)keep(OUT_OF_MEMORY);
    configurations[depth++] = (Configuration){grid, block, shared_bytes, stream};
    return SUCCESS;
}

int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
    if (depth == 0)
        return keep(MISSING_CONFIGURATION);
    const Configuration *last = &configurations[--depth];
    *grid = last->grid;
    *block = last->block;
    *shared_bytes = last->shared_bytes;
    *(Stream *)stream = last->stream;
    return SUCCESS;
}

/* Give the thread a context before its first launch. */
static int begin_thread(void) {
    static __thread char has_begun;
    if (has_begun)
        return SUCCESS;
    int result = pympsd_ready();
    has_begun = result == SUCCESS;
    return result;
}

/* Find the driver's handle of a kernel, even if the program did not get its address from this library. */
static int find_kernel(Registration *entry, const void *host, void **kernel) {
    int result = begin_thread();
    if (result != SUCCESS)
        return result;
    if (entry == NULL) {
        *kernel = (void *)host;
        return host == NULL ? keep(INVALID_DEVICE_FUNCTION) : SUCCESS;
    }
    *kernel = atomic_load_explicit(&entry->kernel, memory_order_acquire);
    if (*kernel != NULL)
        return SUCCESS;
    result = pympsd_kernel(kernel, entry->host);
    if (result == SUCCESS)
        atomic_store_explicit(&entry->kernel, *kernel, memory_order_release);
    return result;
}

/* Return whether a launch failed because the thread had no context, and can be repeated because it has one now. If it
 * gets none, `*result` becomes the reason: DEVICES_UNAVAILABLE after a fault. */
static int has_got_context(int *result) {
    if (*result != INVALID_CONTEXT && *result != CONTEXT_IS_DESTROYED && *result != NOT_INITIALIZED)
        return 0;
    int ready = pympsd_ready();
    if (ready != SUCCESS)
        *result = ready;
    return ready == SUCCESS;
}

static int is_impossible(dim3 grid, dim3 block) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    return grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT32_MAX || grid.y > MAX_GRID_YZ ||
           grid.z > MAX_GRID_YZ || threads == 0 || block.x > MAX_THREADS || block.y > MAX_THREADS ||
           block.z > MAX_BLOCK_Z || threads > MAX_THREADS;
}

/* CUDA 12 has its own error for a grid or block that no device supports; CUDA 13 reports the driver's (measured). */
static int result_of(int result, dim3 grid, dim3 block) {
    if (result == SUCCESS)
        return SUCCESS;
    int is_configuration = CUDA_MAJOR == 12 && result == INVALID_VALUE && is_impossible(grid, block);
    return keep(is_configuration ? INVALID_CONFIGURATION : result);
}

static int launch(Registration *entry, const void *host, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
                  Stream stream, int is_cooperative) {
    const Driver *driver = find_driver();
    void *kernel;
    if (driver == NULL)
        return keep(OPERATING_SYSTEM);
    int result = find_kernel(entry, host, &kernel);
    if (result != SUCCESS)
        return result; /* it is kept as the last error */
    if (shared_bytes > UINT32_MAX)
        return keep(INVALID_VALUE);
    for (int attempt = 0; attempt == 0 || (attempt == 1 && has_got_context(&result)); attempt++) {
        if (is_cooperative)
            result = driver->launch_cooperative(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                (unsigned)shared_bytes, stream, parameters);
        else
            result = driver->launch(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared_bytes,
                                    stream, parameters, NULL);
    }
    return result_of(result, grid, block);
}

static Stream of_thread(Stream stream) {
    return stream == NULL ? PER_THREAD_STREAM : stream;
}

int cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **parameters, size_t shared_bytes, Stream stream) {
    return launch(registration(host), host, grid, block, parameters, shared_bytes, stream, 0);
}

int cudaLaunchKernel_ptsz(const void *host, dim3 grid, dim3 block, void **parameters, size_t shared_bytes, Stream stream) {
    return launch(registration(host), host, grid, block, parameters, shared_bytes, of_thread(stream), 0);
}

int cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
                                Stream stream) {
    return launch(registration(host), host, grid, block, parameters, shared_bytes, stream, 1);
}

int cudaLaunchCooperativeKernel_ptsz(const void *host, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
                                     Stream stream) {
    return launch(registration(host), host, grid, block, parameters, shared_bytes, of_thread(stream), 1);
}

/* --- what nvcc calls since CUDA 13 */

int __cudaGetKernel(Registration **kernel, const void *host) {
    *kernel = registration(host);
    return *kernel == NULL ? keep(INVALID_DEVICE_FUNCTION) : SUCCESS;
}

int __cudaLaunchKernel(Registration *kernel, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
                       Stream stream) {
    return launch(kernel, NULL, grid, block, parameters, shared_bytes, stream, 0);
}

int __cudaLaunchKernel_ptsz(Registration *kernel, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
                            Stream stream) {
    return launch(kernel, NULL, grid, block, parameters, shared_bytes, of_thread(stream), 0);
}

/* --- launches with attributes */

static int launch_by_config(const LaunchConfig *config, const void *host, void **parameters, int is_of_thread) {
    const Driver *driver = find_driver();
    void *kernel;
    if (driver == NULL)
        return keep(OPERATING_SYSTEM);
    if (config == NULL || config->shared_bytes > UINT32_MAX)
        return keep(INVALID_VALUE);
    Registration *entry = registration(host);
    int result = find_kernel(entry, host, &kernel);
    if (result != SUCCESS)
        return result;
    DriverLaunchConfig same = {config->grid, config->block, (unsigned)config->shared_bytes,
                               is_of_thread ? of_thread(config->stream) : config->stream, config->attributes,
                               config->attribute_count};
    for (int attempt = 0; attempt == 0 || (attempt == 1 && has_got_context(&result)); attempt++)
        result = driver->launch_by_config(&same, kernel, parameters, NULL);
    return result_of(result, config->grid, config->block);
}

int cudaLaunchKernelExC(const LaunchConfig *config, const void *host, void **parameters) {
    return launch_by_config(config, host, parameters, 0);
}

int cudaLaunchKernelExC_ptsz(const LaunchConfig *config, const void *host, void **parameters) {
    return launch_by_config(config, host, parameters, 1);
}
