"""Fixtures: a real executor process, ready, on an emulated device; the process is gone when the test ends."""

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
    if "start" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in WITH_NATIVE_WORKERS:
        metafunc.parametrize("workers", WORKERS, indirect=True)


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> str:
    """Which workers the executors have: python, native, or empty: what they choose."""
    return able(str(getattr(request, "param", "")))


@pytest.fixture
def start(workers: str) -> Iterator[Callable[..., ExecutorOwner]]:
    """Start executors that are ended with the test."""
    owners: list[ExecutorOwner] = []

    def begin(*options: str, **popen: Any) -> ExecutorOwner:
        if workers:
            popen["env"] = {**popen.get("env", os.environ), "PYMPSD_WORKER": workers}
        owner = ExecutorOwner.start(*options, **popen)
        owner.by_ring = workers == "native"
        owners.append(owner)
        return owner

    yield begin
    for owner in owners:
        owner.close()


@pytest.fixture
def executor(start: Callable[..., ExecutorOwner]) -> ExecutorOwner:
    """An executor that is ready."""
    return start().ready()


@pytest.fixture
def client(executor: ExecutorOwner) -> RawClient:
    """A client of it with one context."""
    return executor.attach()
