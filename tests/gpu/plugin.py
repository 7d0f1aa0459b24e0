"""The pytest plugin of scripts/test-gpu. It chooses tests by process, limits their time, and opens their devices.

``-p tests.gpu.plugin``, from the checkout. Environment: PYMPSD_TEST_SHARD=2/4 runs every fourth test, from the
second; PYMPSD_TEST_DEVICES=emulated,cuda has a process hold these devices for the whole run (tests/gpu/devices.py);
PYMPSD_TEST_RECORD names a file to which the result of each test is written as it ends, even by several processes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from tests.gpu.choice import Choice
from tests.gpu.devices import DEVICES
from tests.gpu.record import Record

PHASE_SECONDS = 120
"""The absolute limit of a test's setup, of its call, and of its teardown."""


class TooLong(BaseException):
    """Raised when a phase of a test exceeds its limit. It is not an Exception, so tests cannot catch it."""


@contextmanager
def _limited(item: pytest.Item, phase: str) -> Iterator[None]:
    def over(_: int, __: FrameType | None) -> None:
        raise TooLong(f"{phase} of {item.nodeid} took longer than {PHASE_SECONDS} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(PHASE_SECONDS)
    try:
        yield
    except TooLong as error:
        pytest.fail(str(error))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Limit a setup."""
    with _limited(item, "the setup"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Limit a call."""
    with _limited(item, "the call"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Limit a teardown."""
    with _limited(item, "the teardown"):
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Register the recording of results."""
    path = os.environ.get("PYMPSD_TEST_RECORD")
    if path:
        config.pluginmanager.register(Record.of(config, path), "pympsd-record")


def pytest_sessionstart() -> None:
    """Open the devices before any test checks for leaks."""
    if DEVICES.backends:
        DEVICES.start()


def pytest_sessionfinish() -> None:
    """Close the devices."""
    DEVICES.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep this process's share of the tests that the table chooses."""
    choice = Choice.here()
    number, _, count = os.environ.get("PYMPSD_TEST_SHARD", "1/1").partition("/")
    chosen = [item for item in items if not choice.reason(item.path, item.name)]
    share = set(chosen[int(number) - 1 :: int(count)])
    config.hook.pytest_deselected(items=[item for item in items if item not in share])
    items[:] = [item for item in items if item in share]
