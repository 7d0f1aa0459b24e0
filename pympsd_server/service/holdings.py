"""The devices a server takes at its start and holds to its end: checked, in the compute modes they are in now."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from attrs import define, field

from pympsd.devices.machine import BadMachine
from pympsd.devices.registrations import InUse, Registration, register
from pympsd.devices.state_folder import StateFolder, state_folder_of, with_current_modes
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.wire.link_messages import ServerSetup
from pympsd_server.mind import start_checks


class CannotStart(Exception):
    """The server cannot start; ``reasons`` are sentences for its log."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


@define
class Holdings:
    """What a server holds. A machine in short form, or a folder that cannot be used, keeps no record of it."""

    devices: tuple[DeviceFacts, ...]
    _registrations: dict[int, Registration] = field(factory=dict, init=False)

    @property
    def recorded(self) -> bool:
        """Whether anybody can see what clients hold."""
        return bool(self._registrations)

    def enter(self, device: int, registration: Registration) -> None:
        """Hold a device."""
        self._registrations[device] = registration

    def report(self, device: int, clients: Iterable[tuple[int, int]]) -> None:
        """Record what clients hold on a device: (PID, bytes) of each."""
        if device in self._registrations:
            self._registrations[device].report(clients)

    def release(self) -> None:
        """Let all devices go."""
        while self._registrations:
            self._registrations.popitem()[1].end()


def take_devices(setup: ServerSetup) -> Holdings:
    """Check and take the devices of a setup; raise CannotStart, holding nothing."""
    try:
        holdings = Holdings(with_current_modes(setup.devices, setup.machine))
    except BadMachine as error:
        raise CannotStart(str(error)) from None
    reasons = start_checks.refusals(os.uname().sysname, struct.calcsize("P") * 8, holdings.devices)
    if reasons:
        raise CannotStart(*reasons)
    folder = state_folder_of(setup.machine)
    try:
        for ordinal, device in enumerate(holdings.devices):
            registration = _register(folder, ordinal, device)
            if registration is not None:
                holdings.enter(ordinal, registration)
    except BaseException:
        holdings.release()
        raise
    return holdings


def _register(folder: StateFolder | None, ordinal: int, device: DeviceFacts) -> Registration | None:
    alone = start_checks.wants_exclusively(device)
    if folder is None:
        if alone:
            reason = "only a machine that a file describes (PYMPSD_EMULATED_DEVICES) can keep it."
            raise CannotStart(start_checks.cannot_be_held(ordinal, device, reason))
        return None
    try:
        folder.make()
        return register(folder, device.uuid, alone)
    except InUse as error:
        raise CannotStart(start_checks.in_use(ordinal, device, error.pid)) from None
    except OSError as error:
        if alone:
            reason = f"{folder.path}: {error.strerror}. Make the folder for everybody (mkdir -m 1777)."
            raise CannotStart(start_checks.cannot_be_held(ordinal, device, reason)) from None
        return None
