"""A slice of what scripts/fuzz does at length, the same for the same seed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_mps.install import install
from fake_mps.their_daemon import their_daemon
from fuzz_daemon import fuzz_daemon
from fuzz_driver import fuzz_driver_daemon, fuzz_tool
from fuzz_session import fuzz_session
from fuzz_stream import fuzz_stream
from processes import DaemonProcess, daemon_of_session

SEED = 20130805


@pytest.fixture
def daemon() -> Iterator[DaemonProcess]:
    """A running daemon."""
    with daemon_of_session(adopts=True) as running:
        yield running


def test_sessions_with_a_running_daemon(daemon: DaemonProcess) -> None:
    outcome = fuzz_daemon(daemon, SEED, 150)
    assert outcome.descriptors_after <= outcome.descriptors_before
    assert outcome.kib_after < 100 * 1024
    assert daemon.run([], "ps").returncode == 0


@pytest.mark.long
def test_a_clients_sessions_with_a_running_server(daemon: DaemonProcess) -> None:
    good = daemon.client().connect()
    try:
        outcome = fuzz_session(daemon, good, SEED, 100)
    finally:
        good.end()
    assert outcome.descriptors_after <= outcome.descriptors_before
    assert outcome.answered > 20
    assert outcome.checks > 10


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="the visitors are root")
def test_sessions_with_a_daemon_that_leads_the_drivers_server(daemon: DaemonProcess) -> None:
    daemon.run_command("quit")
    daemon.await_end()
    server = str(install(daemon.directory))
    leading = DaemonProcess(daemon.directory, {"PYMPSD_BACKEND": "vendor", "PYMPSD_VENDOR_SERVER": server})
    assert leading.start().returncode == 0
    try:
        outcome = fuzz_driver_daemon(leading, SEED, 300)
    finally:
        leading.stop()
    assert outcome.commands > 50
    assert outcome.unreadable > 10
    assert outcome.kib_after < 100 * 1024


def test_our_tool_with_a_daemon_that_lies(tmp_path: Path) -> None:
    with their_daemon(tmp_path, lambda line: []) as theirs:
        statuses = fuzz_tool(theirs, tmp_path, SEED, 300)
    assert set(statuses) == {0, 1}


@pytest.mark.long(but=["native"])
@pytest.mark.parametrize("workers", ["python", "native"])
def test_records_to_a_running_executor(monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    if workers == "native" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler, so there are no native workers")
    monkeypatch.setenv("PYMPSD_WORKER", workers)
    monkeypatch.setenv("PYMPSD_TIER", "numpy")  # LLVM has 80 MiB
    outcome = fuzz_stream(SEED, 20_000)
    assert outcome.faulted > 0, "some attacks must get as far as a kernel of their own"
    assert outcome.results[0] > outcome.sessions, "and many records be carried out"
    assert outcome.checks > outcome.sessions
    assert outcome.kib_after < outcome.kib_before + 32 * 1024
