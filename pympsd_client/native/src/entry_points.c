/* C functions that call Python functions: they take the place of the function pointers of cuda.bindings.
 *
 * The problem. cuda.bindings calls CUDA through a table of C function pointers, which a program's own C code may call
 * as well, from any thread, with or without the GIL. The client of pympsd is Python.
 *
 * The idea. A function of the CUDA libraries takes integers, pointers and, rarely, structures by value, and returns
 * its result as an int. A trampoline (trampolines.c) takes the place of each: it passes every integer register and
 * some words of the stack here. Each trampoline has a slot, which records how its arguments are read, what is called,
 * and where its outputs go. The slot is filled at the first call, when Python resolves the function
 * (pympsd_client/routing):
 *
 *     cuMemAlloc(dptr, 64)   C, format ">QQ": an output of 8 bytes, an input of 8 bytes
 *         -> trampoline n -> enter_trampoline(n, registers, stack) -> enter(slots[n], words): takes the GIL
 *         -> call(): inputs = (64,);  Python function(64) -> address
 *         -> *dptr = address; 0, or what `failed` returns for an exception
 *
 * A slot may also have a core: the function that its Python function calls after its checks. While `is_checked` is set,
 * the core is called directly, because the checks have passed and nothing has changed since.
 *
 * The invariants.
 *   - Python objects are touched only with the GIL. If an exception is propagating when a destructor calls CUDA, it is
 *     restored afterwards. An exception never leaves a call; it becomes a result.
 *   - After `pass_on` every call goes to the original function, unchanged, as if it had never been replaced: the
 *     program runs natively. A trampoline therefore changes no register and no stack until that is decided.
 *   - After the interpreter's end no call enters Python, although destructors of C++ objects may make calls. Functions
 *     that free succeed, those that make a context current return NULL or succeed, all others fail with DEINITIALIZED.
 *   - A thread that Python did not start keeps one thread state from its first call until it ends. A new state for each
 *     call would lose the thread's current context each time.
 *   - A function's first call imports modules, under locks. A fork in another thread copies the locks, and nobody unlocks
 *     the copies. In such a child no call enters Python. All fail with NOT_INITIALIZED, as nearly all do in any child.
 *   - Slots and names are never freed, because programs keep the addresses. */

#define _GNU_SOURCE

#include "in_time.h"
#include "python.h"
#include "stack.h"
#include "trampolines.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMETERS = 16, STACK = 10, UNKNOWN = 999, NOT_SUPPORTED = 801, NOT_INITIALIZED = 3, DEINITIALIZED = 4, OPERATING_SYSTEM = 304, INVALID_VALUE = 1, PER_THREAD = 2 };

/* One parameter. Inputs: i int, I unsigned, Q 64 bits, B and H 8 and 16 bits, s a C string, t a stream (NULL is the
 * calling thread's own), v a structure of `bytes` bytes by value. Outputs, which are passed by pointer: i, I, Q, f float,
 * d double, b bytes as they are. */
typedef struct {
    char code;
    char is_output, may_be_null; /* 1, or ONE_IS_NEEDED */
    uint16_t bytes;
} Parameter;

enum { ONE_IS_NEEDED = 2 }; /* the outputs of a function may be NULL, but not all of them */

#define MISSING_OUTPUT "an address to which the function writes is NULL; pass the address of a variable"

/* The result of a call at the interpreter's end, when everything is freed anyway. All failing calls have one result then;
 * destructors that report errors ask for its name and description. */
typedef enum { FAILS, SUCCEEDS, RETURNS_NULL, NAMES_ERROR, DESCRIBES_ERROR } End;

typedef struct {
    char *name, *signature;
    PyObject *resolve, *failed, *call;
    PyObject *core; /* the function that `call` ends with after its checks, with the same arguments; NULL if it does more */
    int count, outputs;
    char is_launch_by_config;
    char always_passes; /* the original is called even after the interpreter's end */
    char at_end;        /* an End; unused if it always passes */
    Parameter parameters[MAX_PARAMETERS];
} Slot;

static Slot slots[TRAMPOLINES];
static Slot *launch; /* the slot of cuLaunchKernel */
static int used;
static _Atomic int passes, has_ended;
static int is_helped;  /* this is a Python program, so other threads' first calls are made ready in time (in_time.h) */
static int is_checked; /* whether the checks before a core would pass; the GIL is its lock */
static int (*is_finalizing)(void);
static __thread char has_state; /* this thread has a permanent thread state */
static pthread_key_t leaving;
static _Atomic int first_calls; /* first calls of functions in progress */
static __thread int own_first_calls;
static int is_cut_off; /* this is a child that was forked during another thread's first call */

