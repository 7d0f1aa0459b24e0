/* libcuda.so.1: the functions of the driver API by their names, versions and addresses.
 *
 * Every documented function exists under every name that it has had (functions.h), because programs look all of them up
 * when they start. They are implemented in Python (gate.c); cuGetProcAddress and cuGetExportTable, which a program
 * calls before it starts to use a device, are C. */

#define _GNU_SOURCE
#define STUBS "libcuda/functions.h"
#include "stubs.h"

#include "gate.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OPERATING_SYSTEM = 304, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
enum { FOUND = 0, NO_SYMBOL = 1, VERSION_TOO_LOW = 2 }; /* CUdriverProcAddressQueryResult */
enum { PER_THREAD_DEFAULT_STREAM = 2 };                  /* CUdriverProcAddress_flags */

static int fail(void) {
    return OPERATING_SYSTEM;
}

void *resolve_stub(uint64_t number) {
    if (pympsd_attach("libcuda.so.1", stub_count, stub_prototypes, stub_table) != SUCCESS)
        return (void *)fail;
    return stub_table[number];
}

/* A function, and the first version of CUDA for which cuGetProcAddress returns it if asked without a suffix. */
typedef struct {
    const char *name;
    const void *address;
    int version;
} Export;

#define FUNCTION(name, version, parameters) extern const char name[] __asm__(#name);
#define OWN(name, version, parameters) extern const char address_of_##name[] __asm__(#name);
#include STUBS
#undef FUNCTION
#undef OWN

#define FUNCTION(name, version, parameters) {#name, name, version},
#define OWN(name, version, parameters) {#name, address_of_##name, version},
static const Export exports[] = {
#include STUBS
};
#undef FUNCTION
#undef OWN

/* Return whether an exported name is `name`, perhaps with a version ("_v2"), and `suffix`: "_ptsz" or "_ptds" for
 * per-thread streams, or "". */
static int is_version_of(const char *exported, const char *name, size_t length, const char *suffix) {
    if (strncmp(exported, name, length) != 0)
        return 0;
    const char *rest = exported + length;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '2' && rest[2] <= '9')
        rest += 3;
    return strcmp(rest, suffix) == 0;
}

/* Return the newest function with a name and suffix, up to a version, or NULL. */
static const Export *newest(const char *name, const char *suffix, int version, int *is_known) {
    size_t length = strlen(name);
    const Export *result = NULL;
    for (size_t index = 0; index < sizeof exports / sizeof exports[0]; index++) {
        const Export *export = &exports[index];
        if (!is_version_of(export->name, name, length, suffix))
            continue;
        *is_known = 1;
        if (export->version <= version && (result == NULL || export->version > result->version))
            result = export;
    }
    return result;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    int is_known = 0;
    const Export *export = NULL;
    if (name == NULL || function == NULL)
        return INVALID_VALUE;
    if (flags & PER_THREAD_DEFAULT_STREAM) {
        export = newest(name, "_ptsz", version, &is_known);
        if (export == NULL)
            export = newest(name, "_ptds", version, &is_known);
    }
    if (export == NULL)
        export = newest(name, "", version, &is_known);
    *function = export == NULL ? NULL : (void *)export->address;
    if (status != NULL)
        *status = export != NULL ? FOUND : is_known ? VERSION_TOO_LOW : NO_SYMBOL;
    return export != NULL ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* Return the name of the file that contains an address; empty if there is none. */
static const char *file_of(const void *code) {
    Dl_info file;
    if (!dladdr(code, &file))
        return "";
    const char *slash = strrchr(file.dli_fname, '/');
    return slash == NULL ? file.dli_fname : slash + 1;
}

/* Report a static CUDA runtime once. NVRTC and nvJitLink also request tables, but work without them. */
static void report_static_runtime(const char *file) {
    static atomic_int has_reported;
    if (strncmp(file, "libnvrtc", 8) == 0 || strncmp(file, "libnvJitLink", 12) == 0 || atomic_exchange(&has_reported, 1))
        return;
    const char *suffix = strstr(file, ".so");
    if (suffix == NULL || (suffix[3] != '\0' && suffix[3] != '.'))
        fprintf(stderr, "pympsd: this program has a static CUDA runtime, which needs undocumented parts of NVIDIA's driver: "
                        "link it with nvcc -cudart shared\n");
    else
        fprintf(stderr, "pympsd: %s has a static CUDA runtime, which needs undocumented parts of NVIDIA's driver: use it with the "
                        "driver's own server (backend vendor)\n", file);
}

typedef int (*ExportTable)(const void **table, const void *id);

static _Atomic(ExportTable) drivers_export_table;

/* Python calls this with the driver's own cuGetExportTable if the program runs natively, so that all calls go to the driver. */
void pympsd_pass_on(ExportTable original) {
    atomic_store(&drivers_export_table, original);
}

/* A CUDA runtime that is linked statically requests undocumented tables. It requests one more after cuInit; without that
 * one, all its calls fail. */
int cuGetExportTable(const void **table, const void *id) {
    ExportTable original = atomic_load(&drivers_export_table);
    if (original != NULL)
        return original(table, id);
    if (table == NULL || id == NULL)
        return INVALID_VALUE;
    *table = NULL;
    if (gate_is_open())
        report_static_runtime(file_of(__builtin_return_address(0)));
    return NOT_SUPPORTED;
}
