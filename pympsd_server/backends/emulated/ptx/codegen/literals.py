"""Literals as NumPy scalars."""

from __future__ import annotations

from typing import Any

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import DType
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate


def immediate_value(literal: Immediate, dtype: DType) -> Any:
    """The literal as a scalar of `dtype`; integers wrap, floats convert."""
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
    # A float literal for an untyped (.b32, .b64) operand stands for its bits.
    bits = value.view(f"u{value.dtype.itemsize}")
    if value.dtype.itemsize > dtype.itemsize:
        with np.errstate(all="ignore"):
            bits = np.float32(value).view(np.uint32)
    return bits.astype(dtype)