/* Return the next word of a call; NULL past the words that are taken from the stack. */
static const uint64_t *word(const uint64_t *words, int *in_registers, int *on_stack) {
    if (*in_registers < REGISTERS)
        return &words[(*in_registers)++];
    return *on_stack < STACK ? &words[REGISTERS + (*on_stack)++] : NULL;
}

/* A structure of more than two words is passed on the stack, or by address; a smaller one in registers if it fits. */
static const void *structure(const uint64_t *words, int *in_registers, int *on_stack, uint16_t bytes) {
    int length = (bytes + 7) / 8, *next = on_stack, first = REGISTERS;
#if defined(__aarch64__)
    if (bytes > 16) {
        const uint64_t *at = word(words, in_registers, on_stack);
        return at == NULL ? NULL : *at == 0 ? words : (const void *)(uintptr_t)*at; /* 0 only when `nothing` is read */
    }
    if (*in_registers + length > REGISTERS)
        *in_registers = REGISTERS;
#endif
    if (bytes <= 16 && *in_registers + length <= REGISTERS) {
        next = in_registers;
        first = 0;
    }
    if (next == on_stack && *on_stack + length > STACK)
        return NULL;
    const void *start = &words[first + *next];
    *next += length;
    return start;
}

static PyObject *input(const Parameter *parameter, uint64_t word) {
    switch (parameter->code) {
    case 'i': return PyLong_FromLong((int32_t)word);
    case 'I': return PyLong_FromUnsignedLong((uint32_t)word);
    case 'H': return PyLong_FromUnsignedLong((uint16_t)word);
    case 'B': return PyLong_FromUnsignedLong((uint8_t)word);
    case 't': return PyLong_FromUnsignedLongLong(word == 0 ? PER_THREAD : word);
    case 's':
        if (word == 0)
            return Py_NewRef(Py_None);
        const char *text = (const char *)(uintptr_t)word;
        return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
    default: return PyLong_FromUnsignedLongLong(word);
    }
}

static int number_into(unsigned char *place, char code, PyObject *value) {
    if (code == 'f' || code == 'd') {
        double real = PyFloat_AsDouble(value);
        float narrow = (float)real;
        if (real == -1.0 && PyErr_Occurred())
            return -1;
        memcpy(place, code == 'f' ? (void *)&narrow : (void *)&real, code == 'f' ? sizeof narrow : sizeof real);
        return 0;
    }
    PyObject *number = PyLong_CheckExact(value) ? Py_NewRef(value) : PyNumber_Long(value);
    if (number == NULL)
        return -1;
    unsigned long long word = PyLong_AsUnsignedLongLongMask(number);
    Py_DECREF(number);
    if (word == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    memcpy(place, &word, code == 'Q' ? 8 : 4);
    return 0;
}

/* A list of numbers is written as an array, bytes as they are; None writes nothing. */
static int output(const Parameter *parameter, uint64_t word, PyObject *value) {
    unsigned char *place = (unsigned char *)(uintptr_t)word;
    if (place == NULL || value == Py_None)
        return 0;
    if (PyBytes_Check(value)) {
        memcpy(place, PyBytes_AsString(value), (size_t)PyBytes_Size(value));
        return 0;
    }
    if (!PyList_Check(value))
        return number_into(place, parameter->code, value);
    size_t width = parameter->code == 'Q' || parameter->code == 'd' ? 8 : 4;
    for (Py_ssize_t index = 0; index < PyList_Size(value); index++)
        if (number_into(place + width * (size_t)index, parameter->code, PyList_GetItem(value, index)) < 0)
            return -1;
    return 0;
}

/* Do Python's part of a call: return the result, or -1 with an error set. */
static int call(Slot *slot, const uint64_t *words) {
    PyObject *values[MAX_PARAMETERS + 1] = {NULL}, *answer = NULL;
    uint64_t addresses[MAX_PARAMETERS];
    int inputs = 0, outputs = 0, missing = 0, in_registers = 0, on_stack = 0, result = -1;
    for (int index = 0; index < slot->count; index++) {
        const Parameter *parameter = &slot->parameters[index];
        if (parameter->code == 'v') {
            const void *bytes = structure(words, &in_registers, &on_stack, parameter->bytes);
            if ((values[inputs] = PyBytes_FromStringAndSize(bytes, parameter->bytes)) == NULL)
                goto out;
            inputs++;
            continue;
        }
        uint64_t argument = *word(words, &in_registers, &on_stack);
        if (parameter->is_output) {
            if (argument == 0 && !parameter->may_be_null) {
                PyErr_SetString(PyExc_ValueError, MISSING_OUTPUT);
                goto out;
            }
            addresses[outputs++] = argument;
            missing += argument == 0 && parameter->may_be_null == ONE_IS_NEEDED;
        } else if ((values[inputs] = input(parameter, argument)) == NULL)
            goto out;
        else
            inputs++;
    }
    if (missing && missing == outputs) {
        PyErr_SetString(PyExc_ValueError, MISSING_OUTPUT);
        goto out;
    }
    PyObject **g = values, *function = is_checked && slot->core != NULL ? slot->core : slot->call;
    answer = inputs == 0 ? PyObject_CallNoArgs(function)
                         : PyObject_CallFunctionObjArgs(function, g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8], g[9], g[10],
                                          g[11], g[12], g[13], g[14], g[15], NULL);
    if (answer == NULL)
        goto out;
    result = 0;
    if (slot->outputs == 0) { /* None, a result, or the tuple that a public function returns */
        PyObject *code = PyTuple_Check(answer) && PyTuple_Size(answer) > 0 ? PyTuple_GetItem(answer, 0) : answer;
        if (code != Py_None && (result = (int)PyLong_AsLong(code)) == -1 && PyErr_Occurred())
            goto out;
    }
    for (int index = 0, at = 0; index < slot->count && result == 0; index++) {
        const Parameter *parameter = &slot->parameters[index];
        if (!parameter->is_output)
            continue;
        PyObject *value = slot->outputs == 1 ? Py_NewRef(answer) : PySequence_GetItem(answer, at);
        if (value == NULL || output(parameter, addresses[at], value) < 0)
            result = -1;
        Py_XDECREF(value);
        at++;
    }
out:
    for (int index = 0; index < inputs; index++)
        Py_DECREF(values[index]);
    Py_XDECREF(answer);
    return result;
}

