"""Print the visible devices and their backend as JSON, ``{"devices": [...]}``; or ``{"error": "..."}``, status 1.

They are those of a program without a daemon, or with ``--daemon`` those of a daemon. ``complaint`` is about
PYMPSD_STATE_DIRECTORY, and empty if that can be used. With ``--nvml`` they are printed as libnvidia-ml.so.1 reads
them (`pympsd.devices.nvml_text`), or only the reason why there are none.
"""

import os
import sys

if not __package__:  # run by path, isolated: the packages are two folders up
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from typing import Any

import msgspec
from attrs import evolve

from pympsd.devices.discovery import visible_machine
from pympsd.devices.driver_probe import ask_driver, find_driver_server
from pympsd.devices.nvml_text import nvml_text
from pympsd.devices.state_folder import add_machine_file, apply_current_modes, unusable_directory
from pympsd.vocabulary.settings import Settings


def main() -> int:
    """Print the devices that the environment describes."""
    try:
        settings = Settings.from_environment(add_machine_file(os.environ))
        is_daemons = sys.argv[1:] == ["--daemon"]
        if settings.backend == "vendor" and not is_daemons:
            # The driver's server is the daemon's: for a program without a daemon it makes no difference.
            settings = evolve(settings, backend="auto")
        server = find_driver_server(settings.vendor_server, os.environ) if is_daemons else ""
        machine = visible_machine(settings, ask_driver, lambda: server)
        devices = machine.devices
        if machine.backend == "emulated":
            devices = apply_current_modes(devices, settings.emulated_devices)
        complaint = unusable_directory(settings.emulated_devices) if machine.backend == "emulated" else ""
        answer: dict[str, Any] = {"devices": devices, "backend": machine.backend, "complaint": complaint}
    except ValueError as error:
        answer = {"error": str(error)}
    sys.stdout.buffer.write(
        _render_nvml(answer) if sys.argv[1:] == ["--nvml"] else msgspec.json.encode(answer) + b"\n"
    )
    return 1 if "error" in answer else 0


def _render_nvml(answer: dict[str, Any]) -> bytes:
    if "error" in answer:
        return f"{answer['error']}\n".encode()
    if answer["backend"] != "emulated":
        return b"the GPUs of this machine are described by the driver's libnvidia-ml.so.1, which cannot be used\n"
    return nvml_text(answer["backend"], answer["devices"]).encode()


if __name__ == "__main__":
    sys.exit(main())
