"""Define the PTX scalar types, and the NumPy dtypes that hold their values."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

# A NumPy scalar (the same for every thread of a group) or a 1-d array (one element per thread).
Value: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]
DType: TypeAlias = "np.dtype[Any]"


def _table() -> dict[str, DType]:
    table: dict[str, DType] = {"pred": np.dtype(np.bool_)}
    for bits in (8, 16, 32, 64):
        for letter, kind in (("u", "u"), ("s", "i"), ("b", "u")):
            table[f"{letter}{bits}"] = np.dtype(f"{kind}{bits // 8}")
    for bits in (16, 32, 64):
        table[f"f{bits}"] = np.dtype(f"f{bits // 8}")
    # NumPy has no bfloat16 and no packed pairs; unsigned integers hold their bits.
    table.update(bf16=np.dtype("u2"), f16x2=np.dtype("u4"), bf16x2=np.dtype("u4"))
    table.update(u16x2=np.dtype("u4"), s16x2=np.dtype("u4"))
    return table


DTYPES = _table()
# Types of conversions, matrices and 128-bit atomics only. Only .b128 also has registers, which are pairs of .b64.
BITS_OF_TYPES: dict[str, DType] = {
    "e4m3x2": np.dtype("u2"),
    "e5m2x2": np.dtype("u2"),
    "e4m3": np.dtype("u1"),
    "e5m2": np.dtype("u1"),
    "tf32": np.dtype("u4"),
    "b1": np.dtype("u1"),
    "b128": np.dtype([("low", "u8"), ("high", "u8")]),
}
NEEDS_BLACKWELL = "needs compute capability 10.0; there was no such GPU to record its results"
_FOUR_BITS = "tensor cores of compute capability 9.0 have no integers of 4 bits; they are not implemented"
_REFERENCES = "textures and surfaces are objects, not references"
UNSUPPORTED_TYPES = {
    "e2m1x2": NEEDS_BLACKWELL,
    "e2m3x2": NEEDS_BLACKWELL,
    "e3m2x2": NEEDS_BLACKWELL,
    "ue8m0x2": NEEDS_BLACKWELL,
    "f32x2": NEEDS_BLACKWELL,
    "s4": _FOUR_BITS,
    "u4": _FOUR_BITS,
    "texref": _REFERENCES,
    "samplerref": _REFERENCES,
    "surfref": _REFERENCES,
}
"""The types of PTX that the emulated GPU lacks, with the reason. The parser accepts them, so that the error can name
the type and the reason."""
BOOL = np.dtype(np.bool_)
U8, S8 = np.dtype("u1"), np.dtype("i1")
U16, S16 = np.dtype("u2"), np.dtype("i2")
U32, S32 = np.dtype("u4"), np.dtype("i4")
U64, S64 = np.dtype("u8"), np.dtype("i8")
F16, F32, F64 = np.dtype("f2"), np.dtype("f4"), np.dtype("f8")


def dtype_name(dtype: DType) -> str:
    """Return the name of a dtype's scalar type in generated code."""
    return "d_b1" if dtype.kind == "b" else f"d_{dtype.kind}{dtype.itemsize}"


def unsigned_of(dtype: DType) -> DType:
    """Return the unsigned dtype of the same width. For a predicate, return its own dtype."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind != "b" else dtype


def signed_of(dtype: DType) -> DType:
    """Return the signed integer dtype of the same width."""
    return np.dtype(f"i{dtype.itemsize}")


def double_width(ptx_type: str) -> str:
    """Return the type of a .wide result: u16 -> u32, s32 -> s64."""
    return ptx_type[0] + str(int(ptx_type[1:]) * 2)


DTYPE_NAMES: dict[str, type[Any]] = {dtype_name(d): d.type for d in DTYPES.values()}
