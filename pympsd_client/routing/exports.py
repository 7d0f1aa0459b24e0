"""The functions of libcuda.so.1 by the names that it exports, over the same rows as those of cuda.bindings.

Exported names end with a version ("_v2"), with parameters that belong to that version, and with "_ptds" or "_ptsz" in
programs that are compiled for per-thread default streams. `resolve` finds the row that has the parameters. Functions
of CUDA 2, whose sizes and device pointers have 32 bits, have none: no program can use them on a GPU of today either.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pympsd_client.routing import c_types, driver
from pympsd_client.routing.explain import refusing
from pympsd_client.routing.versions import arrange
from pympsd_client.signatures import SIGNATURES, Signature

result_of_error = driver.result_of_error
_SUFFIXES: Final = re.compile(r"(_v\d+)?(_ptds|_ptsz)?$")
_WIDTHS: Final = {"i": 4, "I": 4, "f": 4, "H": 2, "B": 1}
"""Bytes of a code's values; 8 of others."""


def resolve(name: str, signature: str) -> tuple[Any, ...]:
    """Return the function behind an exported name, the format of its parameters, and perhaps its core."""
    types = c_types.parameters(signature)
    for candidate in (re.sub("_pt[ds][sz]$", "", name), _SUFFIXES.sub("", name)):
        row = SIGNATURES.get(candidate)
        if row is not None and _fits(row, types):
            return driver.resolve(candidate, signature)
    return refusing(name), ""


def _fits(row: Signature, types: tuple[str, ...]) -> bool:
    """Return whether a function with these types of parameters is that of a row."""
    if any(type.rstrip(" *").endswith("_v1") for type in types):
        return False
    if len(types) != len(row.parameters):
        try:
            arrange(row, types)
        except TypeError:
            return False
        return True
    return all(
        not parameter.is_output or parameter.type == "void" or _width(parameter.type) == _width(type[:-1].strip())
        if type.endswith("*")
        else _width(parameter.type) == _width(type)
        for parameter, type in zip(row.parameters, types, strict=True)
    )


def _width(type: str) -> int:
    size = c_types.BY_VALUE.get(type)
    return _WIDTHS.get(c_types.code(type), 8) if size is None else size
