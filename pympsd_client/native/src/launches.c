/* The launch cache: cuLaunchKernel for repeated launches, without the interpreter.
 *
 * The problem. A launch takes some microseconds in Python: arguments are converted and checked, the parameters are
 * packed, and a record is put in the ring to the executor. A training step launches the same few kernels again and
 * again, each time with the same stream, shape and types of parameters; only the values of the parameters differ.
 *
 * The idea. The slow path in Python (pympsd_client/_objects/code/launch.py) has all the rules. When a launch is repeated
 * for the first time, it adds a plan: the record as it was sent, what a launch must have in common with it (the key), and
 * where the sequence number and the values of the parameters are in the record. A later call that a plan fits copies the
 * record, writes its own values into it and puts it in the ring. Every other call takes the slow path. A miss is never
 * wrong, only slow, so this file leaves every doubtful case to the slow path, and raises no errors about launches itself.
 *
 *     cuLaunchKernel(f, shape, stream, parameters)
 *         key = (f, stream, shape, types)  --hash-->  plans[slot]
 *             no plan, or another key      -> slow path; `needs_plan` on the second miss of a key
 *             plan: copy of the record, values, sequence number -> ring -> wake the executor if it sleeps
 *
 * The table is direct-mapped: two keys with the same slot evict each other, so nothing needs to be searched or aged.
 *
 * The invariants.
 *   - A plan is valid only under its `epoch`. Whatever may make a plan wrong (a module unloaded, an attribute of a
 *     function set, a stream destroyed, a context closed or faulted, a capture begun, a fork) invalidates all of them:
 *     pympsd_client/_command_stream/launch_cache.py. A plan that was prepared before an invalidation is not added
 *     after it.
 *   - The GIL is the only lock. Between the check that a plan is still in the table and the moment its record is in the
 *     ring, no Python code runs. So the check follows every call that may run some (__int__ of an object, `sequence`).
 *   - The plan's context is the current one of this thread, at every launch.
 *   - Nothing is sent unless all values were converted: a record is built on the stack first.
 *   - Every PULSE launches one takes the slow path, so that a loop of launches notices a fault of the device. */

#include "plans.h"
#include "values.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

enum { ARGUMENTS = 11, SLOTS = 1024, PULSE = 256 };

typedef struct {
    PyObject_HEAD PyObject *slow, *done, *threads, *stack;
    unsigned long long epoch, misses;
    char needs_plan, is_empty, needs_pulse;
    uint32_t sent; /* every PULSE launches, Python checks whether the executor has reported a fault */
    uint32_t seen[SLOTS]; /* hashes of launches without a plan; a second launch makes one worthwhile */
    Plan *plans[SLOTS];
} Launcher;

static int launcher_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    Launcher *self = (Launcher *)object;
    PyObject *slow, *done, *threads;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OOO:Launcher", &slow, &done, &threads))
        return -1;
    if (self->slow != NULL) {
        PyErr_SetString(PyExc_TypeError, "a Launcher is initialised once");
        return -1;
    }
    self->stack = PyUnicode_InternFromString("stack");
    if (self->stack == NULL)
        return -1;
    self->slow = Py_NewRef(slow);
    self->done = Py_NewRef(done);
    self->threads = Py_NewRef(threads);
    return 0;
}

static PyObject *launcher_invalidate(PyObject *object, PyObject *unused) {
    Launcher *self = (Launcher *)object;
    (void)unused;
    self->epoch++;
    if (self->is_empty)
        Py_RETURN_NONE;
    self->is_empty = 1;
    Plan *old_plans[SLOTS]; /* a destructor may run Python code, which must not find a plan */
    memcpy(old_plans, self->plans, sizeof old_plans);
    memset(self->plans, 0, sizeof self->plans);
    memset(self->seen, 0, sizeof self->seen);
    for (int slot = 0; slot < SLOTS; slot++)
        plan_drop(old_plans[slot]);
    Py_RETURN_NONE;
}

