"""Differences between versions of cuda.bindings: parameters of functions, and names that end with a version.

A row has the parameters of CUDA 13. Before CUDA 13, functions of graphs had no edge data; variants with edge data had
names that end with ``_v2`` or ``_v3``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pympsd_client._arguments.bindings import bindings
from pympsd_client.routing import c_types
from pympsd_client.signatures import Parameter, Signature

_SUFFIX: Final = re.compile(r"_v\d$")


def row_of(name: str, types: tuple[str, ...], rows: Mapping[str, Signature]) -> Signature | None:
    """Return a function's row, or None.

    Before CUDA 13 a name with a version may have the row of the name without it, if the parameters are the same.
    """
    row = rows.get(name)
    if row is None and bindings.CUDA_VERSION < 13000:
        row = rows.get(_SUFFIX.sub("", name))
        return row if row is not None and _is_of(row, types) else None
    return row


def newest(name: str, row: Signature, signatures: Mapping[str, str]) -> str:
    """Return the name of the installed function that has a row's parameters.

    Before CUDA 13 the name may end with a version.
    """
    names = (name, *(f"{name}_v{number}" for number in range(2, 5)))
    installed = (candidate for candidate in names if candidate in signatures)
    return next(
        (candidate for candidate in installed if _is_of(row, c_types.parameters(signatures[candidate]))), name
    )


def arrange(row: Signature, types: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Return the parameters of an installed function with these C types.

    They are parameters of the row; a type without a parameter in the row becomes an additional input. Raise TypeError
    for a function that both lacks parameters of the row and has additional ones.
    """
    if len(types) == len(row.parameters):
        return row.parameters
    is_shorter = len(types) < len(row.parameters)
    remaining = list(row.parameters)
    result: list[Parameter] = []
    for number, type in enumerate(types):
        candidates = enumerate(remaining if is_shorter else remaining[:1])
        at = next((index for index, parameter in candidates if _fits(parameter, type)), None)
        result.append(Parameter(type, f"_{number}", False, True) if at is None else remaining[at])
        del remaining[: 0 if at is None else at + 1]
    present_count = sum(parameter in result for parameter in row.parameters)
    if present_count != min(len(types), len(row.parameters)):
        raise TypeError(f"cuda.bindings has {row.name}({', '.join(types)}) here, which pympsd does not support")
    return tuple(result)


def adapt(
    function: Callable[..., Any], takes: Sequence[Parameter], given_parameters: Sequence[Parameter]
) -> Callable[..., Any]:
    """Return a function with the parameters ``given_parameters`` that calls ``function``.

    ``function`` has the parameters ``takes``. A parameter that is only in ``takes`` is passed as 0, and a parameter
    that is only in ``given_parameters`` is ignored.
    """
    if takes == given_parameters:
        return function
    addresses = [given_parameters.index(parameter) if parameter in given_parameters else None for parameter in takes]

    def call(*values: Any) -> Any:
        return function(*(0 if address is None else values[address] for address in addresses))

    return call


def _is_of(row: Signature, types: tuple[str, ...]) -> bool:
    return len(types) == len(row.parameters) and all(map(_fits, row.parameters, types))


def _fits(parameter: Parameter, type: str) -> bool:
    """Return whether a parameter of a row has a C type; for an output, compare the type that it points to."""
    if parameter.is_output:
        return parameter.type.rstrip(" *") == type.rstrip(" *")
    return c_types.plain(parameter.type) == type
