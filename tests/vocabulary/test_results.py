"""Every result is a CUresult, by name and value."""

import pytest
from cuda.bindings.driver import CUresult

from pympsd.vocabulary.results import STICKY, Result


@pytest.mark.parametrize("result", list(Result), ids=lambda result: result.name)
def test_result_is_the_drivers(result: Result) -> None:
    assert int(getattr(CUresult, f"CUDA_{result.name}")) == result.value


def test_sticky_results_are_results_and_failures() -> None:
    assert set(Result) >= STICKY
    assert Result.SUCCESS not in STICKY
    assert Result.ERROR_ILLEGAL_ADDRESS in STICKY


def test_recoverable_results_are_not_sticky() -> None:
    assert not STICKY & {
        Result.ERROR_OUT_OF_MEMORY,
        Result.ERROR_INVALID_VALUE,
        Result.ERROR_NOT_READY,
        Result.ERROR_INVALID_PTX,
        Result.ERROR_NOT_SUPPORTED,
    }
