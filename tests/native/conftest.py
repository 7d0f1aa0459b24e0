"""Fixtures: the native worker with a fake driver. If there is a compiler, there must be a native worker."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pympsd_server.native.library import NoLibrary, library
from tests.native.fake_driver import FakeDriver, build
from tests.native.rig import Rig


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    """Return the fake driver, compiled once."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler, so there is no native worker to test")
    try:
        library()
    except NoLibrary as error:
        pytest.fail(f"there is a C compiler, but no native worker: {error}")
    return FakeDriver(build(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def driver(fake_driver: FakeDriver) -> Iterator[FakeDriver]:
    """Yield the fake driver, reset."""
    fake_driver.reset()
    yield fake_driver
    fake_driver.reset()


@pytest.fixture
def make_rig(driver: FakeDriver) -> Iterator[Callable[..., Rig]]:
    """Yield a function that makes workers; they are closed after the test."""
    rigs: list[Rig] = []

    def make(**settings: Any) -> Rig:
        rigs.append(Rig(driver, **settings))
        return rigs[-1]

    yield make
    driver.release_all()
    for closable in rigs:
        closable.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """Return a worker without a thread."""
    return make_rig()
