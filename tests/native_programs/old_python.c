/* A program with a Python that is too old, as far as libcuda.so.1 sees: the functions that it looks up (-rdynamic). */

#include "driver.h"

#define FUNCTION(name)                                                                                                 \
    long name(void) {                                                                                                  \
        return 0;                                                                                                      \
    }
FUNCTION(Py_InitializeEx)
FUNCTION(PyGILState_GetThisThreadState)
FUNCTION(PyGILState_Ensure)
FUNCTION(PyGILState_Release)
FUNCTION(PyEval_SaveThread)
FUNCTION(PyImport_ImportModule)
FUNCTION(PyObject_CallMethod)
FUNCTION(PyLong_AsLong)
FUNCTION(PyErr_Occurred)
FUNCTION(PyErr_Fetch)
FUNCTION(PyErr_NormalizeException)
FUNCTION(PyErr_Clear)
FUNCTION(PyObject_Str)
FUNCTION(PyObject_GetAttrString)
FUNCTION(PyUnicode_AsUTF8AndSize)
FUNCTION(PySys_GetObject)
FUNCTION(Py_DecRef)
FUNCTION(PyOS_BeforeFork)
FUNCTION(PyOS_AfterFork_Parent)
FUNCTION(PyOS_AfterFork_Child)

int Py_IsInitialized(void) {
    return 1;
}

const char *Py_GetVersion(void) {
    return "3.10.13 (main, Aug 24 2023)";
}

int main(void) {
    printf("%d\n", cuInit(0));
    return 0;
}