static int read_format(Slot *slot, const char *format) {
    int in_registers = 0, on_stack = 0;
    slot->count = slot->outputs = 0;
    while (*format) {
        if (slot->count == MAX_PARAMETERS) {
            PyErr_Format(PyExc_ValueError, "%s has more than %d parameters", slot->name, MAX_PARAMETERS);
            return -1;
        }
        Parameter *parameter = &slot->parameters[slot->count++];
        *parameter = (Parameter){0};
        if (strchr(">?|", *format) != NULL) {
            parameter->is_output = 1;
            parameter->may_be_null = *format == '|' ? ONE_IS_NEEDED : *format == '?';
            format++;
            slot->outputs++;
        }
        parameter->code = *format++;
        uint64_t nothing[REGISTERS + STACK] = {0};
        if (strchr(parameter->is_output ? "iIQfdb" : "iIQBHsvt", parameter->code) == NULL) {
            PyErr_Format(PyExc_ValueError, "%s has a parameter of unknown code %c", slot->name, parameter->code);
            return -1;
        }
        if (parameter->code == 'v') {
            char *end;
            parameter->bytes = (uint16_t)strtoul(format, &end, 10);
            format = end;
        }
        /* Calls read the same words, so none may be past those that an entry point takes from the stack. */
        if (parameter->code == 'v' ? structure(nothing, &in_registers, &on_stack, parameter->bytes) == NULL
                                   : word(nothing, &in_registers, &on_stack) == NULL) {
            PyErr_Format(PyExc_ValueError, "%s has more than %d words of parameters on the stack", slot->name, STACK);
            return -1;
        }
    }
    return 0;
}

static int resolve(Slot *slot) {
    PyObject *answer = PyObject_CallFunction(slot->resolve, "ss", slot->name, slot->signature), *function, *text;
    if (answer == NULL)
        return -1;
    int result = -1;
    Py_ssize_t size = PyTuple_Check(answer) ? PyTuple_Size(answer) : 0;
    if (size == 2 || size == 3) {
        function = PyTuple_GetItem(answer, 0);
        text = PyUnicode_AsUTF8String(PyTuple_GetItem(answer, 1));
        if (text != NULL && slot->call == NULL && read_format(slot, PyBytes_AsString(text)) == 0) {
            slot->core = size == 3 ? Py_NewRef(PyTuple_GetItem(answer, 2)) : NULL;
            slot->call = Py_NewRef(function);
        }
        if (text != NULL && slot->call != NULL)
            result = 0;
        Py_XDECREF(text);
    } else
        PyErr_SetString(PyExc_TypeError, "resolve returns a function and the format of its parameters");
    Py_DECREF(answer);
    return result;
}

