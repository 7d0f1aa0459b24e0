/* Finds or starts the Python of this process.
 *
 * The problem. The client of pympsd is Python, and a native program has none, or one of its own.
 *
 * The idea. A Python in the process is used if it runs and is new enough. If its symbols are not global (RTLD_LOCAL),
 * they are made global, because extension modules look for them there. Otherwise libpython is loaded and started as if it
 * were the interpreter that has the packages (../installation.h), so that it finds them as well.
 *
 * libpython is what PYMPSD_LIBPYTHON names (pympsd-run sets it in some environments). Otherwise it is near the file that
 * the interpreter's path resolves to (for bin/python3.X in lib*, or in a folder of lib), or else where the dynamic loader
 * finds it. Interpreters that are linked statically (Debian's) have it in another package.
 *
 * What must never happen:
 *   - Two Pythons share their symbols in one process. If the program is linked with a Python that does not run, no other
 *     is started.
 *   - A child waits for a thread that it does not have, because that thread was starting Python when another one called
 *     fork(). Such a child gets no Python (`forget_other_threads`).
 *   - A user gets the rights of a program's file (set-user-ID, file capabilities). The environment names the interpreter
 *     and what it imports, so no interpreter is started in such a program. */

#define _GNU_SOURCE

#include "../installation.h"
#include "interpreter.h"

#include <dlfcn.h>
#include <link.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
#include <wchar.h>

enum { MIN_MINOR = 11 };

static Python python;
static int is_started_here, is_forked, has_failed;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static int fails(const char *format, const char *first, const char *second) {
    fputs("pympsd: this program cannot use CUDA: ", stderr);
    fprintf(stderr, format, first, second);
    fputc('\n', stderr);
    has_failed = 1;
    return 0;
}

const char *packages_folder(void) {
    static char folder[PATH_BYTES];
    if (!*folder)
        find_packages(&python, folder);
    return folder;
}

const char *packages_name(void) {
    return *packages_folder() ? packages_folder() : "an installation of pympsd, to which this library does not belong";
}

