"""Every result is a CUresult, by name and value."""

import pytest
from cuda.bindings.driver import CUresult

from pympsd.vocabulary.results import Result


@pytest.mark.parametrize("result", list(Result), ids=lambda result: result.name)
def test_result_is_the_drivers(result: Result) -> None:
    assert int(getattr(CUresult, f"CUDA_{result.name}")) == result.value