/* Report once that the reason of a failed call is unknown, because a module of pympsd cannot be imported. */
static void report_broken(const Slot *slot, PyObject *type, PyObject *value) {
    static int has_reported;
    PyObject *name = type == NULL || has_reported ? NULL : PyObject_GetAttrString(type, "__name__");
    if (name != NULL) {
        has_reported = 1;
        PySys_FormatStderr("pympsd: %s: CUDA_ERROR_UNKNOWN: pympsd itself does not work here: %U: %S\n", slot->name, name,
                           value ? value : Py_None);
    }
    Py_XDECREF(name);
    PyErr_Clear();
}

/* Clear the current exception and return the result for it. */
static int result_of_error(Slot *slot) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value != NULL && trace != NULL)
        PyException_SetTraceback(value, trace);
    if (type != NULL && PyErr_GivenExceptionMatches(type, PyExc_KeyboardInterrupt))
        PyErr_SetInterrupt(); /* raised again as soon as Python code runs */
    PyObject *code = PyObject_CallFunction(slot->failed, "sO", slot->name, value ? value : Py_None);
    int result = code == NULL ? UNKNOWN : (int)PyLong_AsLong(code);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        report_broken(slot, type, value);
        result = UNKNOWN;
    }
    Py_XDECREF(code);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return result;
}

/* CUlaunchConfig, as cuda.h has it. */
typedef struct {
    uint32_t sizes[7];
    uint64_t stream;
    const void *attributes;
    uint32_t count;
} LaunchConfig;

/* cuLaunchKernelEx(config, function, parameters, extra) without attributes is cuLaunchKernel: its slot and words. */
static Slot *launch_without_attributes(const uint64_t *words, uint64_t *others) {
    const LaunchConfig *config = (const LaunchConfig *)(uintptr_t)words[0];
    if (config == NULL || config->count != 0)
        return NULL;
    *others++ = words[1];
    for (int index = 0; index < 7; index++)
        *others++ = config->sizes[index];
    *others++ = config->stream;
    *others++ = words[2];
    *others = words[3];
    return launch;
}

static int result_at_end(const Slot *slot, const uint64_t *words) {
    if (slot->always_passes)
        return PASS_ON;
    int has_text = slot->at_end == NAMES_ERROR || slot->at_end == DESCRIBES_ERROR;
    if (slot->at_end == RETURNS_NULL && words[0] != 0)
        *(void **)(uintptr_t)words[0] = NULL;
    if (has_text && words[1] != 0)
        *(const char **)(uintptr_t)words[1] = (int)words[0] != DEINITIALIZED       ? NULL
                                              : slot->at_end == NAMES_ERROR ? "CUDA_ERROR_DEINITIALIZED"
                                                                            : "driver shutting down";
    return slot->at_end == FAILS ? DEINITIALIZED : has_text && (int)words[0] != DEINITIALIZED ? INVALID_VALUE : 0;
}

static int has_finished(void) {
    return atomic_load_explicit(&has_ended, memory_order_acquire) || is_finalizing();
}

/* End the state of a thread that ends, and with it the thread's values of `threading.local`. The C library has set all
 * keys of the thread to NULL, including the one by which PyGILState_Release would find the state. */
static void leave_thread(void *state) {
    if (has_finished())
        return;
    PyEval_RestoreThread(state);
    PyThreadState_Clear(state);
    PyThreadState_Delete(PyEval_SaveThread());
}

/* Import what the call of a thread of the program will need. Errors are left to the call. */
static int resolve_as_helper(const void *argument) {
    Slot *slot = *(Slot *const *)argument;
    atomic_fetch_add(&first_calls, 1);
    PyGILState_STATE state = PyGILState_Ensure();
    if (slot->call == NULL && resolve(slot) < 0)
        PyErr_Clear();
    PyGILState_Release(state);
    atomic_fetch_sub(&first_calls, 1);
    return 0;
}

/* Give a thread that Python did not start one state for all of its calls; the state holds its current context. Return
 * whether the thread can enter Python. */
