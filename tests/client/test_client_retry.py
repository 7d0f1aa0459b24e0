"""The way in: whoever is turned away comes again, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define

from pympsd.vocabulary import files
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._connect import retry
from pympsd_client._connect.retry import GRANTS, LINE_PATIENCE, PATIENCE, arrive
from pympsd_client._connect.session import Unanswered, Unwelcomed


@define
class World:
    """A daemon that ends each conversation in a way of its own, and the time that goes by."""

    now: float = 1000.0
    knocks: int = 0
    lasting: float = 0.0
    ends: type[Unanswered] = Unanswered

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def knock(self, *_: object) -> str:
        self.knocks += 1
        assert self.knocks < 1000, "it knocks for ever"
        self.now += self.lasting
        raise self.ends(Result.ERROR_MPS_CONNECTION_FAILED, "the MPS server: it has ended")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(retry, "time", world)
    monkeypatch.setattr(retry, "reach", lambda _: object())
    monkeypatch.setattr(retry, "knock", world.knock)
    return world


def refusal() -> CudaError:
    with pytest.raises(CudaError) as caught:
        arrive({})
    return caught.value


@pytest.mark.parametrize("lasting", [0.01, 0.2, 2.5])
def test_servers_that_end_before_their_welcome_are_tried_a_few_times(world: World, lasting: float) -> None:
    world.ends, world.lasting = Unwelcomed, lasting
    assert refusal().code == Result.ERROR_MPS_CONNECTION_FAILED
    assert world.knocks == GRANTS > 4  # the daemon's own bound is 4, and it says more


def test_a_daemon_that_turns_everybody_away_is_asked_for_a_while(world: World) -> None:
    world.lasting = 0.01
    assert "it has ended" in str(refusal())
    assert PATIENCE < world.now - 1000 < 2 * PATIENCE


def test_whoever_waited_in_a_line_comes_again_each_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def knock(*ignored: object) -> str:
        return "let go" if world.knocks == 50 else world.knock(*ignored)

    world.lasting = 3.0
    monkeypatch.setattr(retry, "knock", knock)
    assert arrive({}) == "let go"


@pytest.mark.parametrize(("knocked", "patience"), [(True, LINE_PATIENCE), (False, PATIENCE)])
def test_the_next_daemon_is_waited_for_longer_by_whoever_had_knocked(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, knocked: bool, patience: float
) -> None:
    (tmp_path / files.STATE).touch()  # a daemon was killed here
    doors = iter([object()] if knocked else [])
    monkeypatch.setattr(retry, "reach", lambda _: next(doors, "no MPS control daemon"))
    assert arrive({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) == "no MPS control daemon"
    assert world.knocks == knocked
    assert patience <= world.now - 1000 < patience + 0.2
