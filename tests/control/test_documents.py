"""What docs/python.md and the docstrings of daemon and server show is what happens."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest
from examples import modules_with_examples

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


@pytest.mark.long
def test_the_examples_of_the_page() -> None:
    report = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert report.failed == 0
    assert report.attempted > 10


@pytest.mark.parametrize("module", modules_with_examples("pympsd", "pympsd_server"))
def test_the_examples_of_docstrings(module: str) -> None:
    report = doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS)
    assert report.failed == 0
    assert report.attempted
