/* Python by the stable interface of 3.11, so that one build serves every later version. */

#pragma once

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef Py_GIL_DISABLED
#error "the GIL is the only lock here: without it launches go through Python"
#endif
