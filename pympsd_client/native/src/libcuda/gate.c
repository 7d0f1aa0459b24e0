/* The gate between native code and Python: libcuda.so.1 and the libraries next to it enter Python only here.
 *
 * Theory of operation. A function of these libraries is a jump through a table (../stubs.h). The first call of any of them
 * attaches its library: Python is found or started (interpreter.c), `pympsd_client.routing.libraries.attach` makes a C
 * function over a Python function for each prototype (../entry_points.c) and writes its address to the table. Later calls
 * do not come here.
 *
 *     program -> cuInit -> resolve_stub -> pympsd_attach -> [Python starts] -> libraries.attach -> stub_table[...]
 *     program -> cuMemAlloc_v2 -> trampoline n -> Python
 *
 * Threads. A thread that Python did not start gets a thread state at its first call, and keeps it until it ends
 * (../entry_points.c), because `threading.local`, and with it the thread's current context, belongs to that state. The GIL
 * is free whenever the program's own code runs.
 *
 * In a Python program such a thread attaches within a limited time (../in_time.h). Its later calls wait for the GIL without
 * a limit.
 *
 * Fork. A child of a native program must not use the connection of its parent. So fork() takes the GIL first, as os.fork
 * does, and the child does Python's own work after a fork, which ends every context there. A Python program does this
 * itself. While a thread attaches, it may hold the GIL and import locks for a long time, so a child that is forked during
 * that time has no Python.
 *
 * Exit. The program's first call registers the handler when Python has started, as NVIDIA's library does in cuInit. So
 * exit handlers that the program registers later can use CUDA. In handlers that were registered before, and in destructors
 * of older objects, calls fail with CUDA_ERROR_DEINITIALIZED (recorded on an H200), except those that free.
 * The handler makes Python call the functions registered with `atexit`, the last of which closes the connection. The
 * interpreter is not finalized, because threads may be running in it. In a Python program all this is done when Python
 * ends.
 *
 * Signals. Python is started without handlers: SIGINT ends the program, unless it handles that itself. */

#define _GNU_SOURCE

#include "../in_time.h"
#include "../stack.h"
#include "gate.h"
#include "interpreter.h"

#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

enum { SUCCESS = 0, OPERATING_SYSTEM = 304 };

static const Python *python; /* the interpreter that was started here */
static atomic_int is_open;
static pthread_once_t handling_ends = PTHREAD_ONCE_INIT;
static __thread int state_before_fork;
static atomic_int attaching; /* the number of threads that attach */
static __thread int is_attaching;

int gate_is_open(void) {
    return atomic_load(&is_open);
}

static void before_fork(void) {
    state_before_fork = python->PyGILState_Ensure();
    python->PyOS_BeforeFork();
}

static void after_fork_in_parent(void) {
    python->PyOS_AfterFork_Parent();
    python->PyGILState_Release(state_before_fork);
}

static void after_fork_in_child(void) {
    python->PyOS_AfterFork_Child();
    python->PyGILState_Release(state_before_fork);
}

static void end(void) {
    int state = python->PyGILState_Ensure();
    void *module = python->PyImport_ImportModule("pympsd_client.routing.libraries");
    void *done = module == NULL ? NULL : python->PyObject_CallMethod(module, "end", NULL);
    python->Py_DecRef(done);
    python->Py_DecRef(module);
    python->PyErr_Clear();
    python->PyGILState_Release(state);
}

