"""The visible devices of this machine, from settings: what the daemon shows and hands to its servers."""

from __future__ import annotations

from pympsd.devices.machine import describe
from pympsd.devices.visible import keep_one_generation, select
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.settings import Settings


def visible_devices(settings: Settings) -> tuple[DeviceFacts, ...]:
    """Return the devices in the daemon's order; raise BadMachine, NoVisibleDevice or DuplicateDevice."""
    devices = describe(settings.emulated_devices)
    chosen = keep_one_generation(devices, select(devices, settings.visible_devices))
    return tuple(devices[index] for index in chosen)
