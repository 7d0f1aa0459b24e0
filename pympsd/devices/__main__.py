"""Print the visible devices and their backend as JSON, ``{"devices": [...]}``; or ``{"error": "..."}``, status 1.

The devices are those that a program sees without a daemon, or with ``--daemon`` those that a daemon has. The field
``complaint`` is a warning about PYMPSD_STATE_DIRECTORY; empty if the directory can be used. With ``--nvml`` the
devices are printed in the format that libnvidia-ml.so.1 reads (`pympsd.devices.nvml_text`); if there are none, only
the reason is printed.
"""

import os
import sys

if not __package__:  # This file is run by path and isolated, so the packages are two folders above it.
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
            # Only a daemon runs the driver's server, so a program without a daemon need not look for it.
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