static int keep_state(Slot *slot) {
    if (PyGILState_GetThisThreadState() == NULL) {
        if (refuse_small_stack())
            return 0;
        if (is_helped && slot->call == NULL && work_in_time(resolve_as_helper, &slot, sizeof slot, slot->name, -1) < 0)
            return 0;
        PyGILState_Ensure();
        PyThreadState *state = PyEval_SaveThread();
        pthread_setspecific(leaving, state);
    }
    return has_state = 1;
}

/* In a child: note whether another thread was in a first call, because that thread does not exist here. */
static void after_fork(void) {
    is_cut_off |= atomic_load(&first_calls) > own_first_calls;
    atomic_store(&first_calls, own_first_calls);
}

static int enter_first(Slot *slot, const uint64_t *words) {
    atomic_fetch_add(&first_calls, 1);
    own_first_calls++;
    int result = resolve(slot) < 0 ? -1 : call(slot, words);
    own_first_calls--;
    atomic_fetch_sub(&first_calls, 1);
    return result;
}

static int enter(Slot *slot, const uint64_t *words) {
    PyObject *type, *value, *trace;
    if (has_finished())
        return result_at_end(slot, words);
    if (is_cut_off)
        return slot->always_passes ? PASS_ON : NOT_INITIALIZED;
    if (!has_state && !keep_state(slot))
        return OPERATING_SYSTEM;
    PyGILState_STATE state = PyGILState_Ensure();
    int result, had_error = PyErr_Occurred() != NULL; /* a destructor may run while an exception propagates */
    if (had_error)
        PyErr_Fetch(&type, &value, &trace);
    uint64_t others[REGISTERS + STACK];
    Slot *plain = slot->is_launch_by_config ? launch_without_attributes(words, others) : NULL;
    if (plain != NULL) {
        slot = plain;
        words = others;
    }
    result = slot->call == NULL ? enter_first(slot, words) : call(slot, words);
    if (result == -1)
        result = result_of_error(slot);
    if (had_error)
        PyErr_Restore(type, value, trace);
    PyGILState_Release(state);
    return atomic_load_explicit(&passes, memory_order_acquire) ? PASS_ON : result;
}

/* Pass a call on, if the original function exists: older drivers do not have every function. */
static int pass(uint64_t number) {
    return trampoline_originals[number] == NULL ? NOT_SUPPORTED : PASS_ON;
}

/* Calls go to the original functions after `pass_on`, and as soon as cuInit finds that the program runs natively. */
int enter_trampoline(uint64_t number, const uint64_t *registers, const uint64_t *stack) {
    if (atomic_load_explicit(&passes, memory_order_acquire))
        return pass(number);
    uint64_t words[REGISTERS + STACK];
    memcpy(words, registers, sizeof(uint64_t) * REGISTERS);
    memcpy(words + REGISTERS, stack, sizeof(uint64_t) * STACK);
    int result = enter(&slots[number], words);
    return result == PASS_ON ? pass(number) : result;
}

static PyObject *route(PyObject *module, PyObject *arguments) {
    const char *name, *signature;
    PyObject *resolve, *failed, *number;
    int always_passes = 0, at_end = FAILS;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "ssOOO|pi:route", &name, &signature, &number, &resolve, &failed, &always_passes,
                          &at_end))
        return NULL;
    void *original = PyLong_AsVoidPtr(number);
    if (original == NULL && PyErr_Occurred())
        return NULL;
    if (used == TRAMPOLINES)
        return PyErr_Format(PyExc_RuntimeError, "there are no more than %d entry points", TRAMPOLINES);
    Slot *slot = &slots[used];
    char *own_name = strdup(name), *own_signature = strdup(signature); /* never freed, like the slot */
    if (own_name == NULL || own_signature == NULL) {
        free(own_name);
        free(own_signature);
        return PyErr_NoMemory();
    }
    *slot = (Slot){.name = own_name, .signature = own_signature,
                   .is_launch_by_config = strcmp(own_name, "cuLaunchKernelEx") == 0,
                   .resolve = Py_NewRef(resolve), .failed = Py_NewRef(failed),
                   .always_passes = (char)always_passes,
                   .at_end = (char)at_end};
    trampoline_originals[used] = original;
    if (strcmp(own_name, "cuLaunchKernel") == 0)
        launch = slot;
    return PyLong_FromVoidPtr(trampoline(used++));
}

