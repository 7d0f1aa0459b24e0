/* How a library next to libcuda.so.1 gets its functions: by the gate into Python, which only libcuda.so.1 has.
 *
 * Included after stubs.h by the file of a library that defines `resolve_stub`, with _GNU_SOURCE defined for dladdr. */

#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define TEXT_OF(macro) #macro
#define LIBRARY_NAME(name, major) name ".so." TEXT_OF(major)

typedef int (*Attach)(const char *library, int count, const char *const *prototypes, void **table);

/* Return a handle of the libcuda.so.1 in this library's folder, for dlsym; or write one sentence to standard error and
 * return NULL. The folder is named because a program may have loaded the driver's library. */
static inline void *open_gate(const char *library) {
    char path[4096] = "";
    Dl_info own;
    const char *slash = dladdr((void *)&stub_table, &own) ? strrchr(own.dli_fname, '/') : NULL;
    int length = slash == NULL ? 0 : (int)(slash + 1 - own.dli_fname);
    snprintf(path, sizeof path, "%.*slibcuda.so.1", length, slash == NULL ? "" : own.dli_fname);
    void *gate = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (gate != NULL && dlsym(gate, "pympsd_attach") != NULL)
        return gate;
    fprintf(stderr, "pympsd: this program cannot use %s: %s is not pympsd's (%s); start it with pympsd-run\n", library, path,
            gate == NULL ? dlerror() : "it has other functions");
    return NULL;
}

/* Fill all entries of `stub_table` for this library, by its name. Return 0; or write one sentence to standard error and
 * return another number. */
static inline int attach_stubs(const char *library) {
    void *gate = open_gate(library);
    return gate == NULL ? 1 : ((Attach)dlsym(gate, "pympsd_attach"))(library, stub_count, stub_prototypes, stub_table);
}
