"""A client that is within its soft limit finds the device full: its owner is asked to make room, a few times."""

from __future__ import annotations

import os

import pytest

from pympsd.vocabulary.limits import MAX_MEMORY, MemoryGroup
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Attach, Attached, DropClient, ExecutorDone, MemoryShort, RoomMade
from pympsd_server.executor.memory.device_memory import MAX_TRIES
from tests.executor.executor_owner import GENERATION, ExecutorOwner
from tests.executor.raw_client import RawClient
from tests.support.processes import wait_until

COUNT = 1 << 30
OWNER = 2


@pytest.fixture
def guaranteed(executor: ExecutorOwner) -> RawClient:
    """A client that is guaranteed more than the device has left: client 1 has the rest."""
    guest = executor.attach()
    group = MemoryGroup("cgroup /owner", MAX_MEMORY, 8 * COUNT)
    answer, fds = executor.ask(Attach, **executor.request(OWNER, OWNER, True, groups=(group,)))
    assert isinstance(answer, Attached), answer
    owner = RawClient.from_fds(fds, OWNER, GENERATION, answer)
    executor._clients.append(owner)
    free, _ = guest.memory_info()
    guest.allocate(free - COUNT // 2)
    return owner


def shortage(executor: ExecutorOwner) -> MemoryShort:
    """Return the executor's next message, a shortage of the client."""
    message, _ = executor.receive()
    assert isinstance(message, MemoryShort), message
    assert (message.client, message.short) == (OWNER, COUNT - COUNT // 2)
    return message


def test_an_allocation_is_tried_again_when_memory_was_freed(executor: ExecutorOwner, guaranteed: RawClient) -> None:
    sequence = guaranteed.send("ALLOCATE", COUNT)
    report = shortage(executor)
    executor.send(DropClient(request=50, client=1))
    assert executor.receive()[0] == ExecutorDone(50)
    executor.send(RoomMade(report.request, freed=True))
    assert guaranteed.answer(sequence).result == Result.SUCCESS


def test_an_allocation_fails_when_nothing_can_be_freed(executor: ExecutorOwner, guaranteed: RawClient) -> None:
    sequence = guaranteed.send("ALLOCATE", COUNT)
    executor.send(RoomMade(shortage(executor).request, freed=False))
    answer = guaranteed.answer(sequence)
    assert answer.result == Result.ERROR_OUT_OF_MEMORY
    assert f"takes {COUNT} bytes; the device has {COUNT // 2} of" in answer.reason


def test_others_that_take_the_freed_memory_are_not_waited_for_without_end(
    executor: ExecutorOwner, guaranteed: RawClient
) -> None:
    sequence = guaranteed.send("ALLOCATE", COUNT)
    for _ in range(MAX_TRIES):
        executor.send(RoomMade(shortage(executor).request, freed=True))
    assert guaranteed.answer(sequence).result == Result.ERROR_OUT_OF_MEMORY


def test_a_client_that_is_dropped_meanwhile_leaves_no_thread(executor: ExecutorOwner, guaranteed: RawClient) -> None:
    threads = len(os.listdir(f"/proc/{executor.process.pid}/task"))
    guaranteed.send("ALLOCATE", COUNT)
    shortage(executor)
    executor.send(DropClient(request=50, client=OWNER))
    assert executor.receive()[0] == ExecutorDone(50)
    wait_until(lambda: len(os.listdir(f"/proc/{executor.process.pid}/task")) < threads, "the end of the worker")
