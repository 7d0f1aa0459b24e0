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

/* Return the functions of the running interpreter; start one if none runs. If that is impossible, now and ever, write one
 * sentence to standard error and return NULL. `is_own`: it was started here, and ends with the process. */
__attribute__((visibility("hidden"))) const Python *find_python(int *is_own);

/* Let `find_python` fail from now on, in a child without the thread that was starting Python or importing the packages. */
__attribute__((visibility("hidden"))) void forget_other_threads(void);

/* Return the folder of the installed packages, which has pympsd_client; "" if this library is somewhere else. */
__attribute__((visibility("hidden"))) const char *packages_folder(void);

/* Return the same, with words for a message instead of "". */
__attribute__((visibility("hidden"))) const char *packages_name(void);