static void launcher_free(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Launcher *self = (Launcher *)object;
    Py_XDECREF(launcher_invalidate(object, NULL));
    Py_XDECREF(self->slow);
    Py_XDECREF(self->done);
    Py_XDECREF(self->threads);
    Py_XDECREF(self->stack);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

typedef struct {
    Key key;
    PyObject *values;           /* a tuple; if it is NULL: */
    const void *const *pointers; /* an array of pointers to the values, as C has them */
} Call;

static int call_of(PyObject *const *arguments, Call *call) {
    for (int index = 0; index < SIZES; index++) {
        uint64_t size;
        PyObject *number = arguments[1 + index];
        if (!PyLong_CheckExact(number) || !unsigned_of(number, &size) || size > UINT32_MAX)
            return 0;
        call->key.sizes[index] = (uint32_t)size;
    }
    PyObject *parameters = arguments[9], *extra = arguments[10];
    uint64_t nothing;
    if (extra != Py_None && !(PyLong_CheckExact(extra) && unsigned_of(extra, &nothing) && nothing == 0))
        return 0;
    if (PyLong_CheckExact(parameters)) {
        uint64_t address;
        if (!unsigned_of(parameters, &address))
            return 0;
        call->key.types = by_pointers;
        call->values = NULL;
        call->pointers = (const void *const *)(uintptr_t)address;
        return handle_of(arguments[0], &call->key.function) && handle_of(arguments[8], &call->key.stream);
    }
    if (!PyTuple_CheckExact(parameters) || PyTuple_Size(parameters) != 2)
        return 0;
    call->values = PyTuple_GetItem(parameters, 0);
    call->key.types = PyTuple_GetItem(parameters, 1);
    if (!PyTuple_CheckExact(call->values) || !PyTuple_CheckExact(call->key.types))
        return 0;
    return handle_of(arguments[0], &call->key.function) && handle_of(arguments[8], &call->key.stream);
}

static uint32_t slot_of(uint32_t hash) {
    return (hash >> 1) % SLOTS;
}

static Plan *plan_for(Launcher *self, const Key *key) {
    uint32_t hash = key_hash(key), slot = slot_of(hash);
    Plan *plan = self->plans[slot];
    if (plan != NULL && key_is(key, &plan->key))
        return plan;
    self->needs_plan = self->seen[slot] == hash;
    self->seen[slot] = hash;
    self->is_empty = 0;
    return NULL;
}

/* Return whether the plan's context is current in this thread; a stack that is not a list takes the slow path. */
static int is_current(Launcher *self, const Plan *plan) {
    PyObject *stack = PyObject_GetAttr(self->threads, self->stack);
    Py_ssize_t count = stack != NULL && PyList_CheckExact(stack) ? PyList_Size(stack) : 0;
    int same = count > 0 && PyList_GetItem(stack, count - 1) == plan->context;
    Py_XDECREF(stack);
    clear_ordinary();
    return same;
}

static int values_into(unsigned char *record, const Plan *plan, PyObject *values) {
    if (PyTuple_Size(values) != plan->count)
        return 0;
    for (Py_ssize_t index = 0; index < plan->count; index++)
        if (!value_into(record + plan->values[index].at, PyTuple_GetItem(values, index), plan->values[index].code))
            return 0;
    return 1;
}

static int pointed_into(unsigned char *record, const Plan *plan, const void *const *pointers) {
    if (plan->count && pointers == NULL)
        return 0;
    for (Py_ssize_t index = 0; index < plan->count; index++) {
        if (pointers[index] == NULL)
            return 0;
        memcpy(record + plan->values[index].at, pointers[index], plan->values[index].size);
    }
    return 1;
}

/* Return 1 if the record is in the ring, 0 if nothing was done. */
static int send_plan(Launcher *self, Plan *plan, const Call *call) {
    unsigned char record[MAX_BYTES + 8]; /* with room for a value at the end */
    memcpy(record, plan->record, plan->length);
    if (!(call->values == NULL ? pointed_into(record, plan, call->pointers) : values_into(record, plan, call->values)))
        return 0;
    if (!is_current(self, plan))
        return 0;
    if (++self->sent % PULSE == 0) {
        self->needs_pulse = 1;
        self->misses--; /* a pulse is not a miss */
        return 0;
    }
    PyObject *number = PyObject_CallNoArgs(plan->sequence);
    uint64_t sequence;
    int has_number = number != NULL && unsigned_of(number, &sequence);
    clear_ordinary();
    Py_XDECREF(number);
    /* These calls may have run Python code: is the plan still valid? */
    if (!has_number || self->plans[slot_of(key_hash(&plan->key))] != plan)
        return 0;
    memcpy(record + plan->sequence_at, &sequence, sizeof sequence);
    return writer_put(plan->writer, record, plan->length);
}

static PyObject *slow_path(Launcher *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    PyObject *answer = NULL, *keywords = NULL, *tuple;
    self->misses++;
    if (PyErr_Occurred()) /* Ctrl-C during an object's __int__ */
        return NULL;
    if ((tuple = PyTuple_New(count)) == NULL)
        return NULL;
    for (Py_ssize_t index = 0; index < count; index++)
        if (PyTuple_SetItem(tuple, index, Py_NewRef(arguments[index])) < 0)
            goto out;
    if (named) {
        if ((keywords = PyDict_New()) == NULL)
            goto out;
        for (Py_ssize_t index = 0; index < named; index++)
            if (PyDict_SetItem(keywords, PyTuple_GetItem(names, index), arguments[count + index]) < 0)
                goto out;
    }
    answer = PyObject_Call(self->slow, tuple, keywords);
out:
    Py_DECREF(tuple);
    Py_XDECREF(keywords);
    return answer;
}

static PyObject *launcher_launch(PyObject *object, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
    Launcher *self = (Launcher *)object;
    Call call;
    Plan *plan;
    if (self->slow == NULL) {
        PyErr_SetString(PyExc_TypeError, "a Launcher that was not initialised");
        return NULL;
    }
    self->needs_plan = self->needs_pulse = 0;
    if (count != ARGUMENTS || names != NULL || !call_of(arguments, &call) || (plan = plan_for(self, &call.key)) == NULL)
        return slow_path(self, arguments, count, names);
    plan->refs++;
    if (!send_plan(self, plan, &call)) {
        plan_drop(plan);
        return slow_path(self, arguments, count, names);
    }
    PyObject *answer = atomic_load_explicit(plan->writer->asleep, memory_order_relaxed)
                           ? PyObject_CallNoArgs(plan->bell)
                           : Py_NewRef(self->done);
    plan_drop(plan);
    return answer;
}

static PyObject *launcher_add_plan(PyObject *object, PyObject *arguments) {
    Launcher *self = (Launcher *)object;
    unsigned long long epoch;
    Plan *plan = plan_new(arguments, &epoch);
    if (plan == NULL)
        return NULL;
    if (epoch != self->epoch) {
        plan_drop(plan);
        Py_RETURN_FALSE;
    }
    uint32_t slot = slot_of(key_hash(&plan->key));
    Plan *before = self->plans[slot];
    self->plans[slot] = plan;
    self->is_empty = 0;
    plan_drop(before);
    Py_RETURN_TRUE;
}

#define SIGNATURE                                                                                                      \
    "cuLaunchKernel($self, /, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, "      \
    "hStream, kernelParams, extra)\n--\n\n"

/* Pickle a Launcher's method as a name in the module that programs import. */
static PyObject *launcher_reduce(PyObject *object, PyObject *unused) {
    PyObject *importlib = PyImport_ImportModule("importlib"), *answer = NULL;
    (void)object;
    (void)unused;
    if (importlib != NULL) {
        PyObject *import = PyObject_GetAttrString(importlib, "import_module");
        if (import != NULL)
            answer = Py_BuildValue("(N(s))", import, "pympsd_client.driver");
        Py_DECREF(importlib);
    }
    return answer;
}

static PyMethodDef launcher_methods[] = {
    {"cuLaunchKernel", (PyCFunction)(void (*)(void))launcher_launch, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(SIGNATURE "Start a kernel without waiting for it; its errors are reported by later calls.\n\n"
               "Parameters as ``(values, ctypes types)``, as an address or buffer of pointers, or through ``extra`` (an\n"
               "address). INVALID_VALUE for a shape or parameters that cannot be, LAUNCH_OUT_OF_RESOURCES for more\n"
               "threads than the kernel was built for, INVALID_HANDLE, or the error that made the context unusable earlier.")},
    {"add_plan", launcher_add_plan, METH_VARARGS,
     PyDoc_STR("Add a plan; return False when all were invalidated since ``epoch``.")},
    {"__reduce__", launcher_reduce, METH_NOARGS, NULL},
    {"invalidate", launcher_invalidate, METH_NOARGS,
     PyDoc_STR("Drop all plans: every launch is checked in Python again.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef launcher_members[] = {
    {"epoch", T_ULONGLONG, offsetof(Launcher, epoch), READONLY, "The number of invalidations."},
    {"misses", T_ULONGLONG, offsetof(Launcher, misses), READONLY, "The number of calls that took the slow path."},
    {"needs_pulse", T_BOOL, offsetof(Launcher, needs_pulse), READONLY,
     PyDoc_STR("Whether the present launch checks whether a fault was reported.")},
    {"needs_plan", T_BOOL, offsetof(Launcher, needs_plan), READONLY,
     "Whether the latest call missed for the second time."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot launcher_slots[] = {
    {Py_tp_doc, "Launcher(slow, done, threads): slow is the slow path, done is returned, threads.stack has contexts."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, launcher_init},
    {Py_tp_dealloc, launcher_free},
    {Py_tp_methods, launcher_methods},
    {Py_tp_members, launcher_members},
    {0, NULL},
};

static PyType_Spec launcher_spec = {"pympsd_client.native._launches.Launcher", sizeof(Launcher), 0, Py_TPFLAGS_DEFAULT,
                                    launcher_slots};

/* Return the flat buffer of parameters that are passed as an array of pointers. */
static PyObject *gather(PyObject *module, PyObject *arguments) {
    unsigned long long address;
    Py_ssize_t size;
    PyObject *places, *answer;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KO!n:gather", &address, &PyTuple_Type, &places, &size))
        return NULL;
    if (size < 0 || (answer = PyBytes_FromStringAndSize(NULL, size)) == NULL)
        return size < 0 ? PyErr_Format(PyExc_ValueError, "a size is not negative") : NULL;
    char *buffer = PyBytes_AsString(answer);
    const void *const *pointers = (const void *const *)(uintptr_t)address;
    memset(buffer, 0, (size_t)size);
    for (Py_ssize_t index = 0, count = PyTuple_Size(places); index < count; index++) {
        Py_ssize_t offset, bytes;
        if (!PyArg_ParseTuple(PyTuple_GetItem(places, index), "nn", &offset, &bytes))
            goto failed;
        if (offset < 0 || bytes < 0 || offset > size || bytes > size - offset) {
            PyErr_SetString(PyExc_ValueError, "a parameter out of bounds");
            goto failed;
        }
        if (pointers == NULL || pointers[index] == NULL) {
            Py_DECREF(answer);
            Py_RETURN_NONE;
        }
        memcpy(buffer + offset, pointers[index], (size_t)bytes);
    }
    return answer;
failed:
    Py_DECREF(answer);
    return NULL;
}

static PyMethodDef functions[] = {
    {"gather", gather, METH_VARARGS,
     PyDoc_STR("gather(address, ((offset, size), ...), size): return the flat buffer of the parameters at an array of\n"
               "pointers; None if one of them is NULL.")},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launches", "Launches without the interpreter.", -1, functions,
                                 NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__launches(void) {
    const uint16_t one = 1;
    if (*(const unsigned char *)&one != 1) {
        PyErr_SetString(PyExc_ImportError, "made for little-endian machines");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition), *type;
    if (module == NULL)
        return NULL;
    if ((type = PyType_FromSpec(&writer_spec)) == NULL || PyModule_AddObjectRef(module, "Writer", type) < 0)
        goto failed;
    writer_type = (PyTypeObject *)type; /* kept for good */
    by_pointers = Py_BuildValue("(O)", Py_Ellipsis); /* kept for good; it differs from every ctypes type */
    if (by_pointers == NULL || PyModule_AddObjectRef(module, "BY_POINTERS", by_pointers) < 0)
        goto failed;
    if (PyModule_AddIntMacro(module, MAX_VALUES) < 0 || PyModule_AddIntMacro(module, MAX_BYTES) < 0)
        goto failed;
    if ((type = PyType_FromSpec(&launcher_spec)) == NULL || PyModule_AddObjectRef(module, "Launcher", type) < 0)
        goto failed;
    Py_DECREF(type);
    return module;
failed:
    Py_XDECREF(type);
    Py_DECREF(module);
    return NULL;
}
