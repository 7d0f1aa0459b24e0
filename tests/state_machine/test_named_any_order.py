"""Named servers and namespaces under any order of events, drawn by hypothesis (tests/support/named_machine.py)."""

from __future__ import annotations

from hypothesis import settings
from named_machine import MultiuserNamedMachine, NamedMachine

NamedMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
MultiuserNamedMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestNamedServers = NamedMachine.TestCase
TestNamedServersOfRoot = MultiuserNamedMachine.TestCase


def test_a_users_server_without_sockets_is_tried_again_by_the_next_client() -> None:
    machine = NamedMachine()
    machine.toggle_room("uid_500", "default")
    for _ in range(2):
        machine.connect(uid=500, server="", namespace="default", partition="")
        assert not machine.waiting
    machine.toggle_room("uid_500", "default")
    machine.connect(uid=500, server="", namespace="default", partition="")
    machine.spawned(0)
    assert len(machine.waiting) == 1
    machine.teardown()
    assert list(machine.on_server) == [3]
