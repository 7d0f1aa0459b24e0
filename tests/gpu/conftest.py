"""The tests that only scripts/test-gpu collects; daemons are those of the flows, on tested_machine's machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from processes import ClientProcess, DaemonProcess
from tested_machine import VARIABLE

from tests.flows.conftest import _orphans_are_adopted, daemon, directory, make_client, make_daemon

__all__ = ["_orphans_are_adopted", "daemon", "directory", "make_client", "make_daemon", "start", "start_of"]

collect_ignore_glob = [] if VARIABLE in os.environ else ["test_*.py"]


@pytest.fixture
def start_of(make_daemon: Callable[..., DaemonProcess]) -> Iterator[Callable[..., ClientProcess]]:
    """Start clients with a context and all their code loaded, because loading on a GPU waits for running kernels."""
    client_processes: list[ClientProcess] = []

    def client(of: DaemonProcess, uid: int = 0, device: int = 0, **more: str) -> ClientProcess:
        environment = {**of.environment, "PYMPSD_REQUIRE_MPS": "1", **more}
        client_processes.append(ClientProcess.start(environment, uid))
        assert client_processes[-1].connect(device).call("warm") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
        return client_processes[-1]

    yield client
    for client_process in client_processes:
        client_process.end(signal.SIGKILL)


@pytest.fixture
def start(daemon: DaemonProcess, start_of: Callable[..., ClientProcess]) -> Callable[..., ClientProcess]:
    """Start clients of the running daemon."""
    return partial(start_of, daemon)
