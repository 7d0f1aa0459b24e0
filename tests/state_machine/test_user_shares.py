"""Shares of what exists in the I/O layer only: connections, and bytes of buffers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import describe
from pympsd.state_machine import shares
from pympsd.state_machine.state.daemon import Daemon, Usage
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.vocabulary.shares import BUFFERS, CONNECTIONS, SharedResource, Shares

ROOT, OWN = 0, 500
USERS = (10001, 10002, 10003)


def daemon() -> Daemon:
    """Return a daemon of user OWN that may open 4,096 descriptors."""
    return Daemon(DaemonOptions(OWN), describe("H200"), usage=Usage(Shares(descriptors=4096)))


@pytest.mark.parametrize("resource", [CONNECTIONS, BUFFERS], ids=lambda resource: resource.name)
@given(changes=st.lists(st.tuples(st.sampled_from((ROOT, OWN, *USERS)), st.integers(-64, 64)), max_size=60))
def test_no_sequence_of_requests_exceeds_a_share_or_the_total(
    resource: SharedResource, changes: list[tuple[int, int]]
) -> None:
    state, unit = daemon(), daemon().usage.shares.share(resource) // 32
    has = dict.fromkeys((ROOT, OWN, *USERS), 0)
    for uid, change in changes:
        amount = max(change * unit, -has[uid])
        if amount < 0:
            shares.give_back(state, resource, uid, -amount)
        if amount < 0 or not shares.take(state, resource, uid, amount):
            has[uid] += amount
    assert {uid: shares.count_used(state, resource, uid) for uid in has} == has
    assert sum(has.values()) <= state.usage.shares.total(resource)
    assert all(has[uid] <= state.usage.shares.share(resource) for uid in USERS)
    assert sum(has[uid] for uid in USERS) <= state.usage.shares.count_for_users(resource)


@pytest.mark.parametrize("resource", [CONNECTIONS, BUFFERS], ids=lambda resource: resource.name)
@pytest.mark.parametrize("count", [1, 3, 20, 60])
def test_greedy_users_leave_a_share_for_another_user_and_a_part_for_root(
    resource: SharedResource, count: int
) -> None:
    state = daemon()
    total = state.usage.shares.total(resource)
    step = max(1, total // 4096)
    refused: set[int] = set()
    while len(refused) < count:
        refused |= {uid for uid in range(1, count + 1) if shares.take(state, resource, uid, step)}
    most = max(shares.count_used(state, resource, uid) for uid in range(1, count + 1))
    assert most <= state.usage.shares.share(resource)
    assert shares.take(state, resource, USERS[0], most // 2) == ""
    assert shares.take(state, resource, ROOT, total // 8) == ""
