"""Fixtures: a real executor process, ready, on an emulated device.

The tests of a module share an executor, which has no clients when a test begins. `start` starts executors of a test's
own, for tests about processes, numbers of descriptors and the trace since the start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import RawClient
from tests.executor.workers import WORKERS, able

WITH_NATIVE_WORKERS: Final = frozenset(
    {"test_errors", "test_host_functions", "test_many_clients", "test_stream_records"}
)
"""The files whose tests run a second time, with native workers to which records go by the ring."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Both kinds of workers pass the most telling tests."""
    if "workers" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in WITH_NATIVE_WORKERS:
        metafunc.parametrize("workers", WORKERS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest) -> str:
    """Which workers the executors have: python, native, or empty: what they choose."""
    return able(str(getattr(request, "param", "")))


def _start(workers: str, *options: str, **popen: Any) -> ExecutorOwner:
    if workers:
        popen["env"] = {**popen.get("env", os.environ), "PYMPSD_WORKER": workers}
    owner = ExecutorOwner.start(*options, **popen)
    owner.by_ring = workers == "native"
    return owner


@pytest.fixture
def start(workers: str) -> Iterator[Callable[..., ExecutorOwner]]:
    """Start executors that are ended with the test."""
    owners: list[ExecutorOwner] = []

    def begin(*options: str, **popen: Any) -> ExecutorOwner:
        owners.append(_start(workers, *options, **popen))
        return owners[-1]

    yield begin
    for owner in owners:
        owner.close()


@pytest.fixture(scope="module")
def module_executor(workers: str) -> Iterator[ExecutorOwner]:
    """The executor of the module."""
    owner = _start(workers).ready()
    yield owner
    owner.close()


@pytest.fixture
def executor(module_executor: ExecutorOwner) -> Iterator[ExecutorOwner]:
    """An executor that is ready, and has no clients."""
    yield module_executor
    module_executor.drop_all()


@pytest.fixture
def client(executor: ExecutorOwner) -> RawClient:
    """A client of it with one context."""
    return executor.attach()
