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

/* Put a record into the ring; return whether there was room. The record is stored before the tail that publishes it. A full
 * fence then comes before the caller reads whether the executor sleeps. */
int writer_put(Writer *self, const unsigned char *record, size_t length);
