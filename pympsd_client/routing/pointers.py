"""Replacement of a module's function pointers, and the addresses of the original functions.

Theory of operation. Cython exports the functions of a module as capsules in its ``__pyx_capi__``: the capsule's
pointer is the function's address, and the capsule's name is its C signature, such as ``CUresult (CUdeviceptr *,
size_t)``. A module that imports the function compares the name and copies the address. So a capsule with the same
name and another address replaces the function for every later import, and cuda.bindings is not patched in memory.

For the driver and NVML no pointers are replaced, because cuda.bindings finds pympsd's libcuda.so.1 and
libnvidia-ml.so.1 by their names (`libraries`). Only the driver's C signatures are recorded.

`LIBRARIES` has a row for each module: which functions are replaced, and which module of this package resolves them at
their first call. The module is not imported before, because a program that only requests a version should not wait
for the client. ``only`` and ``unless`` exclude functions that do not need a device, and most of the compilers'.

The invariants:

- `originals` has every function's own address, which `original` calls, and to which entry points pass calls on.
- `signatures` has every function's C signature. Parameters differ between versions of cuda.bindings, and those of the
  installed version apply (`versions`).
- Entry points and the names of capsules are never freed, because C keeps their addresses.
"""

import ctypes
import re
from functools import cache
from importlib import import_module
from typing import Any, Final

from attrs import frozen

from pympsd.channel.own_libraries import OWN_LIBRARIES
from pympsd_client._api.call_trace import trace
from pympsd_client.native import _entry_points


@frozen
class PointerModule:
    """A module of function pointers; ``functions`` is the module that resolves them, imported at the first call."""

    functions: str
    result: str
    """The type that the functions return; functions that return another type are not replaced."""
    only: frozenset[str] | None = None
    """The functions that are replaced; None means all functions, except those in ``unless``."""
    unless: frozenset[str] = frozenset()
    """The functions that are not replaced."""


LIBRARIES: Final = {
    "cuda.bindings.cyruntime": PointerModule(
        "pympsd_client.routing.runtime.functions",
        "cudaError_t",
        unless=frozenset({"cudaRuntimeGetVersion", "getLocalRuntimeVersion"}),
    ),
    "cuda.bindings.cynvrtc": PointerModule(
        "pympsd_client.routing.compilers",
        "nvrtcResult",
        frozenset({"nvrtcCompileProgram", "nvrtcDestroyProgram", "nvrtcGetCUBIN", "nvrtcGetCUBINSize"}),
    ),
    "cuda.bindings.cynvfatbin": PointerModule(
        "pympsd_client.routing.compilers", "nvFatbinResult", frozenset({"nvFatbinAddCubin"})
    ),
    "cuda.bindings.cynvjitlink": PointerModule(
        "pympsd_client.routing.compilers",
        "nvJitLinkResult",
        frozenset(
            {
                "nvJitLinkAddData",
                "nvJitLinkAddFile",
                "nvJitLinkComplete",
                "nvJitLinkCreate",
                "nvJitLinkDestroy",
                "nvJitLinkGetLinkedCubin",
                "nvJitLinkGetLinkedCubinSize",
            }
        ),
    ),
}
NVML: Final = "cuda.bindings.cynvml"
"""NVML's module, whose pointers are not replaced because it loads pympsd's libnvidia-ml.so.1 (native/src/nvml)."""
_RELEASING: Final = re.compile(
    r"cu(?!\w*Graph(Add|Mem)).*(Close|Destroy|Detach|Free|Release|Trim|Unload|Unmap|Unregister).*"
)
"""The pattern of the names of functions that free something.

Destructors call these functions during interpreter shutdown, when the machine's own driver would still work.
"""
_FAILS, _SUCCEEDS, _RETURNS_NULL, _NAMES_ERROR, _DESCRIBES_ERROR = range(5)
_AROUND: Final = {
    "cuCtxGetCurrent": _RETURNS_NULL,
    "cuCtxPopCurrent": _RETURNS_NULL,
    "cuCtxPushCurrent": _SUCCEEDS,
    "cuCtxSetCurrent": _SUCCEEDS,
    "cuCtxSynchronize": _SUCCEEDS,
    "cuDeviceGetDefaultMemPool": _RETURNS_NULL,
    "cuGetErrorName": _NAMES_ERROR,
    "cuGetErrorString": _DESCRIBES_ERROR,
    "cuStreamSynchronize": _SUCCEEDS,
}
"""Further functions that destructors call, each with what it does during interpreter shutdown.

Destructors call them before a function that frees something, or to report a failure.
"""
_WAITING: Final = frozenset({"cuCtxSynchronize", "cuStreamSynchronize"})
"""Functions that fail in a native program's exit handlers, which run after the driver has ended (recorded, H200)."""
_VERSION: Final = re.compile(r"(_v\d+)?(_ptds|_ptsz)?$")
signatures: Final[dict[str, str]] = {}
"""The C signatures of all functions of these modules, by name."""
originals: Final[dict[str, int]] = {}
"""The original addresses of all functions of these modules, by name."""


