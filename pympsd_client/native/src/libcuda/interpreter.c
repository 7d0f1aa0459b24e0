/* Finds or starts the Python of this process.
 *
 * The problem. The client of pympsd is Python, and a native program has none, or one of its own.
 *
 * The idea. A Python in the process is used; it has to be new enough, and to run. Otherwise libpython is loaded and started
 * as the interpreter that has the packages, so that it finds them as that one does:
 *
 *     PYMPSD_PYTHON                                   pympsd-run sets it: the path of the interpreter; and in some
 *                                                     environments PYMPSD_LIBPYTHON, the path of its library
 *     PREFIX/lib/python3.X/site-packages/...          this library's own path names the interpreter PREFIX/bin/python3.X
 *     python3                                         of PATH, for a library in a checkout
 *
 * libpython is next to what that path resolves to (bin/python3.X: lib*, or a folder of lib), else where the dynamic loader
 * finds it. Interpreters that are linked statically (Debian's) have it in another package.
 *
 * What must never happen:
 *   - Two Pythons share their symbols in one process. If the program is linked with a Python that does not run, no other
 *     is started.
 *   - A user gets the rights of a program's file (set-user-ID, file capabilities). The environment names the interpreter
 *     and what it imports, so no interpreter is started in such a program. */

#define _GNU_SOURCE

#include "interpreter.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
#include <wchar.h>

enum { MIN_MINOR = 11, PATH_BYTES = 4096 };

static Python python;
static int is_started_here, has_failed;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static int fails(const char *format, const char *first, const char *second) {
    fputs("pympsd: this program cannot use CUDA: ", stderr);
    fprintf(stderr, format, first, second);
    fputc('\n', stderr);
    has_failed = 1;
    return 0;
}

const char *packages_folder(void) {
    static char folder[PATH_BYTES]; /* PACKAGES/pympsd_client/native/libraries/libcuda.so.1 */
    Dl_info info;
    char path[PATH_BYTES];
    if (*folder || !dladdr((void *)&python, &info) || realpath(info.dli_fname, path) == NULL)
        return folder;
    for (int level = 0; level < 4; level++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return folder;
        *slash = '\0';
    }
    return strcpy(folder, path);
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

/* The interpreter that has the packages, as a path whose link is not resolved: a virtual environment's names its folder. */
static int find_interpreter(char *path) {
    const char *given = getenv("PYMPSD_PYTHON"), *packages = packages_folder(), *lib = strstr(packages, "/lib");
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
    const char *folders = getenv("PATH");
    for (size_t length; folders != NULL && *folders; folders += length + (folders[length] == ':')) {
        length = strcspn(folders, ":");
        if (snprintf(path, PATH_BYTES, "%.*s/python3", (int)length, folders) < PATH_BYTES && access(path, X_OK) == 0)
            return 1;
    }
    return 0;
}

/* Load libpython of an interpreter: from the folders at its prefix, else as the dynamic loader finds it. NULL: `reason`. */
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

/* Make Python believe that it is this interpreter: it finds its packages from there. */
static void initialize(void *library, const char *interpreter) {
    /* From 3.14 on by PyInitConfig; Py_SetProgramName is there before, and for some time after. */
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
    python.Py_InitializeEx(0); /* without handlers of signals */
}

static int start(void) {
    char interpreter[PATH_BYTES];
    const char *reason;
    Dl_info owner;
    void *symbol = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    void *library = RTLD_DEFAULT;
    if (symbol == NULL) {
        if (getauxval(AT_SECURE))
            return fails("it runs with the rights of its file (%s); %s", "set-user-ID or file capabilities",
                         "pympsd starts no Python with them");
        if (!find_interpreter(interpreter))
            return fails("no interpreter of Python is found for the packages in %s; start it with pympsd-run%s",
                         packages_folder(), "");
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
        sigaction(SIGINT, NULL, &interrupt);
        initialize(library, interpreter);
        is_started_here = 1;
        if (!python.Py_IsInitialized())
            return fails("%s does not start%s", interpreter, "");
        python.Py_DecRef(python.PyImport_ImportModule("_signal")); /* its import handles SIGINT, whoever imports it */
        sigaction(SIGINT, &interrupt, NULL);
        python.PyEval_SaveThread();
    }
    int minor = 0;
    if (sscanf(python.Py_GetVersion(), "3.%d", &minor) != 1 || minor < MIN_MINOR)
        return fails("its Python is %.6s, and pympsd needs 3.11 or newer%s", python.Py_GetVersion(), "");
    return 1;
}

const Python *find_python(int *is_own) {
    static int has_started;
    pthread_mutex_lock(&starting);
    if (!has_started && !has_failed)
        has_started = start();
    const Python *result = has_started ? &python : NULL;
    *is_own = is_started_here;
    pthread_mutex_unlock(&starting);
    return result;
}
