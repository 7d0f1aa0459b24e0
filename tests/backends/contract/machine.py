"""Detection of a GPU on this machine, by the child process that the daemon uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

import pympsd_server
from pympsd.vocabulary.device_properties import DeviceProperties

SECONDS = 60.0


def first_gpu() -> DeviceProperties | None:
    """Return the properties of the first GPU, None where there is no driver or no device."""
    probe = Path(pympsd_server.__file__).parent / "backends" / "cuda" / "driver" / "probe.py"
    done = subprocess.run([sys.executable, str(probe)], capture_output=True, timeout=SECONDS, check=True)
    devices = msgspec.json.decode(done.stdout, type=dict[str, msgspec.Raw]).get("devices")
    return msgspec.json.decode(devices, type=list[DeviceProperties])[0] if devices is not None else None