def replace(module: str, pointers: dict[str, Any]) -> None:
    """Replace the function pointers in a module's dictionary of capsules."""
    if module == NVML:
        load_nvml()
        return
    if module == "cuda.bindings.cydriver":
        load_driver_library()
        read_signatures(module)
        return
    library = LIBRARIES[module]
    for name, capsule in tuple(pointers.items()):
        originals[name] = _entry_points.address(capsule)
        signatures[name] = _entry_points.signature(capsule)
        is_replaced = name not in library.unless if library.only is None else name in library.only
        if not is_replaced or not signatures[name].startswith(f"{library.result} ("):
            continue
        address = entry_point(
            library.functions, name, signatures[name], originals[name], always_passes=library.only is not None
        )
        pointers[name] = _entry_points.capsule(address, signatures[name])


@cache
def read_signatures(module: str) -> None:
    """Record the signatures and addresses of the functions of a module whose pointers are not replaced."""
    for name, capsule in import_module(module).__dict__["__pyx_capi__"].items():
        if name not in signatures:
            originals[name] = _entry_points.address(capsule)
            signatures[name] = _entry_points.signature(capsule)


def entry_point(
    functions: str,
    name: str,
    signature: str,
    original: int = 0,
    *,
    always_passes: bool = False,
    is_native: bool = False,
) -> int:
    """Return the address of a new C function that calls a Python function of the module ``functions``.

    At the first call the module is imported, and its ``resolve(name, signature)`` returns the Python function and the
    format of its parameters. Its ``result_of_error(name, error)`` returns the result for an exception in a call.

    Args:
        functions: The module that resolves the function.
        name: The function's name.
        signature: The C types of its parameters.
        original: The address of the function that is called instead if the program runs natively, or 0.
        always_passes: Whether ``original`` is called at the end of the process too.
        is_native: Whether the program is a native one.
    """

    plain = strip_version(name)

    def resolve(name: str, signature: str) -> Any:
        function, format, *core = import_module(functions).resolve(name, signature)
        timed = trace(plain, function)
        # C may call the core instead of the function, unless calls are traced.
        return (function, format, *core) if timed is function else (timed, format)

    def result_of_error(name: str, error: BaseException) -> Any:
        return import_module(functions).result_of_error(name, error)

    at_end = _SUCCEEDS if _RELEASING.fullmatch(plain) else _AROUND.get(plain, _FAILS)
    if is_native and plain in _WAITING:
        at_end = _FAILS
    return _entry_points.route(name, signature, original, resolve, result_of_error, always_passes, at_end)


def strip_version(name: str) -> str:
    """Return a function's name without its version and its suffix for per-thread streams.

    >>> strip_version("cuMemcpyHtoD_v2_ptds")
    'cuMemcpyHtoD'
    """
    return _VERSION.sub("", name)


def load_driver_library() -> None:
    """Load pympsd's libcuda.so.1, which the dynamic loader then returns to cuda.bindings and others for that name.

    Raise ImportError if another library of that name was loaded before, or if pympsd's cannot be loaded.
    """
    file = str(OWN_LIBRARIES / "libcuda.so.1")
    try:
        ctypes.CDLL(file, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ImportError(f"pympsd's libcuda.so.1 cannot be loaded: {error}") from None
    if not hasattr(ctypes.CDLL("libcuda.so.1"), "pympsd_attach"):
        raise ImportError(
            "another libcuda.so.1 was loaded before pympsd's: start the program with pympsd-run, and import nothing "
            "that loads CUDA before pympsd_client.routing.hook.install()"
        )


def load_nvml() -> None:
    """Load pympsd's libnvidia-ml.so.1, which cuda.bindings and pynvml then find by its name.

    pympsd-run sets the library path, but a program may call `hook.install` itself.
    """
    for file in OWN_LIBRARIES.glob("libnvidia-ml.so.1"):
        ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)


def original(name: str, *parameters: Any) -> Any:
    """Return the original function ``name`` for ctypes, with these types of parameters and an int as result."""
    return ctypes.CFUNCTYPE(ctypes.c_int, *parameters)(originals[name])
