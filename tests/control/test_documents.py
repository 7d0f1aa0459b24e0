"""What docs/python.md and the docstrings show is what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from pympsd import control
from pympsd.control import connection, daemon, records, trio_daemon
from pympsd.state_machine.state import turns
from pympsd.vocabulary import variables
from pympsd_server.backends import interface, virtual_memory
from pympsd_server.backends.emulated.scheduling import fair_share, policy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_examples_of_the_page() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted > 10


@pytest.mark.parametrize(
    "module",
    [
        control,
        connection,
        daemon,
        records,
        trio_daemon,
        variables,
        turns,
        policy,
        fair_share,
        interface,
        virtual_memory,
    ],
)
def test_the_examples_of_docstrings(module: object) -> None:
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)  # type: ignore[arg-type]
    assert found.failed == 0
    assert found.attempted
