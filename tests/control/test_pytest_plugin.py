"""The fixtures, in a project that asks for them."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

JOB = """
import sys
from pympsd_client import driver as cuda
assert cuda.cuInit(0)[0] == 0
assert cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])[0] == 0
attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
print(cuda.cuDeviceGetAttribute(attribute, 0)[1], "SMs", flush=True)
if "--wait" in sys.argv:
    input()
    print(cuda.cuCtxSynchronize()[0].name)
"""
TESTS = """
import os
import pytest


@pytest.mark.mps(machine="2xA100", protocol=3)
def test_a_job_gets_its_share(mps_daemon, mps_client):
    mps_daemon.command("server create a")
    mps_daemon.command("namespace create half --server=a --active-thread-percentage=50")
    job = mps_client("job.py", server="a", namespace="half")
    printed, _ = job.communicate(timeout=60)
    assert printed == "54 SMs\\n"
    assert len(mps_daemon.devices()) == 2


def test_a_neighbours_fault(mps_daemon, mps_client, mps_fault):
    job = mps_client("job.py", "--wait")
    assert job.stdout.readline() == "132 SMs\\n"
    assert mps_fault() == "CUDA_ERROR_LAUNCH_FAILED"
    assert job.communicate("\\n", timeout=60)[0] == "CUDA_ERROR_LAUNCH_FAILED\\n"
    assert [device.name for device in mps_daemon.devices()] == ["NVIDIA H200"]


def test_a_variable(mps_client):
    job = mps_client("job.py", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25")
    assert job.communicate(timeout=60)[0] == "32 SMs\\n"


class TestMachine:
    @pytest.fixture
    def mps_machine(self):
        return "3xH200"

    def test_another_machine(self, mps_daemon):
        assert len(mps_daemon.devices()) == 3


@pytest.mark.parametrize("run", [1, 2])
def test_one_daemon_for_all(mps_session_daemon, run, request):
    pids = request.config.__dict__.setdefault("pids", set())
    pids.add(mps_session_daemon.pid)
    assert len(pids) == 1


def test_a_client_that_is_left_behind(mps_client):
    mps_client("job.py", "--wait").stdout.readline()


def test_clients_whose_pipes_are_closed(mps_client):
    mps_client("job.py", "--wait").stdin.close()
    with mps_client("-c", "input()") as job:
        job.stdin.write("\\n")
"""


def test_a_project_with_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["pympsd_client.pytest_plugin"]')
    pytester.makepyfile(test_sharing=TESTS)
    pytester.path.joinpath("job.py").write_text(JOB)
    done = pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider", timeout=180)
    done.assert_outcomes(passed=8)
