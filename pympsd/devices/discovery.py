"""The visible devices of this machine, from settings: what the daemon shows and hands to its servers.

Which backend runs them: what PYMPSD_BACKEND says; ``auto`` is the GPUs that the driver finds, and the emulated
machine where there is no driver, no device, or PYMPSD_EMULATED_DEVICES is set. A driver that is there and cannot be
used is an error: nobody who has a GPU is to run on an emulated one without being told.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from pympsd.devices.machine import describe
from pympsd.devices.visible import keep_one_generation, select
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.settings import Settings


class NoDriver(ValueError):
    """The driver of this machine is missing or cannot be used, and is wanted; the message says why."""


@frozen
class Probed:
    """What the driver says: its devices, or why there are none."""

    devices: tuple[DeviceFacts, ...] = ()
    absent: str = ""
    """There is no driver, or no device."""
    unusable: str = ""
    """There is a driver, and it does not work."""


def visible_machine(settings: Settings, probe: Callable[[], Probed]) -> tuple[Settings, tuple[DeviceFacts, ...]]:
    """Return the settings, their backend decided, and the visible devices in the daemon's order.

    ``probe`` asks the driver and is called only when its answer matters. Raise NoDriver, BadMachine, NoVisibleDevice
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
