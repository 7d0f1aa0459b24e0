/* A plan: a LAUNCH record as it was sent, the launches that it fits, and where in the record their values go. */

#pragma once

#include "writer.h"

enum { SIZES = 7, MAX_VALUES = 128, MAX_BYTES = 2048 };

/* What the launches of one plan have in common. */
typedef struct {
    uint64_t function, stream;
    uint32_t sizes[SIZES];
    PyObject *types; /* a tuple of ctypes types, or `by_pointers` */
} Key;

typedef struct {
    uint32_t at, size;
    char code; /* as in the module struct; 'o' is an object whose int is a handle, 'p' is for `size` bytes at a pointer */
} Value;

typedef struct {
    int refs;
    Key key;
    PyObject *context, *sequence, *bell;
    Writer *writer;
    uint32_t length, sequence_at;
    Py_ssize_t count;
    Value values[MAX_VALUES];
    unsigned char record[MAX_BYTES];
} Plan;

/* Return the hash of a key, which is never 0. */
uint32_t key_hash(const Key *key);

int key_is(const Key *key, const Key *other);

/* Return a new plan from the arguments of Launcher.add_plan, or NULL with an error set if they are wrong. */
Plan *plan_new(PyObject *arguments, unsigned long long *epoch);

/* Drop a reference; NULL does nothing. */
void plan_drop(Plan *plan);

extern PyTypeObject *writer_type;

/* A tuple in place of the types, for parameters that are passed as an array of pointers. */
extern PyObject *by_pointers;
