#include "values.h"

#include <math.h>
#include <string.h>

void clear_ordinary(void) {
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
}

int unsigned_of(PyObject *number, uint64_t *value) {
    *value = PyLong_AsUnsignedLongLong(number);
    if (*value == (uint64_t)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

int handle_of(PyObject *object, uint64_t *value) {
    *value = 0;
    if (object == Py_None)
        return 1;
    if (PyLong_CheckExact(object))
        return unsigned_of(object, value);
    unaryfunc to_int = (unaryfunc)PyType_GetSlot(Py_TYPE(object), Py_nb_int);
    if (to_int == NULL)
        return 0;
    PyObject *number = to_int(object);
    int fits = number != NULL && PyLong_Check(number) && unsigned_of(number, value);
    clear_ordinary();
    Py_XDECREF(number);
    return fits;
}

static int signed_into(unsigned char *place, PyObject *number, int bytes) {
    long long value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    if (bytes < 8 && (value < -(1ll << (8 * bytes - 1)) || value >= 1ll << (8 * bytes - 1)))
        return 0;
    memcpy(place, &value, (size_t)bytes); /* little-endian, as every host of a GPU is; PyInit checks it */
    return 1;
}

static int unsigned_into(unsigned char *place, PyObject *number, int bytes) {
    uint64_t value;
    if (!unsigned_of(number, &value) || (bytes < 8 && value >> (8 * bytes)))
        return 0;
    memcpy(place, &value, (size_t)bytes);
    return 1;
}

static int real_into(unsigned char *place, PyObject *number, char code) {
    double value = PyFloat_AsDouble(number);
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    if (code == 'd') {
        memcpy(place, &value, sizeof value);
        return 1;
    }
    float narrow = (float)value;
    if (isinf(narrow) && !isinf(value))
        return 0;
    memcpy(place, &narrow, sizeof narrow);
    return 1;
}

int value_into(unsigned char *place, PyObject *value, char code) {
    uint64_t handle;
    if (code == 'o') {
        /* A real number is not a handle: the slow path raises the error. */
        if (value == Py_None || (PyType_GetSlot(Py_TYPE(value), Py_nb_float) != NULL && !PyIndex_Check(value)) ||
            !handle_of(value, &handle))
            return 0;
        memcpy(place, &handle, sizeof handle);
        return 1;
    }
    if (code == '?') {
        if (value != Py_True && value != Py_False)
            return 0;
        *place = value == Py_True;
        return 1;
    }
    if (code == 'f' || code == 'd')
        return (PyFloat_CheckExact(value) || PyLong_CheckExact(value)) && real_into(place, value, code);
    if (!PyLong_CheckExact(value))
        return 0;
    switch (code) {
    case 'b': return signed_into(place, value, 1);
    case 'B': return unsigned_into(place, value, 1);
    case 'h': return signed_into(place, value, 2);
    case 'H': return unsigned_into(place, value, 2);
    case 'i': return signed_into(place, value, 4);
    case 'I': return unsigned_into(place, value, 4);
    case 'q': return signed_into(place, value, 8);
    case 'Q': return unsigned_into(place, value, 8);
    default: return 0;
    }
}
