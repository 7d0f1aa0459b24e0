"""Runs a few PTX instructions over arrays: thread i reads element i of each input."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulated.harness import HEADER, Device

Array = np.ndarray[Any, Any]
_LETTERS = "abcd"
_WIDTHS = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def fragment_ptx(body: str, inputs: list[Array], result: np.dtype[Any], header: str = HEADER) -> str:
    """A kernel that loads %a, %b, ... (registers of the inputs' widths), runs `body`, stores %d."""
    lines = [".reg .pred %p, %q;", ".reg .b16 %h<4>;", ".reg .b32 %i<8>;", ".reg .b64 %w<8>;", ".reg .b64 %at, %off;"]
    if len(inputs) < len(_LETTERS):  # else it is the last input's register too
        lines.append(f".reg .{_WIDTHS[result.itemsize]} %d;")
    lines.append("mov.u32 %i0, %tid.x;")
    for letter, values in zip(_LETTERS, inputs, strict=False):
        size = values.dtype.itemsize
        lines += [
            f".reg .{_WIDTHS[size]} %{letter};",
            f"ld.param.u64 %at, [p_{letter}];",
            f"mul.wide.u32 %off, %i0, {size};",
            "add.s64 %at, %at, %off;",
            f"ld.global.b{8 * size} %{letter}, [%at];",
        ]
    lines += [
        body,
        "ld.param.u64 %at, [p_out];",
        f"mul.wide.u32 %off, %i0, {result.itemsize};",
        "add.s64 %at, %at, %off;",
        f"st.global.b{8 * result.itemsize} [%at], %d;",
        "ret;",
    ]
    parameters = [f".param .u64 p_{x}" for x in (*_LETTERS[: len(inputs)], "out")]
    return f"{header}.visible .entry f({', '.join(parameters)})\n{{\n" + "\n".join(lines) + "\n}\n"


def run_fragment(body: str, result: str, *inputs: Array, header: str = HEADER) -> Array:
    """What `body` leaves in %d, as dtype `result`, for each element of the inputs (at most 1024)."""
    dtype = np.dtype(result)
    device = Device(1 << 20)
    module = device.load(fragment_ptx(body, list(inputs), dtype, header))
    out = np.zeros(len(inputs[0]), dtype)
    addresses = [device.put(x) for x in inputs]
    target = device.put(out)
    device.launch(module, "f", 1, len(out), *addresses, target)
    return device.get(target, out)
