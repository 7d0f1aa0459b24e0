"""The devices of a server, which it checks and registers at its start, according to their current compute modes.

If registering a shared device is blocked (any user can keep the folder locked), the server uses the device anyway and
registers it as soon as possible. Until then a server that needs the device exclusively does not notice this server.
"""

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, field

from pympsd.devices.machine import BadMachine
from pympsd.devices.registrations import InUse, Registration, register
from pympsd.devices.state_folder import StateFolder, apply_current_modes, state_folder_of
from pympsd.errors import StartError
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.wire.link_messages import ServerSetup
from pympsd_server.state_machine import start_checks

RETRY_SECONDS: Final = 0.5
"""The seconds between two attempts to register a device that could not be registered at the start."""


class ServerCannotStart(StartError):
    """Raised when the server cannot start; ``reasons`` are sentences for its log."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


@define
class RegisteredDevices:
    """A server's devices. Only emulated devices are registered, and only if the folder can be used."""

    properties: tuple[DeviceProperties, ...]
    folder: StateFolder | None = None
    unregistered: dict[int, str] = field(factory=dict, init=False)
    """The reason why a device is not registered yet, by ordinal."""
    unusable: str = field(default="", init=False)
    """The reason why devices cannot be registered; empty if they can be, or need not be."""
    _registrations: dict[int, Registration] = field(factory=dict, init=False)

    def add(self, device: int, registration: Registration) -> None:
        """Keep the registration of a device."""
        self._registrations[device] = registration

    def report(self, device: int, clients: Iterable[tuple[int, int]], utilization: int) -> None:
        """Record the memory of clients on a device, as (PID, bytes), and the device's utilization in percent."""
        if device in self._registrations:
            self._registrations[device].report(clients, utilization)

    async def register_late(self, log: Any) -> None:
        """Log the devices that are not registered, and register them as soon as the folder is free."""
        if self.unusable:
            log.warning("devices_not_registered", reason=self.unusable)
        for ordinal, reason in self.unregistered.items():
            log.warning("device_unregistered", device=ordinal, reason=reason)
        while self.unregistered:
            await trio.sleep(RETRY_SECONDS)
            for ordinal in tuple(self.unregistered):
                if self._register_now(ordinal):
                    log.info("device_registered", device=ordinal)

    def _register_now(self, ordinal: int) -> bool:
        assert self.folder is not None
        try:
            registration = register(self.folder, self.properties[ordinal].uuid, alone=False, timeout=0.0)
        except OSError:
            return False
        del self.unregistered[ordinal]
        self.add(ordinal, registration)
        return True

    def release(self) -> None:
        """End the registrations of all devices."""
        while self._registrations:
            self._registrations.popitem()[1].end()


def register_devices(setup: ServerSetup) -> RegisteredDevices:
    """Check and register the devices of a setup. Raise ServerCannotStart, with no device left registered."""
    try:
        properties = apply_current_modes(setup.devices, setup.machine)
    except BadMachine as error:
        raise ServerCannotStart(str(error)) from None
    devices = RegisteredDevices(properties, state_folder_of(setup.machine) if setup.backend == "emulated" else None)
    reasons = start_checks.list_refusals(os.uname().sysname, struct.calcsize("P") * 8, properties, setup.used)
    if reasons:
        raise ServerCannotStart(*reasons)
    try:
        for ordinal in range(len(properties)) if setup.used is None else setup.used:
            _register(devices, ordinal)
    except BaseException:
        devices.release()
        raise
    return devices


def _register(devices: RegisteredDevices, ordinal: int) -> None:
    """Register a device for this server, or note why that failed; raise ServerCannotStart if MPS cannot use it."""
    folder, device = devices.folder, devices.properties[ordinal]
    alone = start_checks.is_exclusive(device)
    if folder is None:
        if alone:
            reason = "only an emulated device can be kept for one server."
            raise ServerCannotStart(start_checks.describe_unheld(ordinal, device, reason))
        return
    try:
        folder.make()
        # What blocks one device blocks all, so wait only once.
        timeout = 0.0 if devices.unregistered else None
        devices.add(ordinal, register(folder, device.uuid, alone, timeout))
    except InUse as error:
        raise ServerCannotStart(start_checks.describe_use(ordinal, device, _holder(error.pid))) from None
    except OSError as error:
        if alone:
            raise ServerCannotStart(start_checks.describe_unheld(ordinal, device, folder.explain(error))) from None
        if isinstance(error, TimeoutError):
            devices.unregistered[ordinal] = folder.explain(error)
        else:
            devices.unusable = folder.explain(error)


def _holder(pid: int) -> start_checks.DeviceHolder:
    """Return the properties of another process that uses a device, as far as this process can read them."""
    process = Path(f"/proc/{pid}")
    try:
        name = (process / "comm").read_text().rstrip("\n")
        words = (process / "cmdline").read_bytes().split(b"\0")
        name = os.path.basename(words[0]).decode("utf-8", "replace") or name
        uid = process.stat().st_uid
    except OSError:
        return start_checks.DeviceHolder(pid)
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:  # the process is another user's
        return start_checks.DeviceHolder(pid, name, uid)
    directories = [
        variable.partition(b"=")[2] for variable in variables if variable.startswith(b"CUDA_MPS_PIPE_DIRECTORY=")
    ]
    if not directories:
        return start_checks.DeviceHolder(pid, name, uid)
    return start_checks.DeviceHolder(
        pid, name, uid, directories[0].decode("utf-8", "replace"), not os.path.exists(directories[0])
    )
