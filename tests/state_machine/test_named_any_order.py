"""Named servers and namespaces under any order of events, drawn by hypothesis (tests/support/named_machine.py)."""

from __future__ import annotations

from hypothesis import settings
from named_machine import MultiuserNamedMachine, NamedMachine

EXAMPLES = settings.default.max_examples  # fewer if the long tests are left out

NamedMachine.TestCase.settings = settings(max_examples=150 * EXAMPLES // 100, stateful_step_count=30)
MultiuserNamedMachine.TestCase.settings = settings(max_examples=40 * EXAMPLES // 100, stateful_step_count=30)
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


def test_a_server_that_loses_its_sockets_during_its_start_remains() -> None:
    machine = NamedMachine()
    machine.create("a", 0)
    machine.spawned(0)
    machine.toggle_room("a", "")
    machine.remove(0, whole=True)
    assert machine.daemon.named_servers["a"].unreachable
    machine.processes_are_those_of_servers()
    machine.teardown()


def test_the_chunks_of_a_server_that_ends_are_free_when_it_has_no_clients() -> None:
    machine = NamedMachine()
    machine.start_busy(server="a", clients=0)
    machine.create_partition(name="p", server="a", device=1, chunks=1, more=False)
    machine.apply(servers={"b": {}}, prune=True, force=False)
    machine.create_partition(name="p", server="b", device=1, chunks=1, more=False)
    assert {name for name, named_server in machine.daemon.named_servers.items() if named_server.partitions} == {
        "a",
        "b",
    }
    machine.no_chunk_has_two_partitions()
    machine.teardown()


def test_a_server_without_a_process_whose_sockets_cannot_be_made_again_is_not_started() -> None:
    machine = NamedMachine()
    machine.apply(servers={"uid_500": {}}, prune=False, force=False)
    machine.not_spawned(0)
    machine.toggle_room("uid_500", "")
    machine.remove(0, whole=True)
    machine.connect(uid=500, server="", namespace="default", partition="")
    assert not machine.waiting
    assert not machine.spawning
    machine.toggle_room("uid_500", "")
    machine.connect(uid=500, server="", namespace="default", partition="")
    assert list(machine.spawning.values()) == ["uid_500"]
    machine.teardown()
