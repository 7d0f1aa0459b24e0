"""Descriptors of servers' clients: however many servers a user stops, others' clients are still sent to theirs."""

from __future__ import annotations

import pytest
from attrs import define

from pympsd.service.processes import fd_quota
from pympsd.service.processes.fd_quota import ASSURED, may_queue, may_watch

EXEMPT = frozenset({0})
LIMIT = 1024


@define
class Server:
    """A server's session."""

    uid: int
    queued_descriptors: int = 0
    watched_clients: int = 0


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fd_quota, "fd_limit", lambda: LIMIT)


def fill(servers: list[Server]) -> int:
    """Send clients to servers that take none of them, and watch all, as long as that is possible."""
    for server in servers:
        while may_queue(server, servers, EXEMPT):
            server.queued_descriptors += 1
        while may_watch(server, servers, EXEMPT):
            server.watched_clients += 1
    return sum(server.queued_descriptors for server in servers)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_a_user_with_several_stopped_servers_has_no_more_than_with_one(count: int) -> None:
    servers = [Server(1000) for _ in range(count)]
    assert fill(servers) == LIMIT // fd_quota.USER_DIVISOR
    assert sum(server.watched_clients for server in servers) == LIMIT // fd_quota.USER_DIVISOR


def test_many_users_with_stopped_servers_leave_the_assured_ones_for_each_other_user() -> None:
    servers = [Server(uid) for uid in range(1000, 1010)]
    assert LIMIT // fd_quota.QUEUED_DIVISOR <= fill(servers) <= LIMIT // fd_quota.QUEUED_DIVISOR + 10 * ASSURED
    assert sum(server.watched_clients for server in servers) <= LIMIT // fd_quota.WATCHED_DIVISOR
    late, roots = Server(2000), Server(0)
    fill([*servers, late, roots])
    assert late.queued_descriptors == ASSURED
    assert roots.queued_descriptors == roots.watched_clients == LIMIT // fd_quota.USER_DIVISOR
