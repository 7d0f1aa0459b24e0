#include "writer.h"

#include <string.h>

static int writer_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    Writer *self = (Writer *)object;
    PyObject *keeper;
    unsigned long long address, data, size, tail, head, asleep;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OKKKKKK:Writer", &keeper, &address, &data, &size, &tail, &head, &asleep))
        return -1;
    if (size == 0) {
        PyErr_SetString(PyExc_ValueError, "a ring of 0 bytes");
        return -1;
    }
    unsigned char *area = (unsigned char *)(uintptr_t)address;
    PyObject *before = self->keeper;
    self->keeper = Py_NewRef(keeper);
    self->data = area + data;
    self->size = size;
    self->tail = (_Atomic uint64_t *)(area + tail);
    self->head = (_Atomic uint64_t *)(area + head);
    self->asleep = (_Atomic uint64_t *)(area + asleep);
    Py_XDECREF(before);
    return 0;
}

int writer_put(Writer *self, const unsigned char *record, size_t length) {
    uint64_t tail = atomic_load_explicit(self->tail, memory_order_relaxed);
    uint64_t used = tail - atomic_load_explicit(self->head, memory_order_acquire);
    if (used > self->size || length > self->size - used)
        return 0;
    uint64_t start = tail % self->size, first = self->size - start;
    if (first > length)
        first = length;
    memcpy(self->data + start, record, first);
    memcpy(self->data, record + first, length - first);
    atomic_store_explicit(self->tail, tail + length, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    return 1;
}

static PyObject *put(PyObject *object, PyObject *record) {
    char *bytes;
    Py_ssize_t length;
    if (((Writer *)object)->keeper == NULL) {
        PyErr_SetString(PyExc_ValueError, "a Writer that was not initialised");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(record, &bytes, &length) < 0)
        return NULL;
    return PyBool_FromLong(writer_put((Writer *)object, (unsigned char *)bytes, (size_t)length));
}

static void writer_free(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(((Writer *)object)->keeper);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef writer_methods[] = {
    {"put", put, METH_O, PyDoc_STR("put(record)\n--\n\nPut a record in; return False when there is no room now.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "Writer(keeper, address, data, size, tail, head, asleep): a ring at an address, offsets in bytes."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, writer_init},
    {Py_tp_dealloc, writer_free},
    {Py_tp_methods, writer_methods},
    {0, NULL},
};

PyType_Spec writer_spec = {"pympsd_client.native._launches.Writer", sizeof(Writer), 0, Py_TPFLAGS_DEFAULT, writer_slots};
