"""The devices a server takes at its start and holds to its end: checked, in the compute modes they are in now.

A shared device whose registration somebody holds up (any user can keep the folder locked) is served nevertheless, and
registered as soon as that is possible: until then a server that wants it for itself would not see this one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Any, Final

import trio
from attrs import define, field

from pympsd.devices.machine import BadMachine
from pympsd.devices.registrations import InUse, Registration, register
from pympsd.devices.state_folder import StateFolder, state_folder_of, with_current_modes
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.wire.link_messages import ServerSetup
from pympsd_server.state_machine import start_checks

AGAIN_SECONDS: Final = 0.5
"""Between two tries to register what could not be at the start."""


class CannotStart(Exception):
    """The server cannot start; ``reasons`` are sentences for its log."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


@define
class Holdings:
    """What a server holds. A machine in short form, or a folder that cannot be used, keeps no record of it."""

    devices: tuple[DeviceFacts, ...]
    folder: StateFolder | None = None
    late: dict[int, str] = field(factory=dict, init=False)
    """Devices that are not registered yet, by ordinal, each with the reason."""
    _registrations: dict[int, Registration] = field(factory=dict, init=False)

    @property
    def recorded(self) -> bool:
        """Whether anybody can see, or will, what clients hold."""
        return bool(self._registrations or self.late)

    def enter(self, device: int, registration: Registration) -> None:
        """Hold a device."""
        self._registrations[device] = registration

    def report(self, device: int, clients: Iterable[tuple[int, int]]) -> None:
        """Record what clients hold on a device: (PID, bytes) of each."""
        if device in self._registrations:
            self._registrations[device].report(clients)

    async def enter_late(self, log: Any) -> None:
        """Say which devices are not registered, and register them as soon as the folder is free."""
        for ordinal, reason in self.late.items():
            log.warning("device_unregistered", device=ordinal, reason=reason)
        while self.late:
            await trio.sleep(AGAIN_SECONDS)
            for ordinal in tuple(self.late):
                if self._enter_now(ordinal):
                    log.info("device_registered", device=ordinal)

    def _enter_now(self, ordinal: int) -> bool:
        assert self.folder is not None
        try:
            registration = register(self.folder, self.devices[ordinal].uuid, alone=False, timeout=0.0)
        except OSError:
            return False
        del self.late[ordinal]
        self.enter(ordinal, registration)
        return True

    def release(self) -> None:
        """Let all devices go."""
        while self._registrations:
            self._registrations.popitem()[1].end()


def take_devices(setup: ServerSetup) -> Holdings:
    """Check and take the devices of a setup; raise CannotStart, holding nothing."""
    try:
        devices = with_current_modes(setup.devices, setup.machine)
    except BadMachine as error:
        raise CannotStart(str(error)) from None
    holdings = Holdings(devices, state_folder_of(setup.machine))
    reasons = start_checks.refusals(os.uname().sysname, struct.calcsize("P") * 8, holdings.devices)
    if reasons:
        raise CannotStart(*reasons)
    try:
        for ordinal in range(len(holdings.devices)):
            _take(holdings, ordinal)
    except BaseException:
        holdings.release()
        raise
    return holdings


def _take(holdings: Holdings, ordinal: int) -> None:
    folder, device = holdings.folder, holdings.devices[ordinal]
    alone = start_checks.wants_exclusively(device)
    if folder is None:
        if alone:
            reason = "only a machine that a file describes (PYMPSD_EMULATED_DEVICES) can keep it."
            raise CannotStart(start_checks.cannot_be_held(ordinal, device, reason))
        return
    try:
        folder.make()
        # Who holds up one device holds up all: that is waited for once.
        patience = 0.0 if holdings.late else None
        holdings.enter(ordinal, register(folder, device.uuid, alone, patience))
    except InUse as error:
        raise CannotStart(start_checks.in_use(ordinal, device, error.pid)) from None
    except OSError as error:
        if alone:
            raise CannotStart(start_checks.cannot_be_held(ordinal, device, folder.explain(error))) from None
        if isinstance(error, TimeoutError):
            holdings.late[ordinal] = folder.explain(error)
