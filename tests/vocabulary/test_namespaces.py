"""The names of servers and namespaces."""

from __future__ import annotations

import pytest

from pympsd.vocabulary.identities import name_problem, socket_problem


@pytest.mark.parametrize("name", ["a", "_", "9", "uid_1000", "high_priority", "x" * 64, "default"])
def test_possible_names_are_accepted(name: str) -> None:
    assert name_problem(name) == name_problem(name, of_server=True) == ""


@pytest.mark.parametrize("name", ["", "Train-1", "a-b", "A", "x" * 65, "..", "a/b", "a.b", "é", "٣", "a\n", " a"])
def test_other_names_are_refused(name: str) -> None:
    assert name_problem(name) == f"Bad name '{name}': 1 to 64 lowercase letters, digits and underscores."


def test_names_that_a_socket_or_a_file_has() -> None:
    assert name_problem("control") == "The name 'control' is taken by a socket of the pipe directory."
    assert name_problem("control_lock") == ""
    for name in ("control", "control_lock", "control_privileged", "log", "help"):
        assert name_problem(name, of_server=True)


def test_a_path_of_107_bytes_is_the_longest() -> None:
    directory = "/" + "d" * (107 - len("//a/b/control"))
    assert socket_problem(directory, "a", "b", for_libcuda=False) == ""
    assert "is 108 bytes long; at most 107 are possible" in socket_problem(directory, "a", "bc", for_libcuda=False)
    assert "is 107 bytes long; at most 106 are possible" in socket_problem(directory, "a", "b", for_libcuda=True)
