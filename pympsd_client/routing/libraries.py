"""Native programs: the functions of the shared libraries in ``native/libraries``, over this client.

Theory of operation. A compiled program is linked with ``libcuda.so.1`` and perhaps ``libcudart.so.13``, or loads them
by name. pympsd-run puts pympsd's own libraries of these names into the program's library path. Their exported
functions are jumps through a table, which is empty until the program calls one of them (native/src/stubs.h). Then the
library's C code (native/src/libcuda/gate.c) finds the interpreter of the process, or starts one, and calls `attach`::

    C       pympsd_attach("libcuda.so.1", 635, {"cuInit(unsigned int)", ...}, table)
    here    attach: table[0] = entry_point("pympsd_client.routing.exports", "cuInit", ...)
    C       the first call of cuInit -> exports.resolve("cuInit", "(unsigned int)") -> a Python function

Each version of a library supplies the names and C types of its functions; `RESOLVERS` names the module that resolves
them. In Python programs, entry points to the same functions replace the function pointers of cuda.bindings' runtime
(`pointers`).

Python programs use this libcuda.so.1 too, because cuda.bindings loads it by its name.

The invariants:

- An entry point is never removed, because C keeps its address. A library that is attached again gets the same entry
  points.
- In a native program Python does not run the `atexit` functions itself, so the C part calls `end`.
"""

import atexit
import sys
import warnings
from ctypes import c_char_p, c_void_p
from typing import Any, Final

from pympsd.errors import FileError
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._objects.process import process
from pympsd_client.native import _entry_points
from pympsd_client.routing import hook
from pympsd_client.routing.pointers import entry_point

RESOLVERS: Final = {
    "libcuda.so.1": "pympsd_client.routing.exports",
    "libcudart.so.12": "pympsd_client.routing.runtime.functions",
    "libcudart.so.13": "pympsd_client.routing.runtime.functions",
}
"""The module that resolves each library's functions. Other libraries forward to the installed one (`forwarding`)."""
attached: Final[dict[tuple[str, str], int]] = {}
"""The addresses of the entry points, by library and prototype."""
_NEEDS_DAEMON: Final = (
    "pympsd's CUDA runtime does not run natively on this machine's driver: start a daemon (pympsd -d), or the "
    "program without pympsd-run; with PYMPSD_BACKEND=emulated it has an emulated GPU of its own"
)
_missing: Final[set[str]] = set()
"""The libraries that have been reported as not installed."""


def attach(library: str, count: int, prototypes: int, table: int, is_own: int) -> int:
    """Write the addresses of C functions to a library's table, one for each of its prototypes.

    Args:
        library: The library's file name, such as ``libcuda.so.1``.
        count: The number of prototypes.
        prototypes: The address of an array of C strings, each ``name(types of parameters)``.
        table: The address of an array of ``count`` addresses.
        is_own: Whether the interpreter was started for a native program.

    Returns:
        0, or 1 after a report on standard error, if the library that its functions forward to is not installed, or if
        a process that runs natively has loaded the CUDA runtime.
    """
    if is_own:
        warnings.showwarning = _show_warning
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, hook.Finder)]
    else:
        _entry_points.help_threads()
    hook.register_end()
    if library.startswith("libcudart"):
        if process.native is not None:
            print(f"pympsd: {_NEEDS_DAEMON}", file=sys.stderr, flush=True)
            return 1
        if _refuse_native_runtime not in process.when_native:
            process.when_native.insert(0, _refuse_native_runtime)  # first, so that nothing else has changed
    if library in _missing:
        return 1
    addresses = (c_void_p * count).from_address(table)
    try:
        for index, prototype in enumerate((c_char_p * count).from_address(prototypes)):
            addresses[index] = _address(library, (prototype or b"").decode(), bool(is_own))
    except FileError as error:
        print(f"pympsd: {error}", file=sys.stderr, flush=True)
        _missing.add(library)
        return 1
    return 0


def _address(library: str, prototype: str, is_native: bool) -> int:
    address = attached.get((library, prototype))
    if address is None:
        name, _, parameters = prototype.partition("(")
        if library in RESOLVERS:
            address = entry_point(RESOLVERS[library], name, f"({parameters}", is_native=is_native)
        else:
            from pympsd_client.routing import forwarding  # here, because most programs do not compile

            address = forwarding.address(library, name)
        address = attached.setdefault((library, prototype), address)  # another thread may have been faster
    return address


def _refuse_native_runtime() -> None:
    """Refuse to run natively, because kernels are registered with pympsd's runtime, which cannot pass calls on."""
    raise CudaError(Result.ERROR_MPS_CONNECTION_FAILED, _NEEDS_DAEMON)


def _show_warning(message: Warning | str, *address: Any, **more: Any) -> None:
    """Write a warning without the source line, because a native program has no Python source."""
    print(f"pympsd: {message}", file=sys.stderr, flush=True)


def end() -> None:
    """At the end of a native program, call the functions that are registered with `atexit`, as Python does.

    Then flush standard output and standard error.
    """
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        if file is not None:
            file.flush()
