"""1,122 forms of instructions that only compute give the bits that an H200 gave, the bits of NaN included.

tests/data/recorded-forms.npz has what an H200 (driver 580) answered, in three arrays:

- ``forms``: an opcode (and its last operand, if that is a constant) and the types of its result and operands, such as
  ``add.rn.f32 f32 f32 f32`` or ``lop3.b32#150 b32 b32 b32 b32``;
- ``columns``: 4 columns each of operands with 16, 32 and 64 bits, most of them special values: the first operand of a
  form is in the first column of its width, the second in the second, and so on;
- ``results``: a row for each form.

A NaN of a double comes from an operand. Which one that is if several are NaN is not compared.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from attrs import frozen

from tests.emulated.harness import Device

Array = np.ndarray[Any, Any]
TIERS = ("numpy", "compiled")
RECORDED: Final = Path(__file__).parents[1] / "data" / "recorded-forms.npz"
HEADER: Final = ".version 8.6\n.target sm_90\n.address_size 64\n"
FORMS_IN_A_KERNEL: Final = 24


@frozen
class Form:
    """An instruction with the types of its operands, and a GPU's results."""

    opcode: str
    constant: str
    target: str
    sources: tuple[str, ...]
    results: Array

    @property
    def name(self) -> str:
        return re.split(r"[.#]", self.opcode)[0]

    def columns(self) -> list[int]:
        """The columns of the operands."""
        return [{16: 0, 32: 4, 64: 8}[width_of(source)] + i for i, source in enumerate(self.sources)]

    def text(self, place: int, count: int) -> str:
        """PTX that computes this form and stores its result as the row `place` of the results."""
        lines, operands = [], []
        for column, source in zip(self.columns(), self.sources, strict=True):
            bits = width_of(source)
            operands.append(f"%b{bits}_{column % 4}")
            lines.append(f"ld.global.b{bits} {operands[-1]}, [%in + {8 * count * column}];")
        bits = width_of(self.target)
        result = "%p" if self.target == "pred" else f"%b{bits}_5"
        operands += [self.constant] if self.constant else []
        lines.append(f"{self.opcode} {result}, {', '.join(operands)};")
        if self.target == "pred":
            lines.append("selp.b32 %b32_5, 1, 0, %p;")
        extend = f"cvt.u64.u{bits} %b64_6, %b{bits}_5;" if bits < 64 else "mov.b64 %b64_6, %b64_5;"
        return "\n".join([*lines, extend, f"st.global.b64 [%out + {8 * count * place}], %b64_6;"])


def width_of(kind: str) -> int:
    """The bits of a register for a type."""
    return 32 if kind == "pred" or kind.endswith("x2") else max(16, int(re.sub(r"\D", "", kind.removeprefix("b"))))


@cache
def recorded() -> tuple[tuple[Form, ...], Array]:
    """All forms, and the columns of operands."""
    with np.load(RECORDED) as data:
        forms = []
        for line, results in zip(data["forms"].tolist(), data["results"], strict=True):
            opcode, target, *sources = line.split()
            opcode, _, constant = opcode.partition("#")
            forms.append(Form(opcode, constant, target, tuple(sources), results))
        return tuple(forms), data["columns"]


def kernel_of(forms: list[Form], count: int) -> str:
    registers = "".join(f".reg .b{bits} %b{bits}_<8>; " for bits in (16, 32, 64))
    body = "\n".join(form.text(place, count) for place, form in enumerate(forms))
    return f"""{HEADER}.visible .entry forms(.param .u64 columns, .param .u64 results)
{{
{registers} .reg .pred %p; .reg .b32 %t; .reg .b64 %in, %out, %at;
mov.u32 %t, %tid.x;
mul.wide.u32 %at, %t, 8;
ld.param.u64 %in, [columns];
ld.param.u64 %out, [results];
add.u64 %in, %in, %at;
add.u64 %out, %out, %at;
{body}
ret;
}}
"""


def are_nan_doubles(values: Array) -> Array:
    return (values & np.uint64((1 << 63) - 1)) > np.uint64(0x7FF << 52)


@pytest.mark.parametrize("name", sorted({form.name for form in recorded()[0]}))
def test_same_bits_as_a_gpu(name: str) -> None:
    forms, columns = recorded()
    count, chosen = columns.shape[1], [form for form in forms if form.name == name]
    for begin in range(0, len(chosen), FORMS_IN_A_KERNEL):
        part = chosen[begin : begin + FORMS_IN_A_KERNEL]
        device = Device(1 << 22)
        inputs, outputs = device.put(columns), device.put(np.zeros((len(part), count), np.uint64))
        device.launch(device.load(kernel_of(part, count)), "forms", 1, count, inputs, outputs)
        actual = device.get(outputs, np.zeros((len(part), count), np.uint64))
        for form, results in zip(part, actual, strict=True):
            good = results == form.results
            if form.target == "f64" and form.sources.count("f64") > 1:
                nans = sum(are_nan_doubles(columns[column]).astype(int) for column in form.columns())
                good |= (nans > 1) & are_nan_doubles(results) & are_nan_doubles(form.results)
            operands = [[hex(columns[column][i]) for column in form.columns()] for i in np.flatnonzero(~good)]
            assert good.all(), (
                f"{form.opcode} of {operands[0]}: {results[~good][0]:x}, not {form.results[~good][0]:x}"
            )
