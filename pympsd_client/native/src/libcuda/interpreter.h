/* The interpreter of this process: the program's own, or one that is started for it (interpreter.c). */

#pragma once

#include <stdint.h>

/* The functions of Python's stable interface that are used here. They are looked up when a program calls CUDA, because a
 * native program is not linked with Python. */
#define PYTHON_FUNCTIONS(FUNCTION)                                                                                      \
    FUNCTION(int, Py_IsInitialized, (void))                                                                             \
    FUNCTION(void, Py_InitializeEx, (int))                                                                              \
    FUNCTION(const char *, Py_GetVersion, (void))                                                                       \
    FUNCTION(void *, PyGILState_GetThisThreadState, (void))                                                             \
    FUNCTION(int, PyGILState_Ensure, (void))                                                                            \
    FUNCTION(void, PyGILState_Release, (int))                                                                           \
    FUNCTION(void *, PyEval_SaveThread, (void))                                                                         \
    FUNCTION(void *, PyImport_ImportModule, (const char *))                                                             \
    FUNCTION(void *, PyObject_CallMethod, (void *, const char *, const char *, ...))                                    \
    FUNCTION(long, PyLong_AsLong, (void *))                                                                             \
    FUNCTION(void *, PyErr_Occurred, (void))                                                                            \
    FUNCTION(void, PyErr_Fetch, (void **, void **, void **))                                                            \
    FUNCTION(void, PyErr_NormalizeException, (void **, void **, void **))                                               \
    FUNCTION(void, PyErr_Clear, (void))                                                                                 \
    FUNCTION(void *, PyObject_Str, (void *))                                                                            \
    FUNCTION(void *, PyObject_GetAttrString, (void *, const char *))                                                    \
    FUNCTION(const char *, PyUnicode_AsUTF8AndSize, (void *, intptr_t *))                                               \
    FUNCTION(void *, PySys_GetObject, (const char *))                                                                   \
    FUNCTION(void, Py_DecRef, (void *))                                                                                 \
    FUNCTION(void, PyOS_BeforeFork, (void))                                                                             \
    FUNCTION(void, PyOS_AfterFork_Parent, (void))                                                                       \
    FUNCTION(void, PyOS_AfterFork_Child, (void))

typedef struct {
#define MEMBER(type, name, parameters) type(*name) parameters;
    PYTHON_FUNCTIONS(MEMBER)
#undef MEMBER
} Python;

/* Return the functions of the running interpreter, which is started if there is none; NULL after one sentence on standard
 * error if there can be none, now or ever. `is_own`: it was started here, and ends with the process. */
__attribute__((visibility("hidden"))) const Python *find_python(int *is_own);

/* In a child: a thread that it does not have was starting Python, or importing the packages. `find_python` fails from now. */
__attribute__((visibility("hidden"))) void forget_other_threads(void);

/* The folder of the installed packages, which holds pympsd_client; "" if this library is somewhere else. */
__attribute__((visibility("hidden"))) const char *packages_folder(void);

/* The same for sentences. */
__attribute__((visibility("hidden"))) const char *packages_name(void);
