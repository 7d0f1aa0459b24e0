"""Determine the backend and the visible devices of this machine from the settings, for the daemon and its servers.

This module also chooses the driver branch that the daemon reproduces: the value of ``--driver`` or PYMPSD_DRIVER,
otherwise that in the description of an emulated machine. Only branch 580 of the driver's own server is known.

PYMPSD_BACKEND selects the backend. ``auto`` means the emulated machine if PYMPSD_EMULATED_DEVICES is set, or if there
is no driver or no device. Otherwise it means the GPUs that the driver finds: with the driver's own server
(``vendor``) if its release is one that pympsd supports, or else with pympsd's own servers (``cuda``). An installed
driver that does not work is an error: on a machine with a GPU, work must not run on an emulated one unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import evolve, frozen

from pympsd.devices.machine import describe
from pympsd.devices.visible import keep_one_generation, select
from pympsd.errors import StartError
from pympsd.process.version import DRIVER, VENDOR_DRIVER
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.settings import Settings


class NoDriver(StartError, ValueError):
    """Raised when the backend needs the driver, and the driver is missing or does not work.

    The message explains why, and which setting to use instead.
    """


@frozen
class Probed:
    """The result of asking the driver for its devices.

    Exactly one of three fields is set: the devices, the reason why there are none (then ``auto`` selects
    ``emulated``), or the reason why the driver does not work (which is an error).
    """

    devices: tuple[DeviceProperties, ...] = ()
    absent: str = ""
    """The reason why there is no driver, or no device; empty if there are devices, or if the driver does not work."""
    unusable: str = ""
    """The reason why the installed driver does not work; empty if it works or is missing."""


@frozen
class Machine:
    """The backend of a daemon, the reason why it was selected, and the visible devices in the daemon's order.

    With ``vendor`` the devices may be unknown until the first server starts; then the list is empty.
    """

    backend: str
    reason: str
    devices: tuple[DeviceProperties, ...]
    vendor_server: str = ""
    driver: int = DRIVER
    """The driver branch that the daemon reproduces, such as 580; the devices have the same one."""
    instead: Machine | None = None
    """The machine that ``auto`` selects if the driver's server turns out to use an unknown protocol; None if there is
    no other.
    """


def visible_machine(settings: Settings, probe: Callable[[], Probed], find_server: Callable[[], str]) -> Machine:
    """Return the machine that the settings select.

    ``probe`` asks the driver, and is called only if the answer matters; ``find_server`` returns the path of the
    driver's server, or an empty text. Raise NoDriver, BadMachine, NoVisibleDevice or DuplicateDevice.
    """
    machine = _set_driver(_machine(settings, probe, find_server), settings.driver)
    if not machine.devices:
        return machine
    indices = keep_one_generation(machine.devices, select(machine.devices, settings.visible_devices))
    return _select_devices(machine, indices)


def find_expected_driver(settings: Settings) -> int:
    """Return the driver branch of a daemon with these settings, without asking the driver; raise BadMachine.

    With backend ``auto`` the result may be wrong on a machine whose driver has a server of its own.
    """
    if settings.driver or settings.backend in ("cuda", "auto"):
        return settings.driver or DRIVER
    return VENDOR_DRIVER if settings.backend == "vendor" else describe(settings.emulated_devices)[0].driver


def _set_driver(machine: Machine, requested: int) -> Machine:
    """Return a machine with the requested driver branch; with 0, the machine keeps its branch."""
    described = machine.devices[0].driver if machine.devices else DRIVER
    driver = requested or (VENDOR_DRIVER if machine.backend == "vendor" else described)
    devices = tuple(evolve(device, driver=driver) for device in machine.devices)
    instead = machine.instead and _set_driver(machine.instead, requested)
    return evolve(machine, driver=driver, devices=devices, instead=instead)


def _select_devices(machine: Machine, indices: Sequence[int]) -> Machine:
    instead = machine.instead and _select_devices(machine.instead, indices)
    return evolve(machine, devices=tuple(machine.devices[index] for index in indices), instead=instead)


_NAMES_NOT_SERVED: Final = """
CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM CONCURRENT_MANAGED_ACCESS HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
HOST_MEMORY_POOLS_SUPPORTED HOST_NUMA_MEMORY_POOLS_SUPPORTED HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED IPC_EVENT_SUPPORTED MANAGED_MEMORY MEMPOOL_SUPPORTED_HANDLE_TYPES
TENSOR_MAP_ACCESS_SUPPORTED VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
"""
_NOT_SERVED: Final = frozenset(_NAMES_NOT_SERVED.split())
_OF_TEXTURES: Final = ("MAXIMUM_TEXTURE", "MAXIMUM_SURFACE")
"""The prefixes of the names of texture attributes.

A GPU has these features and those in _NOT_SERVED, but the ``cuda`` backend lacks them: their attributes are reported
as 0, so that clients do not use them.
"""


def _clear_unserved(device: DeviceProperties) -> DeviceProperties:
    refused = {name: 0 for name in device.attributes if name in _NOT_SERVED or name.startswith(_OF_TEXTURES)}
    return evolve(device, attributes={**device.attributes, **refused})


def _machine(settings: Settings, probe: Callable[[], Probed], find_server: Callable[[], str]) -> Machine:
    """Return the machine of the selected backend, with all its devices. Raise NoDriver or BadMachine."""
    if settings.backend == "emulated":
        return _emulate(settings, "PYMPSD_BACKEND selects it")
    probed = probe()
    if settings.backend == "vendor":
        return _vendor(settings, probed, find_server)
    if probed.devices:
        server = "" if settings.backend == "cuda" else find_server()
        finding = f"the driver finds {len(probed.devices)} device{'s' if len(probed.devices) > 1 else ''}"
        own = tuple(map(_clear_unserved, probed.devices))
        if server:
            instead = Machine("cuda", f"{finding}, and its MPS server does not use a known protocol", own)
            reason = f"{finding}, and its MPS server is {server}"
            return Machine("vendor", reason, probed.devices, server, instead=instead)
        without = "PYMPSD_BACKEND selects it" if settings.backend == "cuda" else f"{finding}, but not its MPS server"
        return Machine("cuda", without, own)
    if probed.unusable:
        raise NoDriver(
            f"the GPU driver of this machine cannot be used: {probed.unusable}; fix it, or set "
            "PYMPSD_BACKEND=emulated to run on an emulated device"
        )
    if settings.backend == "cuda":
        raise NoDriver(
            f"PYMPSD_BACKEND=cuda: {probed.absent}; set PYMPSD_BACKEND=emulated to run on an emulated device"
        )
    return _emulate(settings, probed.absent)


def _emulate(settings: Settings, reason: str) -> Machine:
    return Machine("emulated", reason, describe(settings.emulated_devices))


def _vendor(settings: Settings, probed: Probed, find_server: Callable[[], str]) -> Machine:
    """Return the machine of the driver's server, which reports its devices if the driver could not be asked."""
    server = find_server()
    if not server:
        override = settings.vendor_server and f"PYMPSD_VENDOR_SERVER={settings.vendor_server} is not a program"
        raise NoDriver(
            f"PYMPSD_BACKEND=vendor: {override or 'no nvidia-cuda-mps-server is in PATH'}; name the driver's in "
            "PYMPSD_VENDOR_SERVER, or set PYMPSD_BACKEND=cuda or emulated"
        )
    return Machine("vendor", f"PYMPSD_BACKEND selects it, and its server is {server}", probed.devices, server)
