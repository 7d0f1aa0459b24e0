"""The functions behind the entry points of cuda.bindings.cyruntime."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pympsd_client.routing import c_types, driver
from pympsd_client.routing.explain import refusing, result_of
from pympsd_client.routing.pointers import signatures
from pympsd_client.routing.runtime.devices import ready
from pympsd_client.routing.runtime.equal import EQUAL
from pympsd_client.routing.runtime.errors import keep
from pympsd_client.routing.runtime.rows import ROWS
from pympsd_client.signatures import Calling, Signature


def resolve(name: str, signature: str) -> tuple[Callable[..., Any], str]:
    """Return the function behind an entry point, and the format of its parameters."""
    if name in EQUAL:
        function, format, *_ = driver.resolve(EQUAL[name], signatures[EQUAL[name]])
        return _ready(function), format
    row = ROWS.get(name)
    if row is None:
        return refusing(name), ""
    core = getattr(import_module(f"pympsd_client.{row.module}"), row.core)
    return core if row.calling in (Calling.ANYWHERE, Calling.BEFORE_INIT) else _ready(core), _format(row, signature)


def failed(name: str, error: BaseException | None) -> int:
    """Return the result of a call that raised, which cudaGetLastError returns too."""
    return keep(result_of(name, error))


def _ready(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        ready()
        return function(*arguments)

    return call


def _format(row: Signature, signature: str) -> str:
    codes = []
    for parameter, type in zip(row.parameters, c_types.parameters(signature), strict=True):
        pointee = type.removesuffix("*").strip()
        if not parameter.is_output:
            size = c_types.BY_VALUE.get(type)
            codes.append(c_types.code(type) if size is None else f"v{size}")
        elif pointee in c_types.BY_VALUE or pointee in c_types.STRUCTURES:
            codes.append(">b")
        else:
            codes.append(f">{c_types.code(pointee)}")
    return "".join(codes)
