"""The properties of devices (CUDA driver API, section 6.5)."""

import struct
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.resources import SM_COUNT
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.arrays.shapes import check_format
from pympsd_client._objects.context import this_thread
from pympsd_client._objects.process import process

_ATTRIBUTES: Final = members("CUdevice_attribute", "CU_DEVICE_ATTRIBUTE_")


def name(length: int, device: int) -> bytes:
    """Return the device's name, cut to ``length`` bytes, and NULs; raise INVALID_VALUE for a length below 1."""
    return _pad(process.device(device).properties.name, length)


def uuid(device: int) -> bytes:
    """Return the device's UUID as a CUuuid of 16 bytes."""
    return uuid_bytes(process.device(device))


def uuid_bytes(device: VisibleDevice) -> bytes:
    """Return the 16 bytes of a device's UUID."""
    return bytes.fromhex(device.properties.uuid.removeprefix("GPU-").replace("-", ""))


def luid(device: int) -> tuple[bytes, int]:
    """Raise NOT_SUPPORTED, because devices have locally unique identifiers on Windows only."""
    process.device(device)
    raise not_supported("cuDeviceGetLuid: LUIDs are Windows' own; use cuDeviceGetUuid")


def compute_capability(device: int) -> tuple[int, int]:
    """Return the major and the minor number of the device's compute capability."""
    return process.device(device).properties.compute_capability


def attribute(requested: int, device: int) -> int:
    """Return an attribute's value, 0 if the device does not have it; raise INVALID_VALUE if CUDA does not have it."""
    entry = process.device(device)
    if requested not in _ATTRIBUTES.values():
        raise invalid_value(f"there is no device attribute {requested}")
    if requested == _ATTRIBUTES["MULTIPROCESSOR_COUNT"]:
        return multiprocessors(entry)
    properties = entry.properties.attributes
    names = [name for name, value in _ATTRIBUTES.items() if value == requested]  # some attributes have aliases
    return next((properties[name] for name in names if name in properties), 0)


_MAX_TEXT: Final = 256
"""The maximum size in bytes of a text with its NULs: the size of a name in the runtime's cudaDeviceProp."""
_PROPERTIES: Final = (
    *("MAX_THREADS_PER_BLOCK", "MAX_BLOCK_DIM_X", "MAX_BLOCK_DIM_Y", "MAX_BLOCK_DIM_Z", "MAX_GRID_DIM_X"),
    *("MAX_GRID_DIM_Y", "MAX_GRID_DIM_Z", "MAX_SHARED_MEMORY_PER_BLOCK", "TOTAL_CONSTANT_MEMORY", "WARP_SIZE"),
    *("MAX_PITCH", "MAX_REGISTERS_PER_BLOCK", "CLOCK_RATE", "TEXTURE_ALIGNMENT"),
)
"""The attributes in the fields of a CUdevprop, in their order."""


def properties(device: int) -> bytes:
    """Return the device's CUdevprop."""
    properties = process.device(device).properties.attributes
    return struct.pack(f"={len(_PROPERTIES)}i", *(properties.get(name, 0) for name in _PROPERTIES))


def linear_texture_width(format: int, channels: int, device: int) -> int:
    """Return the maximum number of elements of a texture in linear memory; raise NOT_SUPPORTED or INVALID_VALUE."""
    properties = process.device(device).properties.attributes
    check_format(format, channels)
    return properties.get("MAXIMUM_TEXTURE1D_LINEAR_WIDTH", 0)


def multiprocessors(device: VisibleDevice) -> int:
    """Return the number of SMs that the process may use; with per-context partitioning, that the current context may.

    Source: MPS documents, 4.2.5.
    """
    stack = this_thread.stack
    if process.require().per_context and stack and stack[-1].device is device:
        opened = stack[-1].opened
        if opened is not None:
            return int(opened.multiprocessors)
    return device.properties.attributes.get("MULTIPROCESSOR_COUNT", device.properties.multiprocessors)


def execution_affinity_support(kind: int, device: int) -> int:
    """Return 1 for SM_COUNT if contexts can be limited to a number of SMs (under MPS, on Volta and newer), else 0."""
    properties = process.device(device).properties
    return int(kind == SM_COUNT and process.require().provisions and properties.is_volta_or_newer)


def pci_bus_id(length: int, device: int) -> bytes:
    """Return domain:bus:device.function in hexadecimal, and NULs; raise INVALID_VALUE for a length below 13."""
    entry = process.device(device)
    if length < 13:
        raise invalid_value(f"a PCI bus id needs 13 bytes, not {length}")
    return _pad(_bus_id(entry), length)


def _bus_id(device: VisibleDevice) -> str:
    domain, address = device.properties.pci.split(":", 1)
    bus, number, function = address.replace(":", ".").split(".")
    return f"{int(domain, 16):04X}:{int(bus, 16):02X}:{int(number, 16):02X}.{int(function, 16):X}"


def device_by_pci_bus_id(text: str) -> int:
    """Return the device with a PCI bus id, which is bytes as from cuDeviceGetPCIBusId.

    Raise INVALID_VALUE for a text of another form, INVALID_DEVICE if no device has the id.
    """
    requested = text.upper()
    if ":" not in requested:
        raise invalid_value(f"a PCI bus id has the form domain:bus:device.function, not {text!r}")
    connection = process.require()
    connection.check()
    for device in connection.devices:
        if requested in (_bus_id(device), _bus_id(device).removeprefix("0000:")):
            return device.number
    raise CudaError(Result.ERROR_INVALID_DEVICE, f"no visible device has the PCI bus id {requested}")


def _pad(text: str, length: int) -> bytes:
    """Return a text and NULs up to ``length`` bytes or _MAX_TEXT, because a buffer may have fewer than it states."""
    if length < 1:
        raise invalid_value(f"a length must be at least 1, not {length}")
    return text.encode()[: length - 1].ljust(min(length, _MAX_TEXT), b"\0")
