"""Reductions by tensor maps: functions, types, and floats as an H100 adds them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from pympsd.wire.tensor_map import DataType, TensorMap
from pympsd_server.ptx.isa.faults import IllegalInstruction
from tests.emulated.tensor_machine import SHARED, Machine, plain, storing


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


FUNCTIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, value: np.where(old >= value, 0, old + 1),
    "dec": lambda old, value: np.where((old == 0) | (old > value), value, old - 1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        *product(("add", "min", "max", "and", "or", "xor"), ("u4", "i4", "u8")), ("min", "i8"), ("max", "i8"),
        ("inc", "u4"), ("dec", "u4"), ("add", "f4"), ("add", "f8"), ("add", "f2"), ("min", "f2"), ("max", "f2"),
    ],
)  # fmt: skip
def test_reductions_match_numpy(machine: Machine, function: str, dtype: str) -> None:
    kind, random = np.dtype(dtype), np.random.default_rng(5)
    old, operand = (random.integers(0, 100, 16 * 256 // kind.itemsize).astype(kind) for _ in range(2))
    memory, image = np.zeros(Machine.ROOM, "u1"), np.zeros(SHARED, "u1")
    memory[:4096], image[:4096] = old.view("u1"), operand.view("u1")
    of = plain(machine, dtype)
    # Three rows and half of each are outside.
    start = (of.dimensions[0] - of.box[0] // 2, 11)
    after, _ = machine.run(storing(2, function), of, memory, image, start)
    expected = old.reshape(16, -1).copy()
    part = operand[: of.box[0] * 8].reshape(8, -1)[:5, : of.box[0] // 2]
    expected[11:, start[0] :] = FUNCTIONS[function](expected[11:, start[0] :], part)
    np.testing.assert_array_equal(after[:4096].view(kind).reshape(16, -1), expected)


def test_a_reduction_of_bfloats(machine: Machine) -> None:
    memory, image = np.zeros(Machine.ROOM, "u1"), np.zeros(SHARED, "u1")
    memory[:4096].view("u2")[:], image[:2048].view("u2")[:] = 0x3F80, 0x4000  # 1 and 2
    after, _ = machine.run(
        storing(2, "add"), plain(machine, "u2", data_type=DataType.BFLOAT16), memory, image, (0, 0)
    )
    assert after[:128].view("u2").tolist() == [0x4040] * 64


def test_sums_of_floats(machine: Machine) -> None:
    """Subnormal numbers are flushed by the types that report it, TF32 is added as it is, and there is one NaN."""
    old = np.array([0x00000001, 0x80000001, 0x00800000, 0x3F800001, 0x7F800000, 0xFFC00001, 0, 0], "u4")
    added = np.array([0x00000002, 0x80000002, 0x80800001, 0x00000001, 0xFF800000, 0x3F800000, 0, 0], "u4")
    kept = [0x00000003, 0x80000003, 0x80000001, 0x3F800001, 0x7FFFFFFF, 0x7FFFFFFF, 0, 0]
    flushed = [0, 0x80000000, 0x80000000, 0x3F800001, 0x7FFFFFFF, 0x7FFFFFFF, 0, 0]
    memory, image = np.zeros(Machine.ROOM, "u1"), np.zeros(SHARED, "u1")
    memory[:32], image[:32] = old.view("u1"), added.view("u1")
    expected = {
        DataType.FLOAT32: kept,
        DataType.FLOAT32_FTZ: flushed,
        DataType.TFLOAT32: kept,
        DataType.TFLOAT32_FTZ: flushed,
    }
    for data_type, words in expected.items():
        of = TensorMap(data_type, machine.tensor, (8,), (), (8,), (1,))
        after, _ = machine.run(storing(1, "add"), of, memory, image, [0])
        assert after[:32].view("u4").tolist() == words


def test_reductions_of_halves_have_one_nan(machine: Machine) -> None:
    memory, image = np.zeros(Machine.ROOM, "u1"), np.zeros(SHARED, "u1")
    memory[:8] = np.array([0xFE01, 0x7C00, 0xFE01, 0x3C00], "u2").view("u1")
    image[:8] = np.array([0x3C00, 0xFC00, 0xFE02, 0x3C00], "u2").view("u1")
    of = TensorMap(DataType.FLOAT16, machine.tensor, (8,), (), (8,), (1,))
    results = {"add": [0x7FFF, 0x7FFF, 0x7FFF, 0x4000], "max": [0x3C00, 0x7C00, 0x7FFF, 0x3C00]}
    for function, expected in results.items():
        after, _ = machine.run(storing(1, function), of, memory, image, [0])
        assert after[:8].view("u2").tolist() == expected


@pytest.mark.parametrize(
    ("function", "dtype"),
    [("min", "f4"), ("inc", "i4"), ("add", "u1"), ("and", "f8"), ("add", "i8"), ("and", "i8"), ("or", "i8")],
)
def test_impossible_reductions_are_faults(machine: Machine, function: str, dtype: str) -> None:
    nothing = np.zeros(Machine.ROOM, "u1")
    with pytest.raises(IllegalInstruction, match=f"no reduction .{function}"):
        machine.run(storing(2, function), plain(machine, dtype), nothing, nothing[:SHARED], (0, 0))
