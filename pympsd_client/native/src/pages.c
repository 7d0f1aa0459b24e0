/* Replaces pages of the program by others with the same bytes. No other Python code runs until that is done, because the
 * interpreter's own objects may be in the same pages. */

#define _GNU_SOURCE
#include "python.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NEAR = 1 << 16 };

static PyObject *replace(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long place, source, size;
    int keep;
    if (!PyArg_ParseTuple(arguments, "KKKp", &place, &source, &size, &keep))
        return NULL;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), here = (uint64_t)(uintptr_t)&keep;
    if (here + NEAR > place && here < place + size + NEAR) {
        PyErr_SetString(PyExc_ValueError, "the pages are those of this thread's stack");
        return NULL;
    }
    uint64_t at = 0;
    for (; at < size; at += page) {
        void *from = (void *)(uintptr_t)(source + at), *to = (void *)(uintptr_t)(place + at);
        memcpy(from, to, page);
        if (mremap(from, keep ? 0 : page, page, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED)
            break;
    }
    return PyLong_FromUnsignedLongLong(at);
}

static PyMethodDef functions[] = {
    {"replace", replace, METH_VARARGS,
     PyDoc_STR("replace(place, source, size, keep): copy the pages at ``place`` to ``source`` and move these there,\n"
               "page by page, or with ``keep``, if they are shared ones, map them there too. Return the bytes done, fewer\n"
               "than ``size`` if the system refuses. ValueError for this thread's stack.")},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_pages", "Pages of the program.", -1, functions, NULL, NULL, NULL,
                                 NULL};

PyMODINIT_FUNC PyInit__pages(void) { return PyModule_Create(&definition); }
