/* The client's end of the ring of records; positions count bytes and never wrap (pympsd/wire/ring_layout.py). */

#pragma once

#include "python.h"

#include <stdatomic.h>
#include <stdint.h>

typedef struct {
    PyObject_HEAD PyObject *keeper; /* keeps the memory mapped */
    unsigned char *data;
    uint64_t size;
    _Atomic uint64_t *tail, *head, *asleep;
} Writer;

extern PyType_Spec writer_spec;

/* Returns whether there was room. What the executor reads of it is there before the position that says so; the fence
 * comes between that and the caller's look whether the executor sleeps. */
int writer_take(Writer *self, const unsigned char *record, size_t length);
