"""How a result is compared with the recorded one; the rule is the manifest's, README.md explains them."""

from typing import Any

import numpy as np

SIGN = {"float16": 0x8000, "bfloat16": 0x8000, "float32": 1 << 31, "float64": 1 << 63}
INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0 << 48}


def bits(values: np.ndarray) -> np.ndarray:
    """The bits of a float array as unsigned integers."""
    return values.view(f"uint{values.dtype.itemsize * 8}")


def both_nan(dtype: str, actual: np.ndarray, recorded: np.ndarray) -> np.ndarray:
    """Where both are NaN: with which payload is nobody's promise."""
    limit, magnitude = INFINITY[dtype], SIGN[dtype] - 1
    return ((bits(actual) & magnitude) > limit) & ((bits(recorded) & magnitude) > limit)


def ordinals(dtype: str, values: np.ndarray) -> np.ndarray:
    """Floats numbered in their order, so that neighbours differ by one; both zeros are 0."""
    raw = bits(values)
    magnitude = (raw & (SIGN[dtype] - 1)).astype(np.int64)
    return np.where(raw & SIGN[dtype] != 0, -magnitude, magnitude)


def within_ulps(dtype: str, actual: np.ndarray, recorded: np.ndarray, most: int) -> np.ndarray:
    """Where two floats are at most so many representable values apart; infinity is next to the greatest."""
    left, right = ordinals(dtype, actual), ordinals(dtype, recorded)
    same_side = (left >= 0) == (right >= 0)
    # Apart on both sides of zero: each must be that near to it (the difference itself could overflow).
    near = (np.abs(left) <= most) & (np.abs(right) <= most)
    return np.where(same_side, np.abs(np.abs(left) - np.abs(right)) <= most, near)


def agree(spec: dict[str, Any], actual: np.ndarray, recorded: np.ndarray) -> np.ndarray:
    """Element by element: whether a result is what the rule of its output allows."""
    dtype, rule = spec["dtype"], spec["compare"]
    if dtype not in SIGN:
        return actual == recorded
    same = (bits(actual) == bits(recorded)) | both_nan(dtype, actual, recorded)
    if rule == "exact":
        return same
    if "ulp" in rule:
        same = same | within_ulps(dtype, actual, recorded, rule["ulp"])
    with np.errstate(all="ignore"):
        margin = rule.get("atol", 0) + rule.get("rtol", 0) * np.abs(recorded.astype(np.float64))
        close = np.isfinite(recorded) & (np.abs(actual.astype(np.float64) - recorded) <= margin)
    return same | close if "atol" in rule or "rtol" in rule else same
