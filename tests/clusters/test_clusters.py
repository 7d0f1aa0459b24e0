"""Workers of real clusters of Dask and Ray, if they are installed, with shares of two emulated devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pympsd.control import Daemon, Device

SECONDS = 180
MIB = 1 << 20


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon(machine="2xH200") as daemon:
        yield daemon


def _run(program: str, daemon: Daemon) -> Any:
    """Run a program of this folder as a client of a daemon; return what it prints last."""
    command = [sys.executable, str(Path(__file__).with_name(program))]
    with tempfile.TemporaryDirectory(prefix="c-") as folder:  # Ray's sockets are deep below it
        own = {"TMPDIR": folder, "RAY_TMPDIR": folder, "HOME": folder, "RAY_AUTH_MODE": "disabled"}
        environment = {**os.environ, **daemon.environment(), **own}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _check_halves(results: list[dict[str, Any]], devices: tuple[Device, ...]) -> None:
    """Check that each device has two workers, with half of it each."""
    assert Counter(entry["device"] for entry in results) == {device.uuid: 2 for device in devices}
    assert {entry["sms"] for entry in results} == {devices[0].multiprocessors // 2}
    assert {entry["refused"] for entry in results} == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert all(0 <= devices[0].memory_bytes / 2 - entry["total"] < MIB for entry in results)


@pytest.mark.long
@pytest.mark.skipif(find_spec("distributed") is None, reason="needs pympsd[dask]")
def test_workers_of_dask_have_their_shares_and_give_them_back(daemon: Daemon) -> None:
    results, again = _run("dask_program.py", daemon)
    _check_halves(results, daemon.devices())
    assert results[0]["pid"] not in {entry["pid"] for entry in again}
    _check_halves(again, daemon.devices())


@pytest.mark.skipif(find_spec("ray") is None, reason="needs pympsd[ray]")
def test_actors_and_tasks_of_ray_have_their_shares(daemon: Daemon) -> None:
    results, again, small, refused = _run("ray_program.py", daemon)
    _check_halves(results, daemon.devices())
    assert (again["device"], again["sms"]) == (results[0]["device"], results[0]["sms"])
    assert small["sms"] == daemon.devices()[0].multiprocessors // 4 - 1  # whole multiprocessors, in pairs
    assert "this task has no GPU: ask for a part of one with num_gpus=0.25" in refused
