"""Fixtures for tests of programs that use MPS: a daemon with an emulated machine, clients, faults.

docs/python.md introduces them. A project enables them with ``pytest_plugins = ["pympsd_client.pytest_plugin"]`` in
its conftest.py. This test checks that a program reports the fault of another client with the same server::

    @pytest.mark.mps(machine="2xH200")  # arguments of pympsd.control.Daemon
    def test_training_reports_a_fault(mps_client, mps_fault):
        training = mps_client("train.py", "--epochs=1")
        assert training.stdout.readline() == "ready\\n"
        assert mps_fault() == "CUDA_ERROR_LAUNCH_FAILED"
        assert training.wait(60) == 3

Every daemon has its own directories, so tests can run in parallel. A daemon ends with its test (`mps_daemon`) or with
the session (`mps_session_daemon`); its clients are killed first.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import pytest

from pympsd.control import Daemon

MARK: Final = "mps"
FAULT_SECONDS: Final = 60.0
_FAULT: Final = """
from pympsd_client import driver as cuda

def call(result, *values):
    assert result == 0, (result, cuda.last_error() if hasattr(cuda, "last_error") else "")
    return values[0] if values else None

PTX = b".version 7.0 .target sm_60 .address_size 64 .visible .entry fault() { trap; }"
call(*cuda.cuInit(0))
context = call(*cuda.cuDevicePrimaryCtxRetain(0))
call(*cuda.cuCtxSetCurrent(context))
kernel = call(*cuda.cuModuleGetFunction(call(*cuda.cuModuleLoadData(PTX)), b"fault"))
call(*cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
print(cuda.cuCtxSynchronize()[0].name)
"""


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark ``mps``.

    Otherwise ``--strict-markers`` would refuse ``@pytest.mark.mps(protocol=3)``.
    """
    config.addinivalue_line(
        "markers", f"{MARK}(**arguments): the arguments of pympsd.control.Daemon for this test's mps_daemon"
    )


@pytest.fixture
def mps_machine() -> str:
    """The emulated machine of the daemons, as PYMPSD_EMULATED_DEVICES describes it: one H200.

    Redefine the fixture in conftest.py for another machine::

        @pytest.fixture
        def mps_machine():
            return "4xA100"
    """
    return "H200"


@pytest.fixture
def mps_daemon(request: pytest.FixtureRequest, mps_machine: str) -> Iterator[Daemon]:
    """A `pympsd.control.Daemon` for one test; its arguments are those of the mark ``mps``.

    The daemon and its servers end after the test. If the daemon does not start, the test fails with `CannotStart`::

        @pytest.mark.mps(machine="2xA100", protocol=3)
        def test_two_devices(mps_daemon):
            assert len(mps_daemon.devices()) == 2
    """
    mark = request.node.get_closest_marker(MARK)
    arguments: dict[str, Any] = {"machine": mps_machine, **(mark.kwargs if mark else {})}
    with Daemon(**arguments) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def mps_session_daemon() -> Iterator[Daemon]:
    """A daemon with one emulated H200 for all tests of the session.

    Use it if a daemon for each test takes too long. Settings that a test changes stay for later tests.
    """
    with Daemon(machine="H200") as daemon:
        yield daemon


@pytest.fixture
def mps_client(mps_daemon: Daemon) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts a Python program as a client of the test's daemon, and returns its ``subprocess.Popen``.

    The function takes

    - the interpreter's arguments: a file and its arguments, ``-m MODULE`` or ``-c CODE``;
    - ``server`` and ``namespace``: names of protocol 3; if empty, the daemon chooses;
    - further keyword arguments: more environment variables of the program.

    Standard input, output and error are text pipes. Programs that still run are killed after the test::

        client = mps_client("train.py", "--epochs=1", server="a", CUDA_MPS_CLIENT_PRIORITY="1")
        assert client.wait(60) == 0
    """
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, server: str = "", namespace: str = "", **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **mps_daemon.environment(server, namespace), **variables}
        started.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
    for process in started:
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):  # closing tries to write the rest of a buffer
                pipe.close()  # type: ignore[union-attr]


@pytest.fixture
def mps_fault(mps_client: Callable[..., subprocess.Popen[str]]) -> Callable[..., str]:
    """A function that makes another client's kernel trap, which is a fatal fault of its device.

    It takes ``server``, ``namespace`` and variables as `mps_client` does, waits up to 60 s, and returns the name
    of the error that the faulting client gets, such as ``CUDA_ERROR_LAUNCH_FAILED``.
    """

    def fault(**where: str) -> str:
        printed, complaint = mps_client("-c", _FAULT, **where).communicate(timeout=FAULT_SECONDS)
        assert printed, complaint
        return printed.strip()

    return fault
