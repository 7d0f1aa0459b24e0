/* How a library next to libcuda.so.1 gets its functions: by the gate into Python, which libcuda.so.1 alone has.
 *
 * Included after stubs.h by the file of a library that defines `resolve_stub`. */

#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int (*Attach)(const char *library, int count, const char *const *prototypes, void **table);

/* Have all entries of `stub_table` filled for this library, whose name is given. Return 0, or another number after one
 * sentence on standard error. libcuda.so.1 is that of this library's folder: a program may have loaded the driver's. */
static int attach_stubs(const char *library) {
    char path[4096];
    Dl_info own;
    path[0] = '\0';
    if (dladdr((void *)&stub_table, &own) && strlen(own.dli_fname) < sizeof path - sizeof "libcuda.so.1") {
        strcpy(path, own.dli_fname);
        char *slash = strrchr(path, '/');
        strcpy(slash == NULL ? path : slash + 1, "libcuda.so.1");
    }
    void *gate = *path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    Attach attach = gate == NULL ? NULL : (Attach)dlsym(gate, "pympsd_attach");
    if (attach == NULL) {
        fprintf(stderr, "pympsd: %s needs pympsd's own libcuda.so.1 in its folder: %s\n", library, dlerror());
        return 1;
    }
    return attach(library, stub_count, stub_prototypes, stub_table);
}
