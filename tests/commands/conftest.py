"""The daemon's state on the machine that the grammar was recorded on."""

from pathlib import Path

import pytest

from pympsd.devices.machine import from_toml
from pympsd.state_machine.daemon_state import Daemon

RECORDED = (Path(__file__).parent.parent / "conformance" / "one-h200.toml").read_text()


@pytest.fixture
def recorded_daemon() -> Daemon:
    """A fresh root daemon with one H200 and no server."""
    return Daemon(0, from_toml(RECORDED))
