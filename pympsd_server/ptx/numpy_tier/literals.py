"""Convert literals to NumPy scalars, and the initial values of variables to bytes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pympsd_server.ptx.isa.datatypes import DTYPES, DType
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.syntax.tree import Immediate, Initialiser, Variable


def immediate_value(literal: Immediate, dtype: DType) -> Any:
    """Return the literal as a scalar of `dtype`. Integers wrap, and floats are converted."""
    if literal.form == "f32":
        return _float(np.uint32(literal.value).view(np.float32), dtype)
    if literal.form == "f64":
        return _float(np.uint64(literal.value).view(np.float64), dtype)
    if dtype.kind == "b":
        return np.bool_(literal.value != 0)
    if dtype.kind == "f":
        return dtype.type(literal.value)
    size = dtype.itemsize
    return np.frombuffer((literal.value & ((1 << 8 * size) - 1)).to_bytes(size, "little"), dtype)[0]


def _float(value: Any, dtype: DType) -> Any:
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return value if value.dtype == dtype else dtype.type(value)
    # A float literal as an untyped operand (.b32, .b64) means its bits.
    bits = value.view(f"u{value.dtype.itemsize}")
    if value.dtype.itemsize > dtype.itemsize:
        with np.errstate(all="ignore"):
            bits = np.float32(value).view(np.uint32)
    return bits.astype(dtype)


def initial_bytes(variable: Variable, addresses: Mapping[str, int]) -> bytes:
    """Return the bytes of a variable's initial values. Raises InvalidPtx for unsupported or too many values."""
    dtype = DTYPES[variable.type]
    if dtype.kind in "iu" and all(map(_is_plain, variable.initial)):
        mask = (1 << 8 * dtype.itemsize) - 1
        values = np.array([v.value.value & mask for v in variable.initial], f"u{dtype.itemsize}").tobytes()
    else:
        values = b"".join(_initial_value(v, dtype, addresses, variable) for v in variable.initial)
    if len(values) > variable.size:
        raise InvalidPtx(f"too many initial values for {variable.name}", variable.line)
    return values


def _is_plain(initial: Initialiser) -> bool:
    return initial.symbol is None and initial.shift is None and initial.value.form == "int"


def _initial_value(
    initial: Initialiser, dtype: np.dtype[Any], addresses: Mapping[str, int], variable: Variable
) -> bytes:
    if initial.symbol is None and initial.shift is None:
        return immediate_value(initial.value, dtype).tobytes()  # type: ignore[no-any-return]
    value = initial.value.value
    if initial.symbol is not None:
        is_allowed = dtype.kind in "iu" and (dtype.itemsize >= 4 or initial.shift is not None)
        if initial.symbol not in addresses or initial.value.form != "int" or not is_allowed:
            raise InvalidPtx(f"unsupported initialiser {initial.symbol} of {variable.name}", variable.line)
        value += addresses[initial.symbol]
    if initial.shift is not None:
        value = value >> initial.shift & 0xFF
    return immediate_value(Immediate(value), dtype).tobytes()  # type: ignore[no-any-return]
