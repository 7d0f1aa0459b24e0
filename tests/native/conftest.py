"""Fixtures: the native worker over a stand-in for the driver. Where there is a compiler, the worker must be there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pympsd_server.native.library import NoLibrary, library
from tests.native.fake_driver import StandIn, build
from tests.native.rig import Rig


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """The driver, compiled once."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler, so there is no native worker to test")
    try:
        library()
    except NoLibrary as error:
        pytest.fail(f"there is a C compiler, but no native worker: {error}")
    return StandIn(build(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def driver(stand_in: StandIn) -> Iterator[StandIn]:
    """The driver, as new."""
    stand_in.reset()
    yield stand_in
    stand_in.reset()


@pytest.fixture
def make_rig(driver: StandIn) -> Iterator[Callable[..., Rig]]:
    """Make workers that are ended with the test."""
    made: list[Rig] = []

    def make(**settings: Any) -> Rig:
        made.append(Rig(driver, **settings))
        return made[-1]

    yield make
    driver.let_go()
    for each in made:
        each.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """A worker without a thread."""
    return make_rig()
