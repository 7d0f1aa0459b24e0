"""Daemons and clients for the flows; whatever a test leaves is ended, and what cannot be fails it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from fake_mps.install import install
from prepared import CLIENT, DAEMON, execute, prepare
from processes import ClientProcess, DaemonProcess, adopt_orphans, clients_of


@pytest.fixture(scope="session", autouse=True)
def _programs_are_prepared() -> Iterator[None]:
    with prepare(CLIENT), prepare(DAEMON):
        yield


@pytest.fixture(scope="module", autouse=True)
def _module_is_executed(request: pytest.FixtureRequest, _programs_are_prepared: None) -> Iterator[None]:
    with execute() if getattr(request.module, "EXECUTED", False) else nullcontext():
        yield


@pytest.fixture(scope="module", autouse=True)
def _orphans_are_adopted() -> Iterator[None]:
    adopt_orphans()
    yield
    adopt_orphans(False)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder with room for pipe and log, which every user can reach (pytest's own is 0700)."""
    path = Path(tempfile.mkdtemp(prefix="pympsd-test-"))
    path.chmod(0o755)
    for name in ("pipe", "log"):
        (path / name).mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make_daemon(directory: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Make daemons that are ended after the test; each is started by the test."""
    daemons: list[DaemonProcess] = []

    def make(**settings: str) -> DaemonProcess:
        daemon = DaemonProcess(directory, settings)
        daemons.append(daemon)
        return daemon

    yield make
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon that runs."""
    running = make_daemon()
    done = running.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return running


@pytest.fixture
def make_client(daemon: DaemonProcess) -> Iterator[Callable[..., ClientProcess]]:
    """Start clients of the running daemon; they are killed after the test."""
    with clients_of(daemon) as make:
        yield make


@pytest.fixture
def launcher(directory: Path) -> Path:
    """The fake server of the driver, which behaves well."""
    return install(directory)


@pytest.fixture
def start_driver_daemon(make_daemon: Callable[..., DaemonProcess], launcher: Path) -> Callable[..., DaemonProcess]:
    """Start daemons that manage the fake server, with more settings."""

    def start(**settings: str) -> DaemonProcess:
        running = make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher), **settings)
        done = running.start()
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return running

    return start