static int find_functions(void *library) {
#define FIND(type, name, parameters)                                                                                    \
    void *address_of_##name = dlsym(library, #name);                                                                    \
    if (address_of_##name == NULL)                                                                                      \
        return 0;                                                                                                       \
    memcpy(&python.name, &address_of_##name, sizeof address_of_##name);
    PYTHON_FUNCTIONS(FIND)
#undef FIND
    return 1;
}

/* Load the libpython of an interpreter, from a folder at its prefix or by the dynamic loader; NULL with `reason`. */
static void *load_library(const char *interpreter, const char **reason) {
    const char *given = getenv("PYMPSD_LIBPYTHON");
    void *library = given != NULL && *given ? dlopen(given, RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (library != NULL)
        return library;
    *reason = "it is not called python3.X";
    char real[PATH_BYTES], path[PATH_BYTES + 64], name[64];
    int minor;
    if (realpath(interpreter, real) == NULL)
        return NULL;
    char *base = strrchr(real, '/') + 1;
    if (sscanf(base, "python3.%d", &minor) != 1)
        return NULL;
    snprintf(name, sizeof name, "libpython3.%d.so.1.0", minor);
    *(base - 1) = '\0';
    char *bin = strrchr(real, '/');
    if (bin != NULL)
        *bin = '\0';
    static const char *const folders[] = {"lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"};
    for (size_t index = 0; index < sizeof folders / sizeof folders[0]; index++) {
        int length = snprintf(path, sizeof path, "%s/%s/%s", real, folders[index], name);
        int is_there = length < (int)sizeof path && access(path, R_OK) == 0;
        library = is_there ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
        if (library != NULL)
            return library;
    }
    library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        *reason = dlerror();
    return library;
}

/* Start Python under the path of this interpreter, because it finds its packages relative to that path. */
static void initialize(void *library, const char *interpreter) {
    /* Use PyInitConfig from 3.14 on, and before that Py_SetProgramName, which later versions may drop. */
    void *(*create)(void) = (void *(*)(void))dlsym(library, "PyInitConfig_Create");
    int (*set_text)(void *, const char *, const char *) =
        (int (*)(void *, const char *, const char *))dlsym(library, "PyInitConfig_SetStr");
    int (*set_number)(void *, const char *, int64_t) =
        (int (*)(void *, const char *, int64_t))dlsym(library, "PyInitConfig_SetInt");
    int (*start)(void *) = (int (*)(void *))dlsym(library, "Py_InitializeFromInitConfig");
    void *config = create && set_text && set_number && start ? create() : NULL;
    if (config != NULL) {
        set_number(config, "isolated", 0);
        set_number(config, "use_environment", 1);
        set_number(config, "site_import", 1);
        set_number(config, "user_site_directory", 1);
        set_number(config, "install_signal_handlers", 0);
        set_text(config, "program_name", interpreter);
        start(config);
        return;
    }
    static wchar_t name[PATH_BYTES]; /* Python keeps its address */
    void (*set_name)(const wchar_t *) = (void (*)(const wchar_t *))dlsym(library, "Py_SetProgramName");
    if (set_name != NULL && mbstowcs(name, interpreter, PATH_BYTES - 1) != (size_t)-1)
        set_name(name);
    python.Py_InitializeEx(0); /* without signal handlers */
}

/* For dl_iterate_phdr: keep the path of a library that is called libpython3*. */
static int keep_libpython(struct dl_phdr_info *library, size_t size, void *path) {
    (void)size;
    const char *slash = strrchr(library->dlpi_name, '/'), *name = slash == NULL ? library->dlpi_name : slash + 1;
    return strncmp(name, "libpython3", 10) == 0 && snprintf(path, PATH_BYTES, "%s", library->dlpi_name) < PATH_BYTES;
}

/* Find the Python of this process: the library and an address in it, or NULL. */
static void *find_own(void **library) {
    char path[PATH_BYTES];
    *library = RTLD_DEFAULT;
    void *symbol = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    if (symbol == NULL && dl_iterate_phdr(keep_libpython, path) != 0) {
        *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
        symbol = *library == NULL ? NULL : dlsym(*library, "Py_IsInitialized");
    }
    return symbol;
}

static int start(void) {
    char interpreter[PATH_BYTES], version[32];
    const char *reason;
    Dl_info owner;
    void *library, *symbol = find_own(&library);
    if (symbol == NULL) {
        if (getauxval(AT_SECURE))
            return fails("it runs with the rights of its file (%s); %s", "set-user-ID or file capabilities",
                         "pympsd starts no Python with them");
        if (!find_interpreter(packages_folder(), interpreter))
            return fails("no interpreter of Python is found for the packages in %s; start it with pympsd-run%s",
                         packages_name(), "");
        if ((library = load_library(interpreter, &reason)) == NULL)
            return fails("libpython of %s cannot be loaded (%s); install the package that has it (libpython3, python3-libs)",
                         interpreter, reason);
    }
    if (!find_functions(library))
        return fails("its Python has no %s: pympsd needs Python 3.11 or newer%s", "functions that pympsd needs", "");
    if (!python.Py_IsInitialized()) {
        if (symbol != NULL) {
            const char *file = dladdr(symbol, &owner) ? owner.dli_fname : "a Python";
            return fails("it is linked with %s, which does not run yet%s", file, "; call CUDA after Py_Initialize");
        }
        struct sigaction interrupt;
        char *locale = strdup(setlocale(LC_CTYPE, NULL)); /* Python sets the user's, the program may have its own */
        sigaction(SIGINT, NULL, &interrupt);
        initialize(library, interpreter);
        if (locale != NULL)
            setlocale(LC_CTYPE, locale);
        free(locale);
        is_started_here = 1;
        if (!python.Py_IsInitialized())
            return fails("%s does not start%s", interpreter, "");
        python.Py_DecRef(python.PyImport_ImportModule("_signal")); /* its first import handles SIGINT */
        sigaction(SIGINT, &interrupt, NULL);
        python.PyEval_SaveThread();
    }
    int minor = 0;
    snprintf(version, sizeof version, "%.*s", (int)strcspn(python.Py_GetVersion(), " "), python.Py_GetVersion());
    if (sscanf(version, "3.%d", &minor) != 1 || minor < MIN_MINOR)
        return fails("its Python is %s, and pympsd needs 3.11 or newer%s", version, "");
    return 1;
}

const Python *find_python(int *is_own) {
    static int has_started;
    pthread_mutex_lock(&starting);
    if (is_forked && !has_failed)
        fails("%s%s", "another thread was starting Python when this process was forked; start it again", "");
    else if (!has_started && !has_failed)
        has_started = start();
    const Python *result = has_started && !has_failed ? &python : NULL;
    *is_own = is_started_here;
    pthread_mutex_unlock(&starting);
    return result;
}

void forget_other_threads(void) {
    starting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (!has_failed)
        is_forked = 1;
}
