"""A daemon that the test controls step by step, a well-behaved fake server, and fake clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_mps.install import install
from fake_mps.minimal_daemon import MinimalDaemon, minimal_daemon
from fake_mps.programs import DriverClient


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[MinimalDaemon]:
    """A daemon without a server."""
    with minimal_daemon(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A launcher of well-behaved servers."""
    return install(tmp_path)


@pytest.fixture
def start(daemon: MinimalDaemon) -> Iterator[Callable[..., DriverClient]]:
    """Start clients; each executes "init" and creates these contexts."""
    with ExitStack() as started:

        def make(*contexts: int, **more: object) -> DriverClient:
            client = started.enter_context(DriverClient.start(daemon.directory, **more))  # type: ignore[arg-type]
            assert daemon.serve(client, "init") == "init CUDA_SUCCESS"
            for device in contexts:
                assert daemon.serve(client, f"ctx {device}") == "ctx CUDA_SUCCESS"
            return client

        yield make
