/* Arguments converted as Python converts them: 1 and the value, or 0 for the slow path. No error is set then, except
 * one that is not an Exception (Ctrl-C): the caller returns it. */

#pragma once

#include "python.h"

#include <stdint.h>

/* Clear an error if it is an Exception. */
void clear_ordinary(void);

int unsigned_of(PyObject *number, uint64_t *value);

/* None is 0; an object is what its __int__ returns. */
int handle_of(PyObject *object, uint64_t *value);

/* A parameter as a record has it: `code` is the module struct's, 'o' a handle. At most 8 bytes. */
int value_into(unsigned char *place, PyObject *value, char code);
