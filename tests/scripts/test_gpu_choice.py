"""The table of what scripts/test-gpu runs names what there is, with reasons; its parts work without a GPU."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pympsd_server.ptx.loading.program import load_program
from tests.gpu import straight_line
from tests.gpu.choice import TABLE, TESTS, Choice, meets
from tests.gpu.instruction_table import INSTRUCTIONS

ENTRIES: list[dict[str, Any]] = tomllib.loads(TABLE.read_text())["file"]
ROOMS = ("flows", "conformance", "emulated")
"""Every test file of these is in the table."""
LISTS = ("other_users", "figures", "multiprocessors", "real_gpu", "two_gpus", "two_led_gpus")


def functions(path: Path) -> set[str]:
    """Return the names of a file's tests."""
    tree = ast.parse(path.read_text())
    return {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def list_patterns(entry: dict[str, Any]) -> list[str]:
    """Return the patterns of an entry."""
    listed = [name for key in LISTS for name in entry.get(key, [])]
    return listed + [name for omission in entry.get("left_out", []) for name in omission["tests"]]


def test_every_file_is_decided_once() -> None:
    paths = [entry["path"] for entry in ENTRIES]
    assert len(set(paths)) == len(paths)
    there = {str(path.relative_to(TESTS)) for room in ROOMS for path in (TESTS / room).glob("test_*.py")}
    assert {path for path in paths if not path.startswith("gpu/")} == there


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["path"])
def test_what_is_left_out_is_there_and_has_its_reason(entry: dict[str, Any]) -> None:
    there = functions(TESTS / entry["path"])
    assert entry.keys() <= {"path", "reason", "left_out", *LISTS}
    for pattern in list_patterns(entry):
        name = pattern.partition("[")[0].removesuffix("*")
        assert any(line == name or (pattern.endswith("*") and line.startswith(name)) for line in there), pattern
    for omission in entry.get("left_out", []):
        assert omission.keys() == {"reason", "tests"}
        assert omission["reason"]
        assert omission["tests"]


def test_the_sequences_of_protocol_3_that_the_table_names_are_there() -> None:
    ids = [sequence["id"] for sequence in tomllib.loads((TESTS / "flows" / "protocol3.toml").read_text())["sequence"]]
    (entry,) = (entry for entry in ENTRIES if entry["path"] == "flows/test_protocol3.py")
    named_ids = [pattern.partition("[")[2].rstrip("*]") for pattern in list_patterns(entry)]
    assert [name for name in named_ids if not any(line.startswith(name) for line in ids)] == []


@pytest.mark.parametrize(
    ("pattern", "name", "meant"),
    [
        ("test_a", "test_a", True),
        ("test_a", "test_a[1-x]", True),
        ("test_a", "test_ab", False),
        ("test_a[1-x]", "test_a[1-x]", True),
        ("test_a[1-x]", "test_a[1-y]", False),
        ("test_a[1*", "test_a[1-y]", True),
        ("test_a*", "test_ab", True),
    ],
)
def test_names_of_the_table(pattern: str, name: str, meant: bool) -> None:
    assert meets(pattern, name) is meant


def test_the_machine_leaves_tests_out_before_the_table_does() -> None:
    choice = Choice({"flows/x.py": {"figures": ["test_a"], "left_out": [{"reason": "why", "tests": ["test_b"]}]}}, {})
    where = TESTS / "flows" / "x.py"
    assert [choice.reason(where, name) for name in ("test_a", "test_b", "test_c")] == ["", "why", ""]
    other = Choice(choice.files, {"figures": "another device"})
    assert [other.reason(where, name) for name in ("test_a", "test_b")] == ["another device", "why"]
    assert choice.reason(Path("/elsewhere/x.py"), "test_a") == ""


def test_every_instruction_of_the_straight_lines_is_one_that_the_translator_takes() -> None:
    rng = straight_line.np.random.default_rng(1)
    chosen = [straight_line.with_registers(instruction, rng) for instruction in INSTRUCTIONS]
    lines = [line for before, text in chosen for line in (*before, text)]
    program = load_program((straight_line.HEADER + straight_line.kernel("k", lines)).encode())
    assert list(program.kernels) == ["k"]
    assert len(set(INSTRUCTIONS)) == len(INSTRUCTIONS) > 400


def test_what_is_read_is_kept_to_what_ptx_allows() -> None:
    rng = straight_line.np.random.default_rng(1)
    before, text = straight_line.with_registers("bfe.u64 %D, %d, %w[and.b32 255], %w[and.b32 255]", rng)
    registers = [line.split()[2] for line in before]
    assert before == [f"and.b32 %xw{at}, {register} 255;" for at, register in enumerate(registers)]
    assert text.endswith(", %xw0, %xw1;")
    fields = [entry for entry in INSTRUCTIONS if entry.startswith(("bfe.", "bfi."))]
    assert len(fields) == 6
    assert all(entry.count("%w[and.b32 255]") == 2 for entry in fields)


def test_what_the_drivers_compiler_does_not_guard_is_never_guarded() -> None:
    rng = straight_line.np.random.default_rng(1)
    text = "".join(straight_line.program("k", rng).ptx for _ in range(300))
    assert "\ntestp." in text
    assert "@%p0 setp." in text
    assert not any(f"@%p{number} testp" in text for number in range(straight_line.PREDICATES))


def test_a_difference_is_seen_in_every_register_and_nans_are_alike() -> None:
    buffer = straight_line.np.zeros((straight_line.ROWS, straight_line.THREADS), "u8")
    assert straight_line.differing(buffer, buffer) == []
    other = buffer.copy()
    other[:, 5] = 1
    assert len(straight_line.differing(buffer, other)) == straight_line.ROWS
    row = straight_line.row_of("f0")
    buffer[row, 5], other[:, 5], other[row, 5] = 0x7FC00000, 0, 0xFFFFFFFF
    assert straight_line.differing(buffer, other) == []
    other[row, 5] = 0x7F800000
    assert straight_line.differing(buffer, other) == [("f0", 5)]
