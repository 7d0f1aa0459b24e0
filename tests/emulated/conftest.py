"""The tests of this folder run their kernels in both tiers: in the NumPy tier, and among the long tests compiled.

A module whose tests choose the tier themselves, or run no kernel, has `TIERS = ()`.
"""

from __future__ import annotations

import pytest

from pympsd.vocabulary.variables import TIER
from tests.gpu.devices import DEVICES

TIERS = ("numpy", pytest.param("compiled", marks=pytest.mark.long("")))


@pytest.fixture(autouse=True)
def _tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the tier of the test's kernels."""
    monkeypatch.setenv(TIER, getattr(request, "param", "numpy"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    tiers = () if DEVICES.backends else getattr(metafunc.module, "TIERS", TIERS)
    if tiers:
        metafunc.parametrize("_tier", tiers, indirect=True)
