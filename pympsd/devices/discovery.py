"""The backend and the visible devices of this machine, from settings, for the daemon and its servers.

The branch of the driver whose behaviour the daemon has is chosen here too: by ``--driver`` or PYMPSD_DRIVER, else by
the description of an emulated machine. Only branch 580 of the driver's own server is known.

PYMPSD_BACKEND selects the backend. ``auto`` means the emulated machine if PYMPSD_EMULATED_DEVICES is set, or if there
is no driver or no device; else the GPUs that the driver finds, with the driver's own server (``vendor``) if there
is one whose release pympsd supports, else with ours (``cuda``). An installed driver that
does not work is an error: on a machine with a GPU, work must not run on an emulated one unnoticed.
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

    Exactly one of the three is set: the devices, the reason why there are none (then ``auto`` selects ``emulated``),
    or the reason why the driver does not work (which is an error).
    """

    devices: tuple[DeviceProperties, ...] = ()
    absent: str = ""
    """The reason why there is no driver, or no device."""
    unusable: str = ""
    """The reason why the installed driver does not work."""


@frozen
class Machine:
    """The backend of a daemon, and why it is that one; the visible devices in the daemon's order.

    Without devices (vendor only) they become known when the first server starts.
    """

    backend: str
    reason: str
    devices: tuple[DeviceProperties, ...]
    vendor_server: str = ""
    driver: int = DRIVER
    """The branch of the driver whose behaviour it has, which is also the devices'."""
    instead: Machine | None = None
    """The machine that ``auto`` takes if the driver's server turns out not to be known."""


def visible_machine(settings: Settings, probe: Callable[[], Probed], find_server: Callable[[], str]) -> Machine:
    """Return the machine that the settings select.

    ``probe`` asks the driver and is called only if its answer matters; ``find_server`` returns the path of the
    driver's server, or nothing. Raise NoDriver, BadMachine, NoVisibleDevice or DuplicateDevice.
    """
    machine = _set_driver(_machine(settings, probe, find_server), settings.driver)
    if not machine.devices:
        return machine
    indices = keep_one_generation(machine.devices, select(machine.devices, settings.visible_devices))
    return _select_devices(machine, indices)


def find_expected_driver(settings: Settings) -> int:
    """Return the branch of the driver of a daemon with these settings, without asking the driver; raise BadMachine.

    With backend ``auto`` it is right except on a machine whose driver has a server of its own.
    """
    if settings.driver or settings.backend in ("cuda", "auto"):
        return settings.driver or DRIVER
    return VENDOR_DRIVER if settings.backend == "vendor" else describe(settings.emulated_devices)[0].driver


def _set_driver(machine: Machine, requested: int) -> Machine:
    """Return a machine with the requested branch of the driver; 0: with its present branch."""
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
"""The prefixes of texture attributes. These, and those above, are of features that a GPU has and the ``cuda`` backend
lacks: they are reported as 0, so that clients do not use them."""


def _clear_unserved(device: DeviceProperties) -> DeviceProperties:
    refused = {name: 0 for name in device.attributes if name in _NOT_SERVED or name.startswith(_OF_TEXTURES)}
    return evolve(device, attributes={**device.attributes, **refused})


def _machine(settings: Settings, probe: Callable[[], Probed], find_server: Callable[[], str]) -> Machine:
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
