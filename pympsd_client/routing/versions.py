"""Differences between versions of cuda.bindings: parameters of functions, and names that end with a version.

A row has the parameters of CUDA 13. Before, functions of graphs had no edge data; variants with it had names that
end with ``_v2`` or ``_v3``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pympsd_client._arguments.bindings import bindings
from pympsd_client.routing import c_types
from pympsd_client.signatures import Parameter, Signature

_SUFFIX: Final = re.compile(r"_v\d$")


def row_of(name: str, types: tuple[str, ...], rows: Mapping[str, Signature]) -> Signature | None:
    """Return a function's row, before CUDA 13 that of the name without a version, if the parameters are the same."""
    row = rows.get(name)
    if row is None and bindings.CUDA_VERSION < 13000:
        row = rows.get(_SUFFIX.sub("", name))
        return row if row is not None and _is_of(row, types) else None
    return row


def newest(name: str, row: Signature, signatures: Mapping[str, str]) -> str:
    """Return the name of the installed function that has the parameters of a row, which is ``name`` in CUDA 13."""
    names = (name, *(f"{name}_v{number}" for number in range(2, 5)))
    installed = (candidate for candidate in names if candidate in signatures)
    return next(
        (candidate for candidate in installed if _is_of(row, c_types.parameters(signatures[candidate]))), name
    )


def arrange(row: Signature, types: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Return the parameters of an installed function with these types: the row's, and an input for each further one.

    TypeError if it has other parameters, neither only more nor only fewer.
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
    """Return a function with other parameters: missing ones are 0, additional ones are dropped."""
    if takes == given_parameters:
        return function
    places = [given_parameters.index(parameter) if parameter in given_parameters else None for parameter in takes]

    def call(*values: Any) -> Any:
        return function(*(0 if place is None else values[place] for place in places))

    return call


def _is_of(row: Signature, types: tuple[str, ...]) -> bool:
    return len(types) == len(row.parameters) and all(map(_fits, row.parameters, types))


def _fits(parameter: Parameter, type: str) -> bool:
    """Return whether a C type is that of a row's parameter; a row has the type that an output points to."""
    if parameter.is_output:
        return parameter.type.rstrip(" *") == type.rstrip(" *")
    return c_types.plain(parameter.type) == type
