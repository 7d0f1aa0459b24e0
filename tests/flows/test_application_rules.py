"""The application rules of MPS, met by real clients (MPS documents, 2.3.2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from processes import ClientProcess, DaemonProcess

Start = Callable[..., ClientProcess]
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
NOT_SUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"


@pytest.fixture
def start(daemon: DaemonProcess) -> Iterator[Start]:
    """Start clients with more in their environment."""
    client_processes: list[ClientProcess] = []

    def begin(**environment: str) -> ClientProcess:
        client_processes.append(daemon.client(PATH=os.environ["PATH"], **environment))
        return client_processes[-1]

    yield begin
    for client in client_processes:
        client.end()


@pytest.mark.long
def test_context_creation_fails_through_an_api_older_than_4(start: Start) -> None:
    for version in ("3010", "3020", "3999"):
        client = start(CUDA_FORCE_API_VERSION=version)
        assert client.call("init") == "CUDA_SUCCESS", "it is the context that fails"
        for way in ("ctx 0", "newctx 0"):
            assert client.call(way) == NOT_SUPPORTED
            assert f"CUDA_FORCE_API_VERSION={version}" in client.call("error")
            assert "CUDA 4.0" in client.call("error")


@pytest.mark.long
def test_context_creation_works_through_a_newer_api(start: Start) -> None:
    for version in ("4000", "13000", "", "newest"):
        client = start(CUDA_FORCE_API_VERSION=version).connect()
        assert client.call("newctx 0") == "CUDA_SUCCESS", version
        assert client.call("add") == RIGHT


def test_a_module_with_dynamic_parallelism_is_refused_and_the_client_continues(start: Start) -> None:
    client = start().connect()
    assert client.call("nested") == NOT_SUPPORTED
    assert "cudaLaunchDevice is a function of the device runtime (dynamic parallelism)" in client.call("error")
    assert client.call("add") == RIGHT


def test_functions_that_clients_do_not_have_are_refused_by_name(start: Start) -> None:
    client = start().connect()
    name = "cuFlushGPUDirectRDMAWrites"
    assert client.call(f"refused {name}") == NOT_SUPPORTED
    assert client.call("error").startswith(f"{name}: ")
    assert client.call("add") == RIGHT