static void handle_ends(void) {
    atexit(end);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* Write the current exception as one sentence to standard error. */
static void report(const Python *py, const char *library) {
    static atomic_int has_reported;
    void *type, *value, *trace;
    py->PyErr_Fetch(&type, &value, &trace);
    py->PyErr_NormalizeException(&type, &value, &trace);
    void *name = type == NULL ? NULL : py->PyObject_GetAttrString(type, "__name__");
    void *text = value == NULL ? NULL : py->PyObject_Str(value);
    const char *name_text = name == NULL ? NULL : py->PyUnicode_AsUTF8AndSize(name, NULL);
    const char *reason = text == NULL ? NULL : py->PyUnicode_AsUTF8AndSize(text, NULL);
    if (!atomic_exchange(&has_reported, 1))
        fprintf(stderr, "pympsd: this program cannot use %s: the packages of %s cannot be imported: %s: %s\n", library,
                packages_name(), name_text == NULL ? "error" : name_text, reason == NULL ? "no reason" : reason);
    py->Py_DecRef(name);
    py->Py_DecRef(text);
    py->Py_DecRef(type);
    py->Py_DecRef(value);
    py->Py_DecRef(trace);
    py->PyErr_Clear();
}

static void *append(const Python *py, void *path, const char *folder) {
    return py->PyObject_CallMethod(path, "append", "s", folder);
}

/* Import the module that attaches. The program's own Python may have neither the packages on its path nor the packages
 * that they depend on. An editable install has the latter elsewhere, in the environment that pympsd-run names. */
static void *import(const Python *py) {
    void *module = py->PyImport_ImportModule("pympsd_client.routing.libraries");
    void *path = module == NULL ? py->PySys_GetObject("path") : NULL;
    if (path == NULL)
        return module;
    py->PyErr_Clear();
    py->Py_DecRef(append(py, path, packages_folder()));
    const char *interpreter = secure_getenv("PYMPSD_PYTHON"), *slash = interpreter == NULL ? NULL : strrchr(interpreter, '/');
    char folder[4096];
    int digits = (int)strcspn(py->Py_GetVersion() + 2, "."); /* 3.N.M */
    if (slash != NULL && snprintf(folder, sizeof folder, "%.*s/../lib/python3.%.*s/site-packages",
                                  (int)(slash - interpreter), interpreter, digits, py->Py_GetVersion() + 2) > 0)
        py->Py_DecRef(append(py, path, folder));
    py->PyErr_Clear();
    return py->PyImport_ImportModule("pympsd_client.routing.libraries"); /* its exception names what is missing */
}

static int attach(const Python *py, int is_own, const char *library, int count, const char *const *prototypes, void **table) {
    int result = OPERATING_SYSTEM;
    int state = py->PyGILState_Ensure();
    void *module = import(py);
    void *answer = module == NULL ? NULL
                                  : py->PyObject_CallMethod(module, "attach", "siKKi", library, count,
                                                            (unsigned long long)(uintptr_t)prototypes,
                                                            (unsigned long long)(uintptr_t)table, is_own);
    if (answer != NULL)
        result = (int)py->PyLong_AsLong(answer);
    if (py->PyErr_Occurred() != NULL) {
        report(py, library);
        result = OPERATING_SYSTEM;
    }
    py->Py_DecRef(answer);
    py->Py_DecRef(module);
    py->PyGILState_Release(state);
    if (result == SUCCESS) {
        if (is_own) {
            python = py;
            pthread_once(&handling_ends, handle_ends);
        }
        atomic_store(&is_open, 1);
    }
    return result;
}

/* What a helper thread attaches (../in_time.h). */
typedef struct {
    const Python *python;
    const char *library;
    int count;
    const char *const *prototypes;
    void **table;
} Attachment;

static int help(const void *argument) {
    const Attachment *of = argument;
    atomic_fetch_add(&attaching, 1);
    int result = attach(of->python, 0, of->library, of->count, of->prototypes, of->table);
    atomic_fetch_sub(&attaching, 1);
    return result;
}

/* Return whether this program is statically linked; if so, the first call writes one sentence to standard error. Libraries
 * that such a program opens get no thread-local variables from the C library, so the next access would crash. */
static int refuse_static_program(const char *library) {
    static atomic_int has_reported;
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    for (unsigned long count = header == NULL ? 0 : getauxval(AT_PHNUM); count > 0; count--, header++)
        if (header->p_type == PT_INTERP)
            return 0;
    if (!atomic_exchange(&has_reported, 1))
        fprintf(stderr, "pympsd: this program cannot use CUDA: it is statically linked; link it without -static to use %s\n", library);
    return 1;
}

int pympsd_attach(const char *library, int count, const char *const *prototypes, void **table) {
    int is_own;
    if (refuse_static_program(library))
        return OPERATING_SYSTEM;
    atomic_fetch_add(&attaching, 1);
    is_attaching++;
    const Python *py = refuse_small_stack() ? NULL : find_python(&is_own);
    Attachment of = {py, library, count, prototypes, table};
    int result = OPERATING_SYSTEM;
    if (py != NULL && (is_own || py->PyGILState_GetThisThreadState() != NULL))
        result = attach(py, is_own, library, count, prototypes, table);
    else if (py != NULL)
        result = work_in_time(help, &of, sizeof of, library, OPERATING_SYSTEM);
    is_attaching--;
    atomic_fetch_sub(&attaching, 1);
    return result;
}

static void after_any_fork_in_child(void) {
    if (atomic_load(&attaching) > is_attaching)
        forget_other_threads();
    atomic_store(&attaching, is_attaching);
}

__attribute__((constructor)) static void handle_forks(void) {
    pthread_atfork(NULL, NULL, after_any_fork_in_child);
}
