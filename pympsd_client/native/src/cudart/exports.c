/* libcudart.so.12 and .13: the functions of the CUDA runtime, for programs that are linked with nvcc -cudart shared.
 *
 * Theory of operation. Nearly every function is a stub (../stubs.h) over a Python function of
 * pympsd_client/routing/runtime, which the libcuda.so.1 next to this library finds (../libcuda/gate.c). The
 * functions in C are those that must work before Python starts, must be quick, or do not return an error:
 *
 *     registration.c   what the program registers before its main: fat binaries, kernels, variables
 *     launches.c       launches
 *     exports.c        the way to libcuda.so.1; texts and names of errors; versions; addresses of driver functions
 *
 *     main's constructors -> __cudaRegisterFunction(0x401234, "_Z3addPf")      recorded in C, no Python
 *     add<<<1, 32>>>(p)   -> cudaLaunchKernel(0x401234) -> pympsd_kernel(0x401234)   Python loads the fat binary
 *                                                       -> cuLaunchKernel(kernel)    later launches: only this
 *
 * Both libraries are this code (CUDA_MAJOR) and one table of functions (functions.h), which has the names and parameters
 * of each version of CUDA. A program may load both: each has registrations of its own. */

#define _GNU_SOURCE
#define STUBS "cudart/functions.h"
#include "runtime.h"
#include "stubs.h"

#include "sibling.h"

#include <pthread.h>
#include <stdatomic.h>

#define LIBRARY LIBRARY_NAME("libcudart", CUDA_MAJOR)

enum { CUDA_VERSION = CUDA_MAJOR == 12 ? 12090 : 13000, FLAG_PER_THREAD = 2 };

static Driver driver;
static int has_driver;
static atomic_int attached;
/* The last error while Python cannot be started. All threads share it, because a statically linked program has no
 * thread-local variables here (../libcuda/gate.c). */
static atomic_int own_error;

static void load_driver(void) {
    static const char *const names[] = {"pympsd_attach", "cuLaunchKernel", "cuLaunchCooperativeKernel", "cuLaunchKernelEx",
                                        "cuGetProcAddress_v2"};
    void *functions[sizeof names / sizeof names[0]], *library = open_gate(LIBRARY);
    if (library == NULL)
        return;
    for (size_t index = 0; index < sizeof names / sizeof names[0]; index++)
        functions[index] = dlsym(library, names[index]);
    memcpy(&driver, functions, sizeof functions);
    has_driver = 1;
}

static pthread_once_t loading = PTHREAD_ONCE_INIT;

const Driver *find_driver(void) {
    pthread_once(&loading, load_driver);
    return has_driver ? &driver : NULL;
}

/* The driver's library is loaded before the program's own constructors run, so that it ends after their destructors. */
__attribute__((constructor)) static void begin(void) {
    find_driver();
}

int is_attached(void) {
    return atomic_load(&attached);
}

int keep(int error) {
    if (!is_attached())
        return own_error = error;
    return error == SUCCESS ? SUCCESS : pympsd_keep_error(error);
}

static int fail(void) {
    return own_error = OPERATING_SYSTEM;
}

static int own_last_error(void) {
    return own_error;
}

static int take_own_error(void) {
    int error = own_error;
    own_error = SUCCESS;
    return error;
}

/* Pass Python the function that looks up host addresses, by a table that no other thread uses yet. */
static void set_registry(void *const *table) {
    static const char name[] = "pympsd_set_registry(";
    for (size_t index = 0; index < stub_count; index++)
        if (strncmp(stub_prototypes[index], name, sizeof name - 1) == 0)
            ((int (*)(Registration *(*)(const void *), void *(*)(size_t)))table[index])(registration, registered_wrapper);
}

/* Several threads may attach at the same time; all get the same addresses. A lock could deadlock: its owner would wait for
 * the GIL, whose owner may wait for the lock. */
static void attach(void) {
    void *table[stub_count];
    const Driver *found = find_driver();
    if (found == NULL || found->attach(LIBRARY, stub_count, stub_prototypes, table) != SUCCESS)
        return;
    set_registry(table);
    for (size_t index = 0; index < stub_count; index++)
        __atomic_store_n(&stub_table[index], table[index], __ATOMIC_RELEASE);
    atomic_store(&attached, 1);
}

void *resolve_stub(uint64_t number) {
    if (!is_attached())
        attach();
    if (is_attached())
        return stub_table[number];
    if (strcmp(stub_prototypes[number], "cudaGetLastError(void)") == 0)
        return (void *)take_own_error;
    return strcmp(stub_prototypes[number], "cudaPeekAtLastError(void)") == 0 ? (void *)own_last_error : (void *)fail;
}

/* --- errors */

static const struct {
    int number;
    const char *name, *text;
} errors[] = {
#define ERROR(number, name, text) {number, name, text},
#include "errors.h"
#undef ERROR
};

const char *cudaGetErrorName(int error) {
    for (size_t index = 0; index < sizeof errors / sizeof errors[0]; index++)
        if (errors[index].number == error)
            return errors[index].name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(int error) {
    for (size_t index = 0; index < sizeof errors / sizeof errors[0]; index++)
        if (errors[index].number == error)
            return errors[index].text;
    return "unrecognized error code";
}

/* --- versions, and functions of the driver */

int cudaRuntimeGetVersion(int *version) {
    if (version == NULL)
        return keep(INVALID_VALUE);
    *version = CUDA_VERSION;
    return SUCCESS;
}

static int entry_point(const char *name, void **function, unsigned version, uint64_t flags, int *status) {
    const Driver *found = find_driver();
    if (found == NULL)
        return fail();
    int result = found->find_function(name, function, (int)version, flags, status);
    return result == SYMBOL_NOT_FOUND && status != NULL ? SUCCESS : result == SUCCESS ? SUCCESS : keep(result);
}

int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *status) {
    return entry_point(name, function, version, flags, status);
}

int cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **function, unsigned version, unsigned long long flags,
                                          int *status) {
    return entry_point(name, function, version, flags == 0 ? FLAG_PER_THREAD : flags, status);
}

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    return entry_point(name, function, CUDA_VERSION, flags, status);
}

int cudaGetDriverEntryPoint_ptsz(const char *name, void **function, unsigned long long flags, int *status) {
    return entry_point(name, function, CUDA_VERSION, flags == 0 ? FLAG_PER_THREAD : flags, status);
}

/* --- a structure that is returned */

typedef struct {
    int x, y, z, w, kind;
} ChannelFormat;

ChannelFormat cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
    return (ChannelFormat){x, y, z, w, kind};
}
