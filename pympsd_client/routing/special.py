"""Driver functions that are not made from their rows alone: launches, callbacks, and the addresses of functions."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import c_int, c_uint64, string_at
from types import SimpleNamespace
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client import driver
from pympsd_client._api import stream as streams
from pympsd_client._api.entry_point import not_permitted
from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.errors import CudaError, invalid_value, last_error, result_name
from pympsd_client._arguments.explanations import explain, is_on
from pympsd_client._arguments.values import check_count
from pympsd_client._objects.context import this_thread
from pympsd_client._objects.process import process
from pympsd_client.routing import coredumps, graphs, memory, resources
from pympsd_client.routing.pointers import replaced
from pympsd_client.signatures import SIGNATURES

_CONFIG: Final = struct.Struct("=7I4xQQI")
"""CUlaunchConfig: grid, block, dynamic shared memory, stream, attributes, their number."""
_ATTRIBUTE_BYTES: Final = 72
_NO_SYMBOL: Final = 1
"""CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND"""


def _launch() -> tuple[Callable[..., Any], str]:
    return _public("cuLaunchKernel"), "QIIIIIIIQQQ"


def _cooperative_launch() -> tuple[Callable[..., Any], str]:
    return _public("cuLaunchCooperativeKernel"), "QIIIIIIIQQ"


def _launch_by_config() -> tuple[Callable[..., Any], str]:
    """Launches with attributes; those without are cuLaunchKernel's to the C part."""
    public = _public("cuLaunchKernelEx")

    def launch(config: int, function: int, parameters: int, extra: int) -> Any:
        if not config:
            raise invalid_value("cuLaunchKernelEx takes a CUlaunchConfig, not NULL")
        *shape, stream, attributes, count = _CONFIG.unpack(string_at(config, _CONFIG.size))
        if not attributes:
            raise invalid_value(f"attrs of the CUlaunchConfig is NULL, and numAttrs {count}")
        check_count(count, "attrs")
        names = ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes")
        read = [bindings.CUlaunchAttribute(_ptr=attributes + _ATTRIBUTE_BYTES * index) for index in range(count)]
        values = SimpleNamespace(**dict(zip(names, shape, strict=True)), hStream=stream, attrs=read, numAttrs=count)
        return public(values, function, parameters, extra)

    return launch, "QQQQ"


def _public(name: str) -> Callable[..., Any]:
    """Return the client's public function; its tuple is a result for the C part."""
    function: Callable[..., Any] = getattr(driver, name)
    if name == "cuLaunchKernel" or is_on():  # it has to be fast, and is complete; or it explains its own failures
        return function

    def explained(*arguments: Any) -> Any:
        answer = function(*arguments)
        if code := int(answer[0]):
            explain(name, result_name(code), last_error(), is_lacking=code == Result.ERROR_NOT_SUPPORTED)
        return answer

    return explained


class _Symbol(ctypes.Structure):
    """Dl_info"""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _add_callback() -> tuple[Callable[..., Any], str]:
    """cuda.bindings passes a function of its own, and that of the program in the data."""

    def add(stream: int, callback: int, data: int, flags: int) -> None:
        if this_thread.in_host_function:
            raise not_permitted()
        process.require()
        if data and _is_of_bindings(callback) and not ctypes.c_void_p.from_address(data).value:
            raise invalid_value("the callback is NULL; pass the address of a C function")
        streams.add_callback(stream, callback, data, flags)

    return add, "QQQI"


def _is_of_bindings(function: int) -> bool:
    found = _Symbol()
    is_found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(function), ctypes.byref(found))
    return bool(is_found) and b"/cuda/bindings/" in (found.file or b"")


def _address_of_function() -> tuple[Callable[..., Any], str]:
    def find(symbol: str | None, place: int, version: int, flags: int, status: int) -> None:
        if not symbol or not place:
            raise invalid_value("cuGetProcAddress takes a name and a place for the address; one is NULL")
        # What has no row is not supported, and a program that asks must learn that.
        found = replaced.get(symbol, 0) if symbol in SIGNATURES or symbol in SPECIAL else 0
        c_uint64.from_address(place).value = found
        if status:
            c_int.from_address(status).value = 0 if found else _NO_SYMBOL
        if not found:
            raise CudaError(Result.ERROR_NOT_FOUND, f"there is no driver function {symbol}")

    return find, "sQiQQ"


SPECIAL: Final[dict[str, Callable[[], tuple[Callable[..., Any], str]]]] = {
    **coredumps.SPECIAL,
    **memory.SPECIAL,
    "cuGetProcAddress": _address_of_function,
    "cuLaunchCooperativeKernel": _cooperative_launch,
    "cuLaunchKernel": _launch,
    "cuLaunchKernelEx": _launch_by_config,
    "cuStreamAddCallback": _add_callback,
    **graphs.SPECIAL,
    **resources.SPECIAL,
}
"""What resolves them."""
