"""Unmodified CUDA Python programs: the function pointers of cuda.bindings replaced by C functions over this client.

The problem: PyTorch, CuPy, numba-cuda and cuda.core do not import `pympsd_client.driver`. They call cuda.bindings,
from Python or straight from Cython and C++, and should run unchanged.

The idea: cuda.bindings keeps a table of C function pointers for each CUDA library, filled when a module is imported.
That table is the one place through which all these programs go, so it is replaced there:

1. ``pympsd-run`` sets PYMPSD_ROUTING=1 and starts the program. At the start of every Python below it a .pth file (or
   ``without_site/sitecustomize.py``) installs the import hook in `hook`.
2. The hook waits for the modules that hold the pointers. After one of them has been executed `pointers.replace` puts
   an entry point (native/src/entry_points.c) in the place of each pointer.
3. At a function's first call its entry point asks the module of its library to resolve it: `driver`, `runtime`,
   `compilers` or `nvml`. Each returns a Python function and a format, by which the C part reads and writes C's
   arguments.
4. The function calls the same cores that `pympsd_client.driver` calls.

Where cuInit finds neither a daemon nor a reason to run on a private device, the program runs natively: all entry
points pass their calls on to the functions that were there before.

What must never happen: a function that pympsd does not have must not reach the driver while others are replaced,
because it would act on another context. It fails with NOT_SUPPORTED, and one line on standard error names it.
"""
