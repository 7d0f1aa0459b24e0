"""Driver functions that are not made only from their rows: launches and callbacks.

`by_address` has the functions that read or write values at addresses, `error_logs` those of the error log.
"""

import ctypes
import struct
from collections.abc import Callable
from ctypes import string_at
from types import SimpleNamespace
from typing import Any, Final

import pympsd_client
from pympsd.vocabulary.results import Result
from pympsd_client._api.conversions import not_permitted
from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.errors import invalid_value, last_error, result_name
from pympsd_client._arguments.explanations import explain, is_on
from pympsd_client._arguments.values import check_count
from pympsd_client._objects.context import this_thread
from pympsd_client._objects.process import process
from pympsd_client.routing import by_address, error_logs
from pympsd_client.signatures.rows import find_core

_CONFIG: Final = struct.Struct("=7I4xQQI")
"""CUlaunchConfig: grid, block, dynamic shared memory, stream, attributes, their number."""
_ATTRIBUTE_BYTES: Final = 72

Resolved = tuple[Callable[..., Any], str]
"""A function, and the format of its parameters."""


def launch_by_config(default_stream: int = 0) -> Resolved:
    """Return cuLaunchKernelEx for launches with attributes; the C part treats other launches as cuLaunchKernel.

    ``default_stream`` is the stream for which NULL stands; the C part supports only 0.
    """
    public = _public("cuLaunchKernelEx")

    def launch(config: int, function: int, parameters: int, extra: int) -> Any:
        if not config:
            raise invalid_value("cuLaunchKernelEx takes a CUlaunchConfig, not NULL")
        *shape, stream, attributes, count = _CONFIG.unpack(string_at(config, _CONFIG.size))
        if not attributes and count:
            raise invalid_value(f"attrs of the CUlaunchConfig is NULL, but numAttrs is {count}")
        if count:
            check_count(count, "attrs")
        names = ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes")
        read = [bindings.CUlaunchAttribute(_ptr=attributes + _ATTRIBUTE_BYTES * index) for index in range(count)]
        values = SimpleNamespace(
            **dict(zip(names, shape, strict=True)), hStream=stream or default_stream, attrs=read, numAttrs=count
        )
        return public(values, function, parameters, extra)

    return launch, "QQQQ"


def _public(name: str) -> Callable[..., Any]:
    """Return the public function of the client, whose tuple the C part accepts as a result."""
    function: Callable[..., Any] = getattr(pympsd_client.driver, name)
    if name == "cuLaunchKernel" or is_on():  # a launch has to be fast, or the function itself explains failures
        return function

    def call(*arguments: Any) -> Any:
        answer = function(*arguments)
        if code := int(answer[0]):
            explain(name, result_name(code), last_error(), is_lacking=code == Result.ERROR_NOT_SUPPORTED)
        return answer

    return call


class _Symbol(ctypes.Structure):
    """Dl_info."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _add_callback(stream: int, callback: int, data: int, flags: int) -> None:
    if this_thread.in_host_function:
        raise not_permitted()
    process.require()
    # cuda.bindings passes its own function, and the program's function in the data.
    if data and _is_of_bindings(callback) and not ctypes.c_void_p.from_address(data).value:
        raise invalid_value("the callback is NULL; pass the address of a C function")
    find_core("_api.stream.add_callback")(stream, callback, data, flags)


def _is_of_bindings(function: int) -> bool:
    symbol = _Symbol()
    is_known = ctypes.CDLL(None).dladdr(ctypes.c_void_p(function), ctypes.byref(symbol))
    return bool(is_known) and b"/cuda/bindings/" in (symbol.file or b"")


_FUNCTIONS: Final[dict[str, Resolved]] = {
    **error_logs.FUNCTIONS,
    "cuStreamAddCallback": (_add_callback, "QQQI"),
}
_LAUNCHES: Final[dict[str, Callable[[], Resolved]]] = {
    "cuLaunchCooperativeKernel": lambda: (_public("cuLaunchCooperativeKernel"), "QIIIIIIIQQ"),
    "cuLaunchKernel": lambda: (_public("cuLaunchKernel"), "QIIIIIIIQQQ"),
    "cuLaunchKernelEx": launch_by_config,
}


def has(name: str) -> bool:
    """Return whether this module, `by_address` or `error_logs` has a function."""
    return name in _FUNCTIONS or name in _LAUNCHES or by_address.has(name)


def resolve(name: str) -> Resolved | None:
    """Return the function behind an entry point and the format of its parameters, or None if its row is enough."""
    return _LAUNCHES[name]() if name in _LAUNCHES else _FUNCTIONS.get(name) or by_address.resolve(name)
