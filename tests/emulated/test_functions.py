"""ex2, lg2, sin, cos and tanh: documented errors, special values, and the same bits wherever the tests run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from pympsd_server.ptx.math import functions
from tests.emulated.fragments import run_fragment

Floats = np.ndarray[Any, np.dtype[np.float32]]
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    name: partial(functions.approximate, name) for name in functions.FUNCTIONS
}
EXACT: dict[str, Callable[[Any], Any]] = {
    "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
}  # fmt: skip
NAN = 0x7FFFFFFF


def spread(low: float, high: float, count: int = 20_001) -> Floats:
    return np.linspace(low, high, count).astype("f4")


@pytest.mark.parametrize(
    ("name", "arguments", "relative", "absolute"),
    [
        ("ex2", spread(-126, 127.99), 2**-22, 0),
        ("ex2", spread(-150, -126), 0, 2**-149),
        ("ex2", spread(-1e-3, 1e-3), 2**-23.9, 0),
        ("lg2", np.geomspace(2.0**-149, 3e38, 20_001).astype("f4"), 2**-22, 0),
        ("lg2", spread(0.99, 1.01), 2**-22.6, 0),
        ("sin", spread(-6.3, 6.3), 0, 2**-20.5),
        ("cos", spread(-6.3, 6.3), 0, 2**-20.5),
        ("sin", spread(-315, 315), 0, 2**-14.7),
        ("cos", spread(-315, 315), 0, 2**-14.7),
        ("sin", spread(-2e9, 2e9), 2**-23, 2**-24),
        ("tanh", spread(-12, 12), 2**-11, 0),
        ("tanh", np.geomspace(2.0**-149, 1, 20_001).astype("f4"), 2**-23.5, 2**-149),
    ],
)
def test_errors_are_within_the_bounds_of_the_ptx_isa(
    name: str, arguments: Floats, relative: float, absolute: float
) -> None:
    exact = EXACT[name](arguments.astype("f8"))
    error = np.abs(FUNCTIONS[name](arguments) - exact)
    assert (error <= relative * np.abs(exact) + absolute).all()


@pytest.mark.parametrize(
    ("name", "arguments", "results"),
    [
        ("ex2", [-0.0, np.inf, -np.inf, 128, -149, -151, 1e-45, 3], [1, np.inf, 0, np.inf, 2.0**-149, 0, 1, 8]),
        ("lg2", [0, -0.0, np.inf, 2.0**-149, 1, 2.0**127], [-np.inf, -np.inf, np.inf, -149, 0, 127]),
        ("sin", [0, -0.0, 1e-45, -1e-45, 4e9, -3e38], [0, -0.0, 1e-45, -1e-45, 0, -0.0]),
        ("cos", [0, -0.0, 4e9, -3e38], [1, 1, 1, 1]),
        ("tanh", [0, -0.0, np.inf, -np.inf, 1e-45, 20, -3e38], [0, -0.0, 1, -1, 1e-45, 1, -1]),
    ],
)
def test_functions_of_special_values_are_as_documented(
    name: str, arguments: list[float], results: list[float]
) -> None:
    inputs, expected = np.array(arguments, "f4"), np.array(results, "f4")
    with np.errstate(all="ignore"):
        actual = FUNCTIONS[name](inputs)
        assert (actual.view("u4") == expected.view("u4")).all()
        assert [FUNCTIONS[name](x) for x in inputs] == actual.tolist()  # uniform values are NumPy's scalars


@pytest.mark.parametrize(
    ("name", "outside"),
    [("ex2", []), ("lg2", [-1, -np.inf, -1e-45]), ("sin", [np.inf, -np.inf]), ("cos", [np.inf]), ("tanh", [])],
)
def test_a_nan_is_the_one_of_gpus(name: str, outside: list[float]) -> None:
    arguments = np.array([*outside, 0], "f4")
    arguments.view("u4")[-1] = 0xFF800001
    with np.errstate(all="ignore"):
        assert FUNCTIONS[name](arguments).view("u4").tolist() == [NAN] * len(arguments)


def test_functions_have_the_same_bits_on_every_machine() -> None:
    bits = np.arange(0, 1 << 32, 100_003, dtype="u4")
    with np.errstate(all="ignore"):
        digests = {
            name: hashlib.sha256(function(bits.view("f4")).tobytes()).hexdigest()[:16]
            for name, function in FUNCTIONS.items()
        }
    assert digests == {
        "ex2": "4ff60ff1419dda2e",
        "lg2": "7534dc4de0c4e382",
        "sin": "d866178d65d35ff0",
        "cos": "8e3a8c8577fed3f9",
        "tanh": "96b9611970877cff",
    }


def test_instructions_use_the_functions() -> None:
    x = spread(-3, 3, 301)
    for name, function in FUNCTIONS.items():
        with np.errstate(all="ignore"):
            assert (run_fragment(f"{name}.approx.f32 %d, %a;", "u4", x) == function(x).view("u4")).all()
