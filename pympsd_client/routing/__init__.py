"""Unmodified CUDA programs: the functions that they call are C functions over this client.

The problem: PyTorch, CuPy, numba-cuda, cuda.core and compiled programs do not import `pympsd_client.driver`. They
call libcuda.so.1, in Python through cuda.bindings, and should run unchanged.

The idea: the dynamic loader finds the CUDA libraries by their names, so pympsd has libraries of these names:

1. ``pympsd-run`` puts the folder of these libraries into the program's library path. It also sets PYMPSD_ROUTING=1:
   at the start of every Python below it a .pth file (or ``without_site/sitecustomize.py``) installs the import hook
   in `hook`, which loads libcuda.so.1 as soon as cuda.bindings is imported.
2. At the first call of a function a library has `libraries` make entry points (native/src/entry_points.c).
3. At a function's first call its entry point asks the module of its library to resolve it: `exports`, `runtime` or
   `compilers`. Each returns a Python function and a format, by which the C part reads and writes C's arguments.
4. The function calls the same cores that `pympsd_client.driver` calls.

cuda.bindings has the CUDA runtime inside. It keeps a table of C function pointers for it, filled when the module is
imported, and that is replaced by entry points (`pointers`); so are those of compilers.

Where cuInit finds neither a daemon nor a reason to run on a private device, the program runs natively: all entry
points pass their calls on to the machine's own driver.

What must never happen: a function that pympsd does not have must not reach the driver while others are replaced,
because it would act on another context. It fails with NOT_SUPPORTED, and one line on standard error names it.
"""
