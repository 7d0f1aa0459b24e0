"""The refusals that are kept for users: a few of each, and each user's for itself."""

from __future__ import annotations

import json

from attrs import evolve

from pympsd.commands.grammar.line import parse
from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.operator_line import decide_line
from pympsd.devices.machine import describe
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.refusals import MAX_OF_USER, MAX_USERS, Refusals, RefusedClient
from pympsd.vocabulary.identities import NO_USER
from pympsd.vocabulary.results import Result

ONE = RefusedClient(77, 1001, 1.0, "cuInit", Result.ERROR_MPS_CONNECTION_FAILED, "the daemon is quitting", "abc")


def get_printed(daemon: Daemon, line: str, uid: int) -> str:
    answer = decide_line(daemon, Caller(1, uid), parse(line.encode(), daemon.options.protocol)).answer
    assert answer is not None
    return answer.printed


def test_a_users_latest_refusals_are_kept_independent_of_other_users() -> None:
    refusals = Refusals()
    refusals.add(ONE)
    for number in range(MAX_OF_USER + 3):
        refusals.add(evolve(ONE, uid=1002, pid=number, at=2.0 + number))
    assert next(iter(refusals)) == ONE
    assert [refusal.pid for refusal in refusals][1:] == list(range(3, MAX_OF_USER + 3))


def test_the_users_with_the_latest_refusals_are_kept_up_to_the_maximum() -> None:
    refusals = Refusals()
    for uid in (*range(MAX_USERS), 0, MAX_USERS):
        refusals.add(evolve(ONE, uid=uid))
    assert {refusal.uid for refusal in refusals} == {0, *range(2, MAX_USERS + 1)}


def test_users_see_their_own_and_root_sees_all() -> None:
    for protocol in (2, 3):
        daemon = Daemon(DaemonOptions(0, protocol=protocol), describe("H200"))
        daemon.refusals.add(ONE)
        daemon.refusals.add(evolve(ONE, pid=88, uid=1002, at=2.0, run=""))
        own = "77 1001 cuInit: CUDA_ERROR_MPS_CONNECTION_FAILED: the daemon is quitting\n"
        assert get_printed(daemon, "get_refusal_list", 1001) == get_printed(daemon, "get_refusal_list abc", 0) == own
        assert get_printed(daemon, "get_refusal_list", 0).count("\n") == 2
        assert get_printed(daemon, "get_refusal_list abc", 1002) == get_printed(daemon, "get_refusal_list", 5) == ""
        assert get_printed(daemon, "get_refusal_list", NO_USER) == "", "in a container: who knows the id sees the run"
        assert get_printed(daemon, "get_refusal_list abc", NO_USER) == own
        assert json.loads(get_printed(daemon, "get_refusal_list --json", 1001)) == [
            {
                "pid": 77,
                "uid": 1001,
                "time": "1970-01-01T00:00:01Z",
                "call": "cuInit",
                "result": "CUDA_ERROR_MPS_CONNECTION_FAILED",
                "code": 805,
                "reason": "the daemon is quitting",
            }
        ]
