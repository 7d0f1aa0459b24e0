/* Declarations for libcudart: CUDA's public types, and the functions that the files here share. */

#pragma once

#include "frame.h"

#include <stddef.h>
#include <stdint.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_CONFIGURATION = 9,
    MISSING_CONFIGURATION = 52,
    INVALID_DEVICE_FUNCTION = 98,
    INVALID_CONTEXT = 201,
    OPERATING_SYSTEM = 304,
    SYMBOL_NOT_FOUND = 500,
    CONTEXT_IS_DESTROYED = 709,
}; /* cudaError_t, whose numbers are the driver's except for the runtime's own */

typedef struct {
    unsigned x, y, z;
} dim3;

typedef void *Stream;
#define PER_THREAD_STREAM ((Stream)2)

/* cudaLaunchConfig_t, and the driver's CUlaunchConfig */
typedef struct {
    dim3 grid, block;
    size_t shared_bytes;
    Stream stream;
    void *attributes;
    unsigned attribute_count;
} LaunchConfig;
typedef struct {
    dim3 grid, block;
    unsigned shared_bytes;
    Stream stream;
    void *attributes;
    unsigned attribute_count;
} DriverLaunchConfig;

/* The driver's functions that are called here. */
typedef struct {
    int (*attach)(const char *library, int count, const char *const *prototypes, void **table);
    int (*launch)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared_bytes, Stream,
                  void **parameters, void **extra);
    int (*launch_cooperative)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned shared_bytes, Stream, void **parameters);
    int (*launch_by_config)(const DriverLaunchConfig *, void *function, void **parameters, void **extra);
    int (*find_function)(const char *name, void **function, int version, uint64_t flags, int *status);
} Driver;

/* Return the driver's functions, from the libcuda.so.1 next to this library. If it cannot be loaded, write one sentence
 * to standard error and return NULL. */
HIDDEN const Driver *find_driver(void);

/* The registration of an address of the host program. Python reads the first five fields (runtime/symbols.py). */
typedef enum { KERNEL, VARIABLE, MANAGED } Kind;
typedef struct Registration {
    const void *host;
    void *wrapper; /* the wrapper of the fat binary */
    const char *name;
    size_t size;
    int kind;
    void **managed_place;   /* where the program keeps the address of a managed variable */
    _Atomic(void *) kernel; /* the driver's handle, found at the first launch */
} Registration;

/* Return the registration of an address of the host program, or NULL. */
HIDDEN Registration *registration(const void *host);

/* Return the wrapper of a registered fat binary by its index; index 0 is the last one registered. NULL past the first. */
HIDDEN void *registered_wrapper(size_t index);

/* Functions behind stubs that are not exported (pympsd_client/routing/runtime/rows.py). */
HIDDEN int pympsd_keep_error(int error);
HIDDEN int pympsd_kernel(void **kernel, const void *host);
HIDDEN int pympsd_ready(void);
HIDDEN int pympsd_set_registry(Registration *(*)(const void *), void *(*)(size_t));
HIDDEN int pympsd_unload(void *wrapper);
HIDDEN int pympsd_variable(void **address, size_t *size, const void *host);

/* Return whether Python runs. Calls that must not start Python may call stubs only if it does. */
HIDDEN int is_attached(void);

/* Keep an error for the thread's cudaGetLastError, and return it. */
HIDDEN int keep(int error);
