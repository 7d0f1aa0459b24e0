"""The change of identity of a server's process: only what differs, and what the kernel would deny."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from pympsd.service.processes.identity import (
    CAP_SETGID,
    CAP_SETUID,
    NO_ONE,
    Denied,
    OwnIdentity,
    change_of_identity,
)

ALL = (range(1 << 32),)
ROOT = OwnIdentity(0, 0, frozenset({0}), 1 << CAP_SETGID | 1 << CAP_SETUID, ALL, ALL)
SINGLE = evolve(ROOT, groups=frozenset({0, 65534}), uids=(range(1),), gids=(range(1),), may_set_groups=False)
WITHOUT_CAPABILITIES = evolve(ROOT, capabilities=0)


@pytest.mark.parametrize(
    ("own", "user", "options"),
    [
        (ROOT, (0, 0, (0,)), {}),
        (ROOT, (5, 6, (6, 7)), {"user": 5, "group": 6, "extra_groups": (6, 7)}),
        (ROOT, (0, 6, (6,)), {"group": 6, "extra_groups": (6,)}),
        (evolve(ROOT, uid=NO_ONE, gid=NO_ONE), (0, 0, (0,)), {"user": 0, "group": 0}),
        (SINGLE, (0, 0, (0, 65534)), {}),
        (SINGLE, (0, 0, (0,)), {}),
        (SINGLE, (0, 65534, (65534,)), {}),
        (WITHOUT_CAPABILITIES, (0, 4, (4,)), {}),
    ],
)
def test_only_what_differs_is_changed(
    own: OwnIdentity, user: tuple[int, int, tuple[int, ...]], options: dict[str, Any]
) -> None:
    assert change_of_identity(own, *user) == options


@pytest.mark.parametrize(
    ("own", "user", "reason"),
    [
        (SINGLE, (5, 0, (0,)), "setuid is denied: user 5 does not exist"),
        (evolve(SINGLE, uids=ALL), (5, 0, (0,)), "setgroups is denied in the daemon's user namespace"),
        (evolve(ROOT, gids=(range(1),)), (5, 6, (0,)), "setgid is denied: group 6 does not exist"),
        (evolve(ROOT, gids=(range(1),)), (5, 0, (0, 6)), "setgroups is denied: group 6 does not exist"),
        (WITHOUT_CAPABILITIES, (5, 0, (0,)), "setuid is denied: the daemon has no CAP_SETUID"),
        (evolve(ROOT, capabilities=1 << CAP_SETUID), (5, 6, (0,)), "setgid is denied: the daemon has no CAP_SETGID"),
        (evolve(ROOT, capabilities=1 << CAP_SETUID), (5, 0, ()), "setgroups is denied: the daemon has no CAP_SETGID"),
    ],
)
def test_the_call_that_is_denied_is_named(
    own: OwnIdentity, user: tuple[int, int, tuple[int, ...]], reason: str
) -> None:
    with pytest.raises(Denied, match=reason):
        change_of_identity(own, *user)
