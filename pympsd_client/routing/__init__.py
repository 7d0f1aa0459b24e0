"""Unmodified CUDA programs: the functions that they call are C functions over this client.

The problem: PyTorch, CuPy, numba-cuda, cuda.core and compiled programs do not import `pympsd_client.driver`. They
call libcuda.so.1, in Python through cuda.bindings, and should run unchanged.

The idea: the dynamic loader finds the CUDA libraries by their names, so pympsd has libraries of these names:

1. ``pympsd-run`` puts the folder of these libraries into the program's library path. It also sets PYMPSD_ROUTING=1,
   with which a .pth file (or ``without_site/sitecustomize.py``) installs the import hook in `hook` at the start of
   every Python under pympsd-run. The hook loads libcuda.so.1 as soon as cuda.bindings is imported.
2. At the first call of any of its functions a library calls `libraries`, which makes an entry point for each of them
   (native/src/entry_points.c).
3. At its own first call an entry point calls the module that resolves its library's functions: `exports`, `runtime`
   or `compilers`. It returns a Python function, and a format by which the C part reads and writes C's arguments.
4. The function calls the same core functions as `pympsd_client.driver`.

cuda.bindings contains the CUDA runtime, and a table of C function pointers to it, filled when the module is imported.
`pointers` replaces them by entry points, and does the same for the compilers.

If cuInit finds neither a daemon nor a reason to run on a private device, the program runs natively: all entry points
pass their calls on to the machine's own driver.

What must never happen: a call of a function that pympsd does not have must not reach the driver while other functions
are replaced, because it would act on another context. It fails with NOT_SUPPORTED, and one line on standard error
names the function.
"""
