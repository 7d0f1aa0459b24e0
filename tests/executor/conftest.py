"""Fixtures: a real executor process, ready, on an emulated device; the process is gone when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .executor_owner import ExecutorOwner
from .raw_client import RawClient


@pytest.fixture
def start() -> Iterator[Callable[..., ExecutorOwner]]:
    """Start executors that are ended with the test."""
    owners: list[ExecutorOwner] = []

    def begin(*options: str, **popen: Any) -> ExecutorOwner:
        owner = ExecutorOwner.start(*options, **popen)
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
