"""The functions behind the entry points of cuda.bindings.cyruntime, and each thread's last error.

Last errors: CUDA runtime API, Error Handling.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client.routing import c_types, driver
from pympsd_client.routing.explain import refusing, result_of
from pympsd_client.routing.pointers import signatures
from pympsd_client.routing.runtime.devices import ready
from pympsd_client.routing.runtime.rows import EQUAL, ROWS
from pympsd_client.routing.versions import adapt, arrange, row_of
from pympsd_client.signatures import Calling, Parameter


def resolve(name: str, signature: str) -> tuple[Callable[..., Any], str]:
    """Return the function behind an entry point, and the format of its parameters."""
    if equal := _equal(name):
        function, format, *_ = driver.resolve(equal, signatures[equal])
        return _ready(function), format
    types = c_types.parameters(signature)
    row = row_of(name, types, ROWS)
    if row is None:
        return refusing(name), ""
    parameters = arrange(row, types)
    core = getattr(import_module(f"pympsd_client.{row.module}"), row.core)
    core = adapt(core, row.inputs, tuple(parameter for parameter in parameters if parameter.is_input))
    is_early = row.calling in (Calling.ANYWHERE, Calling.BEFORE_INIT)
    return core if is_early else _ready(core), "".join(map(_code, parameters, types))


def _equal(name: str) -> str:
    """Return the driver's function with the same parameters, before CUDA 13 of the same version; "" if none."""
    base = EQUAL.get(name) or EQUAL.get(name[:-3], "") + name[-3:]
    return base if base in signatures else ""


def result_of_error(name: str, error: BaseException | None) -> int:
    """Return the result of a call that raised, which cudaGetLastError returns too."""
    return keep(result_of(name, error))


def _ready(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        ready()
        return function(*arguments)

    return call


def _code(parameter: Parameter, type: str) -> str:
    pointee = type.removesuffix("*").strip()
    if not parameter.is_output:
        size = c_types.BY_VALUE.get(type)
        return c_types.code(type) if size is None else f"v{size}"
    if pointee in c_types.BY_VALUE or pointee in c_types.STRUCTURES:
        return ">b"
    return f">{c_types.code(pointee)}"


class _Last(threading.local):
    code = 0


_last: Final = _Last()


def keep(code: int) -> int:
    """Keep a result for cudaGetLastError and return it; NOT_READY is an answer, not an error."""
    if code != Result.ERROR_NOT_READY:
        _last.code = code
    return code


def last() -> int:
    """Return the last error of this thread's calls."""
    return _last.code


def take_last() -> int:
    """Return the last error of this thread's calls, and reset it."""
    code, _last.code = _last.code, 0
    return code
