"""The daemon's state on the machine that the grammar was recorded on."""

from pathlib import Path

import pytest

from pympsd.devices.machine import parse_toml
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions

RECORDED = (Path(__file__).parent.parent / "conformance" / "one-h200.toml").read_text()


@pytest.fixture
def recorded_daemon() -> Daemon:
    """A fresh root daemon with one H200 and no server."""
    return Daemon(DaemonOptions(0, driver=580), parse_toml(RECORDED))
