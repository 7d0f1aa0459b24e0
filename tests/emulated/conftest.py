"""The tests of this folder run their kernels in both tiers: in the NumPy tier, and among the long tests compiled.

A module whose tests choose the tier themselves, or run no kernel, has `TIERS = ()`. In addition to the tiers it may
name ESCAPING: the compiled tier, with as many instructions as possible executed by the functions of the NumPy tier.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from pympsd.vocabulary.variables import TIER
from pympsd_server.ptx.compiled_tier.batches import selection
from pympsd_server.ptx.compiled_tier.text import kernel_writer
from pympsd_server.ptx.lowering.ir import Operation
from tests.gpu.devices import DEVICES

TIERS = ("numpy", pytest.param("compiled", marks=pytest.mark.long("")))


@pytest.fixture(autouse=True)
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the tier of the test's kernels, and return it."""
    tier: str = getattr(request, "param", "numpy")
    use_tier(monkeypatch, tier)
    monkeypatch.setattr(selection, "report", _fail_after_compiler)
    return tier


def _fail_after_compiler(text: str) -> None:
    """Fail a test if the compiler failed: the kernel would run in NumPy, with the right results."""
    if "while it was compiled" in text:
        pytest.fail(text)


def use_tier(monkeypatch: pytest.MonkeyPatch, tier: str, *, max_escapes: int = 8) -> None:
    """Run kernels in a tier; "escaping": with the first `max_escapes` instructions of each opcode in NumPy."""
    monkeypatch.setenv(TIER, "compiled" if tier == "escaping" else tier)
    if tier == "escaping":
        monkeypatch.setattr(kernel_writer, "is_forced", partial(_is_among_first, Counter(), max_escapes))
    else:
        monkeypatch.setattr(kernel_writer, "is_forced", lambda _: False)


def _is_among_first(seen: Counter[str], count: int, operation: Operation) -> bool:
    seen[operation.opcode] += 1
    return seen[operation.opcode] <= count


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test once in each of its module's tiers, except those that name them themselves."""
    tiers = () if DEVICES.backends else getattr(metafunc.module, "TIERS", TIERS)
    if tiers and not any("tier" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        metafunc.parametrize("tier", tiers, indirect=True)
