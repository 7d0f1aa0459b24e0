#include "plans.h"

#include <string.h>

PyTypeObject *writer_type;
PyObject *by_pointers;

static uint64_t mix(uint64_t hash, uint64_t more) {
    hash = (hash ^ more) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

uint32_t key_hash(const Key *key) {
    uint64_t hash = mix(key->function, key->stream);
    for (int index = 0; index < SIZES; index++)
        hash = mix(hash, key->sizes[index]);
    for (Py_ssize_t index = 0, count = PyTuple_Size(key->types); index < count; index++)
        hash = mix(hash, (uintptr_t)PyTuple_GetItem(key->types, index));
    return (uint32_t)hash | 1u;
}

static int is_same(PyObject *types, PyObject *others) {
    if (types == others)
        return 1;
    Py_ssize_t count = PyTuple_Size(types);
    if (PyTuple_Size(others) != count)
        return 0;
    for (Py_ssize_t index = 0; index < count; index++)
        if (PyTuple_GetItem(types, index) != PyTuple_GetItem(others, index))
            return 0;
    return 1;
}

int key_is(const Key *key, const Key *other) {
    return key->function == other->function && key->stream == other->stream &&
           memcmp(key->sizes, other->sizes, sizeof key->sizes) == 0 && is_same(key->types, other->types);
}

void plan_drop(Plan *plan) {
    if (plan == NULL || --plan->refs)
        return;
    Py_XDECREF(plan->key.types);
    Py_XDECREF(plan->context);
    Py_XDECREF(plan->sequence);
    Py_XDECREF(plan->bell);
    Py_XDECREF((PyObject *)plan->writer);
    PyMem_Free(plan);
}

static int plan_values(Plan *plan, PyObject *values, Py_ssize_t length) {
    plan->count = PyTuple_Size(values);
    if (plan->count < 0 || plan->count > MAX_VALUES)
        return 0;
    for (Py_ssize_t index = 0; index < plan->count; index++) {
        unsigned int at, size = 0;
        int code;
        if (!PyTuple_Check(PyTuple_GetItem(values, index)) ||
            !PyArg_ParseTuple(PyTuple_GetItem(values, index), "IC|I", &at, &code, &size) || at >= length ||
            size > length - at)
            return 0;
        plan->values[index] = (Value){at, size, (char)code};
    }
    return 1;
}

Plan *plan_new(PyObject *arguments, unsigned long long *epoch) {
    unsigned long long function, stream;
    PyObject *types, *context, *sequence, *bell, *writer, *record, *values;
    unsigned int s[SIZES], sequence_at;
    if (!PyArg_ParseTuple(arguments, "KKK(IIIIIII)O!OOOO!SIO!:add_plan", epoch, &function, &stream, s, s + 1, s + 2, s + 3,
                          s + 4, s + 5, s + 6, &PyTuple_Type, &types, &context, &sequence, &bell, writer_type, &writer,
                          &record, &sequence_at, &PyTuple_Type, &values))
        return NULL;
    Py_ssize_t length = PyBytes_Size(record);
    Plan *plan = PyMem_Calloc(1, sizeof *plan);
    if (plan == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    plan->refs = 1;
    if (((Writer *)writer)->keeper == NULL || length < 8 || length > MAX_BYTES || sequence_at > length - 8 ||
        !plan_values(plan, values, length)) {
        plan_drop(plan);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "add_plan: a record or a value out of bounds, or no Writer in use");
        return NULL;
    }
    plan->key.function = function;
    plan->key.stream = stream;
    memcpy(plan->key.sizes, s, sizeof s);
    plan->key.types = Py_NewRef(types);
    plan->context = Py_NewRef(context);
    plan->sequence = Py_NewRef(sequence);
    plan->bell = Py_NewRef(bell);
    plan->writer = (Writer *)Py_NewRef(writer);
    plan->length = (uint32_t)length;
    plan->sequence_at = sequence_at;
    memcpy(plan->record, PyBytes_AsString(record), (size_t)length);
    return plan;
}
