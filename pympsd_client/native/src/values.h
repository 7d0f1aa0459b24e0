/* These functions convert arguments as Python does. They return 1 and the value, or 0 for the slow path. After 0 no error
 * is set, except one that is not an Exception (Ctrl-C), which the caller returns. */

#pragma once

#include "python.h"

#include <stdint.h>

/* Clear an error if it is an Exception. */
void clear_ordinary(void);

int unsigned_of(PyObject *number, uint64_t *value);

/* Convert None to 0, and any other object to what its __int__ returns. */
int handle_of(PyObject *object, uint64_t *value);

/* Write a parameter as a record has it, in at most 8 bytes. `code` is as in the module struct; 'o' is a handle. */
int value_into(unsigned char *place, PyObject *value, char code);
