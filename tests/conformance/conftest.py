"""Daemons on the recorded machines, in the r580 dialect; whatever a test leaves is ended."""

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
    """Make daemons, each in a folder of its own that every user can reach, on a recorded machine."""
    replay_daemons: list[ReplayDaemon] = []

    def make(machine: str = "one-h200", uid: int = 0, **settings: str) -> ReplayDaemon:
        directory = Path(tempfile.mkdtemp(prefix="pympsd-replay-"))
        directory.chmod(0o755)
        # The users of the replay can read it wherever the checkout is.
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
