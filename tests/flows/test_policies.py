"""Policies that the daemon's environment names: of turns between users, and of an emulated device."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from processes import DaemonProcess

pytestmark = pytest.mark.long

MakeDaemon = Callable[..., DaemonProcess]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        # Others may be installed.
        (
            {"PYMPSD_TURN_POLICY": "no-such"},
            r"PYMPSD_TURN_POLICY must be one of (.*, )?fewest-turns, (.*, )?order, .*or an ",
        ),
        ({"PYMPSD_TURN_POLICY": "order:1"}, "PYMPSD_TURN_POLICY=order:1: the policy takes no argument"),
        (
            {"PYMPSD_SCHEDULING_POLICY": "deadline:no"},
            "PYMPSD_SCHEDULING_POLICY=deadline:no: the period must be a number",
        ),
    ],
)
def test_a_policy_that_cannot_be_keeps_the_daemon_from_starting(
    make_daemon: MakeDaemon, setting: dict[str, str], message: str
) -> None:
    done = make_daemon(**setting).start()
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(message, done.stderr)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("policy", ["fair", "memory", "deadline:5"])
def test_work_runs_under_every_policy(make_daemon: MakeDaemon, policy: str) -> None:
    daemon = make_daemon(PYMPSD_SCHEDULING_POLICY=policy, PYMPSD_TURN_POLICY="fewest-turns")
    assert daemon.start("-d").returncode == 0
    clients = [daemon.client(os.geteuid()).connect() for _ in range(2)]
    for client in clients:
        assert client.call("ctx 0") == "CUDA_SUCCESS"
    for client in clients:
        assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
        client.end()
