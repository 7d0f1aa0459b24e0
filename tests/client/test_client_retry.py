"""Connecting to MPS again after a daemon or server died, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define

from pympsd.vocabulary import files
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._connect import retry
from pympsd_client._connect.handshake import BrokenOff, NotWelcomed
from pympsd_client._connect.retry import GRANTS_LIMIT, QUEUE_RETRY_S, RETRY_S, connect_with_retry


@define
class World:
    """A daemon that ends each conversation with ``ends`` after ``lasting`` seconds, and the clock."""

    now: float = 1000.0
    attempts: int = 0
    lasting: float = 0.0
    ends: type[BrokenOff] = BrokenOff

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def request_session(self, *_: object) -> str:
        self.attempts += 1
        assert self.attempts < 1000, "it tries for ever"
        self.now += self.lasting
        raise self.ends(Result.ERROR_MPS_CONNECTION_FAILED, "the MPS server: it has ended")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(retry, "time", world)
    monkeypatch.setattr(retry, "connect_to_daemon", lambda _: object())
    monkeypatch.setattr(retry, "request_session", world.request_session)
    return world


def refusal() -> CudaError:
    with pytest.raises(CudaError) as caught:
        connect_with_retry({})
    return caught.value


@pytest.mark.parametrize("lasting", [0.01, 0.2, 2.5])
def test_servers_that_end_before_their_welcome_are_tried_a_few_times(world: World, lasting: float) -> None:
    world.ends, world.lasting = NotWelcomed, lasting
    assert refusal().code == Result.ERROR_MPS_CONNECTION_FAILED
    assert world.attempts == GRANTS_LIMIT > 4  # the daemon's own bound is 4, and it says more


def test_a_daemon_that_ends_every_conversation_is_tried_for_a_while(world: World) -> None:
    world.lasting = 0.01
    assert "it has ended" in str(refusal())
    assert RETRY_S < world.now - 1000 < 2 * RETRY_S


def test_a_client_that_was_queued_tries_again_each_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def request_session(*ignored: object) -> str:
        return "released" if world.attempts == 50 else world.request_session(*ignored)

    world.lasting = 3.0
    monkeypatch.setattr(retry, "request_session", request_session)
    assert connect_with_retry({}) == "released"


@pytest.mark.parametrize(("connected", "patience"), [(True, QUEUE_RETRY_S), (False, RETRY_S)])
def test_a_client_that_was_connected_waits_longer_for_the_next_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connected: bool, patience: float
) -> None:
    (tmp_path / files.STATE).touch()  # a daemon was killed here
    connections = iter([object()] if connected else [])
    monkeypatch.setattr(retry, "connect_to_daemon", lambda _: next(connections, "no MPS control daemon"))
    assert connect_with_retry({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) == "no MPS control daemon"
    assert world.attempts == connected
    assert patience <= world.now - 1000 < patience + 0.2
