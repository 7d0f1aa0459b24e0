"""The visible devices of this machine, from settings, for the daemon and its servers.

PYMPSD_BACKEND selects the backend; ``auto`` means the GPUs that the driver finds, and the emulated machine if there
is no driver, no device, or PYMPSD_EMULATED_DEVICES is set. An installed driver that does not work is an error: on a
machine with a GPU, work must not run on an emulated one unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from pympsd.devices.machine import describe
from pympsd.devices.visible import keep_one_generation, select
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.settings import Settings


class NoDriver(ValueError):
    """The driver is required, and missing or not working; the message says why."""


@frozen
class Probed:
    """The driver's answer: its devices, or why there are none."""

    devices: tuple[DeviceFacts, ...] = ()
    absent: str = ""
    """Why there is no driver, or no device."""
    unusable: str = ""
    """Why the installed driver does not work."""


def visible_machine(settings: Settings, probe: Callable[[], Probed]) -> tuple[Settings, tuple[DeviceFacts, ...]]:
    """Return the settings with the backend resolved, and the visible devices in the daemon's order.

    ``probe`` asks the driver and is called only if its answer matters. Raise NoDriver, BadMachine, NoVisibleDevice
    or DuplicateDevice.
    """
    backend, devices = _machine(settings, probe)
    chosen = keep_one_generation(devices, select(devices, settings.visible_devices))
    return evolve(settings, backend=backend), tuple(devices[index] for index in chosen)


def _machine(settings: Settings, probe: Callable[[], Probed]) -> tuple[str, tuple[DeviceFacts, ...]]:
    if settings.backend != "emulated":
        probed = probe()
        if probed.devices:
            return "cuda", probed.devices
        if probed.unusable:
            raise NoDriver(
                f"the GPU driver of this machine cannot be used: {probed.unusable}; mend it, or set "
                "PYMPSD_BACKEND=emulated to run on an emulated device"
            )
        if settings.backend == "cuda":
            raise NoDriver(
                f"PYMPSD_BACKEND=cuda: {probed.absent}; set PYMPSD_BACKEND=emulated to run on an emulated device"
            )
    return "emulated", describe(settings.emulated_devices)
