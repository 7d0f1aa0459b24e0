/* Finds the packages that a library of pympsd belongs to, and the interpreter that has them installed.
 *
 * The library is PACKAGES/pympsd_client/native/libraries/NAME. The interpreter is
 *
 *     PYMPSD_PYTHON                                   pympsd-run sets it: the path of the interpreter
 *     PREFIX/lib/python3.X/site-packages/...          the folder of the packages names PREFIX/bin/python3.X
 *     python3                                         of PATH, for a library in a checkout
 *
 * If a program has the rights of its file (set-user-ID, file capabilities), neither variable may choose what runs, so the
 * callers refuse such a program. */

#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LEVELS = 4 };

/* Write the folder of the packages that the library with an address belongs to; "" if it is somewhere else. */
static inline void find_packages(const void *address, char folder[PATH_BYTES]) {
    Dl_info info;
    char path[PATH_BYTES];
    *folder = '\0';
    if (!dladdr(address, &info) || realpath(info.dli_fname, path) == NULL)
        return;
    for (int level = 0; level < LEVELS; level++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
    strcpy(folder, path);
}

/* Write the path of the interpreter, and return 0 if there is none. A link is not resolved, because the path of a virtual
 * environment's interpreter shows where the environment is. */
static inline int find_interpreter(const char *packages, char path[PATH_BYTES]) {
    const char *given = secure_getenv("PYMPSD_PYTHON"), *lib = strstr(packages, "/lib");
    if (given != NULL && *given)
        return snprintf(path, PATH_BYTES, "%s", given) < PATH_BYTES && access(path, X_OK) == 0;
    for (; lib != NULL; lib = strstr(lib + 1, "/lib")) { /* PREFIX/lib/python3.X/site-packages, PREFIX/lib64/... */
        char version[16];
        if (sscanf(lib, "/%*[^/]/%15[^/]", version) != 1 || strncmp(version, "python3", 7) != 0)
            continue;
        if (snprintf(path, PATH_BYTES, "%.*s/bin/%s", (int)(lib - packages), packages, version) < PATH_BYTES &&
            access(path, X_OK) == 0)
            return 1;
    }
    const char *folders = secure_getenv("PATH");
    for (size_t length; folders != NULL && *folders; folders += length + (folders[length] == ':')) {
        length = strcspn(folders, ":");
        if (snprintf(path, PATH_BYTES, "%.*s/python3", (int)length, folders) < PATH_BYTES && access(path, X_OK) == 0)
            return 1;
    }
    return 0;
}