static PyObject *set_original(PyObject *module, PyObject *arguments) {
    PyObject *function, *number;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO:set_original", &function, &number))
        return NULL;
    const void *place = PyLong_AsVoidPtr(function);
    void *original = PyLong_AsVoidPtr(number);
    if (PyErr_Occurred())
        return NULL;
    for (int index = 0; index < used; index++)
        if (trampoline(index) == place) {
            trampoline_originals[index] = original;
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "there is no entry point at %p", place);
}

static PyObject *capsule(PyObject *module, PyObject *arguments) {
    const char *signature;
    PyObject *number;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Os:capsule", &number, &signature))
        return NULL;
    void *function = PyLong_AsVoidPtr(number);
    if (function == NULL)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a capsule needs the address of a function, not 0");
    char *name = strdup(signature); /* never freed, because C keeps the address */
    return name == NULL ? PyErr_NoMemory() : PyCapsule_New(function, name, NULL);
}

static PyObject *address(PyObject *module, PyObject *capsule) {
    (void)module;
    const char *signature = PyCapsule_GetName(capsule);
    void *pointer = signature == NULL && PyErr_Occurred() ? NULL : PyCapsule_GetPointer(capsule, signature);
    return pointer == NULL ? NULL : PyLong_FromVoidPtr(pointer);
}

static PyObject *signature(PyObject *module, PyObject *capsule) {
    (void)module;
    const char *text = PyCapsule_GetName(capsule);
    return text == NULL ? NULL : PyUnicode_FromString(text);
}

static PyObject *pass_on(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    atomic_store_explicit(&passes, 1, memory_order_release);
    Py_RETURN_NONE;
}

static PyObject *set_checked(PyObject *module, PyObject *value) {
    (void)module;
    is_checked = value == Py_True;
    Py_RETURN_NONE;
}

static PyObject *help_threads(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    is_helped = 1;
    Py_RETURN_NONE;
}

static PyObject *end(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    atomic_store_explicit(&has_ended, 1, memory_order_release);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"route", route, METH_VARARGS,
     PyDoc_STR("route(name, signature, original, resolve, failed, always_passes=False, at_end=0): return the address of\n"
               "a C function that takes the place of the one at ``original``. ``resolve(name, signature)`` returns at the first call\n"
               "the Python function, the format of its parameters, and perhaps the core that it calls after its\n"
               "checks; ``failed(name, exception)`` the result for what it raises. Once the interpreter ends it calls\n"
               "the original if ``always_passes``, else by ``at_end``: 0 returns 4 (DEINITIALIZED), 1 returns 0, 2\n"
               "returns 0 and NULL for its first parameter.")},
    {"set_original", set_original, METH_VARARGS,
     PyDoc_STR("set_original(address, original): set the function that gets the calls of an entry point natively.")},
    {"capsule", capsule, METH_VARARGS,
     PyDoc_STR("capsule(address, signature): return a capsule of a C function.")},
    {"address", address, METH_O, PyDoc_STR("address(capsule): return the address of a capsule's function.")},
    {"signature", signature, METH_O, PyDoc_STR("signature(capsule): return the C signature of a capsule's function.")},
    {"pass_on", pass_on, METH_NOARGS, PyDoc_STR("From now on all calls go to the original functions.")},
    {"set_checked", set_checked, METH_O,
     PyDoc_STR("Set whether the checks before a core would pass: then cores are called without them.")},
    {"help_threads", help_threads, METH_NOARGS,
     PyDoc_STR("From now on the first call of a thread that Python did not start fails if it waits too long for the GIL.")},
    {"end", end, METH_NOARGS, PyDoc_STR("From now on no call enters the interpreter: it is about to end.")},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_entry_points", "C functions over Python functions.", -1,
                                 methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__entry_points(void) {
    void *symbol = dlsym(RTLD_DEFAULT, "Py_IsFinalizing"); /* public since 3.13 */
    if (symbol == NULL)
        symbol = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    if (symbol == NULL) {
        PyErr_SetString(PyExc_ImportError, "this interpreter has no function that reports whether it is ending");
        return NULL;
    }
    memcpy(&is_finalizing, &symbol, sizeof symbol);
    if (pthread_key_create(&leaving, leave_thread) != 0) {
        PyErr_SetString(PyExc_ImportError, "this process has no more keys for data of threads");
        return NULL;
    }
    pthread_atfork(NULL, NULL, after_fork);
    return PyModule_Create(&definition);
}
