"""A fixture that makes daemons on the recorded machines, in the r580 dialect, and stops them after the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from prepared import DAEMON, prepare
from processes import adopt_orphans

from tests.conformance import this_machine
from tests.conformance.replay import ReplayDaemon

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _programs_are_prepared() -> Iterator[None]:
    with nullcontext() if this_machine.LEADS else prepare(this_machine.CLIENT), prepare(DAEMON):
        yield


@pytest.fixture(scope="module", autouse=True)
def _orphans_are_adopted() -> Iterator[None]:
    adopt_orphans()
    yield
    adopt_orphans(False)


@pytest.fixture
def make_daemon() -> Iterator[Callable[..., ReplayDaemon]]:
    """Return a function that makes a daemon on a recorded machine, in its own folder, which every user can reach."""
    replay_daemons: list[ReplayDaemon] = []

    def make(machine: str = "one-h200", uid: int = 0, **settings: str) -> ReplayDaemon:
        directory = Path(tempfile.mkdtemp(prefix="pympsd-replay-"))
        directory.chmod(0o755)
        # A copy, because the replay's users may not be able to read the checkout.
        shutil.copy(HERE / f"{machine}.toml", directory / "machine.toml")
        (directory / "machine.toml").chmod(0o644)
        for name in ("pipe", "log"):
            (directory / name).mkdir()
            shutil.chown(directory / name, uid, uid)
        environment = {**this_machine.settings(machine, directory / "machine.toml"), "PYMPSD_LOG_DIALECT": "r580"}
        environment |= {name: value.replace("{directory}", str(directory)) for name, value in settings.items()}
        replay_daemons.append(ReplayDaemon(directory, environment, uid))
        return replay_daemons[-1]

    yield make
    for daemon in replay_daemons:
        daemon.stop()
        shutil.rmtree(daemon.directory)
