"""A turn policy that fails: users take turns in the order in which they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pympsd.state_machine.state.turns import WaitingUser, fewest_turns, guard

USERS = (WaitingUser(1000, 1, 2), WaitingUser(1001, 3, 0))


def raising(users: Sequence[WaitingUser]) -> WaitingUser:
    raise KeyError("weights")


def test_a_policy_that_does_its_work_decides() -> None:
    output: list[Any] = []
    assert guard(fewest_turns(), lambda event, **fields: output.append(fields))(USERS) == USERS[1]
    assert not output


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (raising, "KeyError: 'weights'"),
        (lambda users: None, "the policy returned None, which is not one of the users passed to it"),
        (
            lambda users: [users[1]],
            "the policy returned [WaitingUser(uid=1001, waiting=3, turns=0)], which is not one",
        ),
    ],
)
def test_a_policy_that_fails_is_complained_of_once(policy: Any, reason: str) -> None:
    output: list[tuple[str, str]] = []
    choose = guard(policy, lambda event, reason: output.append((event, reason)))
    assert [choose(USERS), choose(USERS[1:]), choose(USERS)] == [USERS[0], USERS[1], USERS[0]]
    assert [event for event, _ in output] == ["turn_policy_failed"]
    assert output[0][1].startswith(reason)
