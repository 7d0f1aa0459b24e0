"""Initialization, version, devices (CUDA driver API, sections 6.2 to 6.5)."""

from __future__ import annotations

import ctypes
from typing import Any

from pympsd.version import CUDA_VERSION
from pympsd.vocabulary.results import Result
from pympsd_client._api.entry_point import door
from pympsd_client._arguments.bindings import CUdevice, CUexecAffinityType, CUuuid, members
from pympsd_client._arguments.errors import DONE, SUCCESS, CudaError, invalid_value
from pympsd_client._arguments.numbers import number
from pympsd_client._connect.connection import Device
from pympsd_client._objects.process import here
from pympsd_client._objects.thread_local import mine

_ATTRIBUTES = members("CUdevice_attribute", "CU_DEVICE_ATTRIBUTE_")
_SM_COUNT = int(CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)


@door()
def cuInit(Flags: Any) -> tuple[Any, ...]:
    """Connect to the MPS daemon, or go on without one; see `pympsd_client`.

    Returns MPS_CONNECTION_FAILED where PYMPSD_REQUIRE_MPS=1 and there is no daemon; what the daemon refuses with
    (MPS_SERVER_NOT_READY, ...); NO_DEVICE; INVALID_VALUE for flags, and for PYMPSD_REQUIRE_MPS, PYMPSD_LENIENT_LIMITS
    and PYMPSD_LAUNCHES that cannot be; NOT_SUPPORTED for PYMPSD_LAUNCHES=native without the extension. Waits while
    another user's server has its turn; after 10 s a RuntimeWarning says so.
    """
    here.initialize(number(Flags))
    return DONE


@door(1)
def cuDriverGetVersion() -> tuple[Any, ...]:
    """Return 1000 x major + 10 x minor of the CUDA version answered with. Works before cuInit."""
    if here.forked:
        here.require()
    connection = here.connection
    return SUCCESS, CUDA_VERSION if connection is None else connection.driver_version


@door(1)
def cuDeviceGetCount() -> tuple[Any, ...]:
    """Return how many devices this process sees."""
    connection = here.require()
    connection.check()
    return SUCCESS, len(connection.devices)


@door(1)
def cuDeviceGet(ordinal: Any) -> tuple[Any, ...]:
    """Return the device of an ordinal from 0; INVALID_DEVICE."""
    return SUCCESS, CUdevice(here.device(number(ordinal)).number)


@door(1)
def cuDeviceGetName(length: Any, dev: Any) -> tuple[Any, ...]:
    """Return ``length`` bytes: the device's name, cut to fit, and NULs. INVALID_VALUE for a length below 1."""
    device = here.device(dev)
    return SUCCESS, _padded(device.facts.name, number(length))


@door(1)
def cuDeviceGetUuid(dev: Any) -> tuple[Any, ...]:
    """Return the device's UUID as a CUuuid of 16 bytes."""
    digits = here.device(dev).facts.uuid.removeprefix("GPU-").replace("-", "")
    uuid = CUuuid()
    ctypes.memmove(uuid.getPtr(), bytes.fromhex(digits), 16)
    return SUCCESS, uuid


cuDeviceGetUuid_v2 = cuDeviceGetUuid


@door(1)
def cuDeviceTotalMem(dev: Any) -> tuple[Any, ...]:
    """Return the device's memory in bytes."""
    return SUCCESS, here.device(dev).facts.memory_bytes


@door(1)
def cuDeviceGetAttribute(attrib: Any, dev: Any) -> tuple[Any, ...]:
    """Return an attribute's value: 0 for one this device does not have, INVALID_VALUE for one that does not exist."""
    device = here.device(dev)
    wanted = number(attrib)
    if wanted not in _ATTRIBUTES.values():
        raise invalid_value(f"there is no device attribute {wanted}")
    if wanted == _ATTRIBUTES["MULTIPROCESSOR_COUNT"]:
        return SUCCESS, _multiprocessors(device)
    facts = device.facts.attributes
    names = [name for name, value in _ATTRIBUTES.items() if value == wanted]  # an attribute may have aliases
    return SUCCESS, next((facts[name] for name in names if name in facts), 0)


def _multiprocessors(device: Device) -> int:
    """Of the current context where each context has its own share, else of the process (MPS documents, 4.2.5)."""
    stack = mine.stack
    if here.require().per_context and stack and stack[-1].device is device:
        opened = stack[-1].opened
        if opened is not None:
            return opened.multiprocessors
    return device.facts.attributes.get("MULTIPROCESSOR_COUNT", device.facts.multiprocessors)


@door(1)
def cuDeviceGetExecAffinitySupport(typename: Any, dev: Any) -> tuple[Any, ...]:
    """Return 1 when contexts can be kept to a number of SMs: under MPS, on Volta and newer. INVALID_VALUE."""
    device = here.device(dev)
    if number(typename) != _SM_COUNT:
        raise invalid_value(f"the execution affinity type is SM_COUNT ({_SM_COUNT}), not {number(typename)}")
    return SUCCESS, int(here.require().provisions and device.facts.is_volta_or_newer)


@door(1)
def cuDeviceGetPCIBusId(length: Any, dev: Any) -> tuple[Any, ...]:
    """Return ``length`` bytes: domain:bus:device.function in hexadecimal, and NULs. INVALID_VALUE below 13."""
    device = here.device(dev)
    if number(length) < 13:
        raise invalid_value(f"a PCI bus id needs 13 bytes, not {number(length)}")
    domain, rest = device.facts.pci.split(":", 1)
    bus, number_of_it, function = rest.replace(":", ".").split(".")
    name = f"{int(domain, 16):04X}:{int(bus, 16):02X}:{int(number_of_it, 16):02X}.{int(function, 16):X}"
    return SUCCESS, _padded(name, number(length))


@door(1)
def cuDeviceGetByPCIBusId(pciBusId: Any) -> tuple[Any, ...]:
    """Return the device with a PCI bus id (bytes, as cuDeviceGetPCIBusId gives them); INVALID_DEVICE for none."""
    wanted = bytes(pciBusId).rstrip(b"\0").decode("ascii", "replace").upper()
    for index in range(len(here.require().devices)):
        name: bytes = cuDeviceGetPCIBusId(16, index)[1]
        if wanted in (name.rstrip(b"\0").decode(), name.rstrip(b"\0").decode().removeprefix("0000:")):
            return SUCCESS, CUdevice(index)
    raise CudaError(Result.ERROR_INVALID_DEVICE, f"no visible device has the PCI bus id {wanted}")


@door(1)
def cuDeviceCanAccessPeer(dev: Any, peerDev: Any) -> tuple[Any, ...]:
    """Return 0: copies between devices are staged by this library, peer access there is none."""
    here.device(dev)
    here.device(peerDev)
    return SUCCESS, 0


@door(1)
def cuDeviceGetP2PAttribute(attrib: Any, srcDevice: Any, dstDevice: Any) -> tuple[Any, ...]:
    """Return 0 for every attribute of a pair of devices: there is no peer access."""
    here.device(srcDevice)
    here.device(dstDevice)
    number(attrib)
    return SUCCESS, 0


def _padded(text: str, length: int) -> bytes:
    if length < 1:
        raise invalid_value(f"a length is at least 1, not {length}")
    return text.encode()[: length - 1].ljust(length, b"\0")
