"""Launch configurations, and the attributes of launches, kernel nodes and streams (CUlaunchAttributeID)."""

import ctypes
import struct
from typing import Any, Final

from attrs import frozen

from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.values import address_of

_NUMBERS: Final = members("CUlaunchAttributeID", "CU_LAUNCH_ATTRIBUTE_")
_NAMES: Final = {number: name for name, number in _NUMBERS.items()}
COOPERATIVE: Final = _NUMBERS["COOPERATIVE"]
CLUSTER_DIMENSION: Final = _NUMBERS["CLUSTER_DIMENSION"]
VALUE_BYTES: Final = 64
"""The size of a CUlaunchAttributeValue in bytes."""
STREAM_DEFAULTS: Final = {
    "ACCESS_POLICY_WINDOW": b"",
    "SYNCHRONIZATION_POLICY": struct.pack("=i", 1),
    "MEM_SYNC_DOMAIN_MAP": bytes((0, 1)),
    "MEM_SYNC_DOMAIN": b"",
}
"""The attributes that a program can set on a stream, and their default values. All are hints."""
HINTS: Final = frozenset(
    {
        *STREAM_DEFAULTS,
        "IGNORE",
        "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
        "NVLINK_UTIL_CENTRIC_SCHEDULING",
        "PRIORITY",
        "PREFERRED_SHARED_MEMORY_CARVEOUT",
        "PROGRAMMATIC_STREAM_SERIALIZATION",
    }
)
"""The attributes that change no result, by name.

Programmatic serialization *allows* a kernel to begin before the previous one has ended. Here a kernel always begins
afterwards, so griddepcontrol.wait does not have to wait.
"""


def name_of(number: int) -> str:
    """Return an attribute's name without its prefix, or the number as text if it has none."""
    return _NAMES.get(number, str(number))


def check_of_node(number: int) -> None:
    """Raise INVALID_VALUE for an attribute that kernel nodes do not have, as recorded on an H200."""
    if _NAMES.get(number, "IGNORE") in ("IGNORE", "SYNCHRONIZATION_POLICY"):
        raise invalid_value(f"{name_of(number)} is not an attribute of a kernel node")


def not_there(name: str, supported: str = "COOPERATIVE, CLUSTER_DIMENSION, those of events") -> CudaError:
    """Return the error for an unsupported attribute; ``supported`` lists the supported ones apart from the hints."""
    hints = ", ".join(sorted(HINTS))
    return not_supported(
        f"pympsd does not have the launch attribute {name}; it has {supported}, and accepts the hints {hints}"
    )


@frozen
class LaunchConfig:
    """A CUlaunchConfig; ``cluster`` has the dimensions of a cluster in blocks, each 1 if no attribute sets them."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster: tuple[int, int, int]


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("sizes", ctypes.c_uint32 * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
    )


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("values", ctypes.c_uint32 * 16))


def launch_config(argument: Any) -> LaunchConfig | None:
    """Return the values of a CUlaunchConfig, None for None; raise TypeError for anything else."""
    if argument is None:
        return None
    raw: Any = _LaunchConfig.from_address(address_of(argument, "CUlaunchConfig"))
    sizes, cluster = tuple(raw.sizes), (1, 1, 1)
    for attribute in (_LaunchAttribute * raw.count).from_address(raw.attributes) if raw.attributes else ():
        if attribute.id == CLUSTER_DIMENSION:
            x, y, z = attribute.values[:3]
            cluster = x, y, z
    return LaunchConfig(sizes[:3], sizes[3:6], sizes[6], cluster)
