/* What callers pass as numbers: 1 and the value, or 0 where Python has to have a closer look. No error is set then but
 * one that is no Exception, as Ctrl-C's: that is the caller's answer. */

#pragma once

#include "python.h"

#include <stdint.h>

/* Forget an error, but one that is no Exception. */
void clear_ordinary(void);

int unsigned_of(PyObject *number, uint64_t *value);

/* None is 0, and an object that has an int is that. */
int handle_of(PyObject *object, uint64_t *value);

/* A parameter as it lies in a record: `code` is the module struct's, 'o' a handle. At most 8 bytes. */
int value_into(unsigned char *place, PyObject *value, char code);
