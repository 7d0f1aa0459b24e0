"""Lists of clients, compared with what the clients report."""

from __future__ import annotations

import pytest

from tests.chaos.history import History, Incident
from tests.chaos.listings import NOTICED_SECONDS, differences, pids
from tests.chaos.schedule import Kind
from tests.chaos.test_verdicts import ALICE, BOB, a_life, a_step

PS = """PID       ID       SERVER    DEVICE             NAMESPACE      COMMAND
101       1        77        GPU-1              4026531836     program 77
102       2        78        GPU-1              4026531836     program
"""


def test_a_table_and_a_list_are_read() -> None:
    assert pids(PS, 77, 2) == {101}
    assert pids("101\n102\n", 77, None) == {101, 102}
    assert pids("Server not found\n", 77, 2) == set()


@pytest.mark.parametrize(
    ("shown", "words"),
    [({101}, []), (set(), ["lacks [101]"]), ({101, 102}, ["has [102]"]), ({102}, ["lacks [101]", "has [102]"])],
)
def test_a_client_with_a_context_is_listed_and_not_unknown(shown: set[int], words: list[str]) -> None:
    problems = list(differences(History([a_life(1), a_life(2, BOB)]), ALICE, shown, 5.0, 5.1))
    assert [line.partition(",")[0] for line in problems] == words


def test_an_ended_client_must_leave_the_list() -> None:
    history = History([a_life(1, ended=20.0)])
    assert list(differences(history, ALICE, {101}, 20.0 + NOTICED_SECONDS / 2, 21.0)) == []
    assert len(list(differences(history, ALICE, {101}, 20.1 + NOTICED_SECONDS, 22.0))) == 1


def test_a_client_that_may_lack_a_context_may_be_missing_from_the_list() -> None:
    late, failed, killed, reached = (a_life(number) for number in range(1, 5))
    late.contexts[1].opened = 5.05
    failed.steps.append(a_step(810, 5.5))
    struck = Incident(Kind.CLIENT_KILL, 1, 5.0, 5.1, client=3, uid=ALICE)
    assert list(differences(History([late, failed, killed], [struck]), ALICE, set(), 5.0, 5.1)) == []
    fault = Incident(Kind.CLIENT_FAULT, 1, 5.0, 5.1, client=9, uid=ALICE)
    assert list(differences(History([reached], [fault]), ALICE, set(), 5.0, 5.1)) == []
