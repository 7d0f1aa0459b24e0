"""The daemon's mind on the machine that the grammar was recorded on."""

import pytest

from pympsd.devices.machine import from_toml
from pympsd.mind.daemon_state import Daemon

RECORDED = """
[[device]]
profile = "H200"
uuid = "GPU-53147097-3520-1ce0-a94e-3d46a05aacf3"
pci = "0000:00.06.00"
"""


@pytest.fixture
def recorded_daemon() -> Daemon:
    """A fresh root daemon with one H200 and no server."""
    return Daemon(0, from_toml(RECORDED))
