"""The attributes of launches, kernel nodes and streams (CUlaunchAttributeID): which are hints, and their defaults."""

from __future__ import annotations

import struct
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError

_NUMBERS: Final = members("CUlaunchAttributeID", "CU_LAUNCH_ATTRIBUTE_")
_NAMES: Final = {number: name for name, number in _NUMBERS.items()}
COOPERATIVE: Final = _NUMBERS["COOPERATIVE"]
CLUSTER_DIMENSION: Final = _NUMBERS["CLUSTER_DIMENSION"]
VALUE_BYTES: Final = 64
"""The size of a CUlaunchAttributeValue."""
STREAM_DEFAULTS: Final = {
    "ACCESS_POLICY_WINDOW": b"",
    "SYNCHRONIZATION_POLICY": struct.pack("=i", 1),
    "MEM_SYNC_DOMAIN_MAP": bytes((0, 1)),
    "MEM_SYNC_DOMAIN": b"",
}
"""The attributes that a program can set of a stream; they are hints."""
HINTS: Final = frozenset(
    {
        *STREAM_DEFAULTS,
        "IGNORE",
        "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
        "PRIORITY",
        "PREFERRED_SHARED_MEMORY_CARVEOUT",
    }
)
"""The attributes that change no result, by name."""


def name_of(number: int) -> str:
    """Return an attribute's name without its prefix, the number as text where there is none."""
    return _NAMES.get(number, str(number))


def not_there(name: str, those: str) -> CudaError:
    """Return the refusal of an attribute where there are only ``those``."""
    return CudaError(
        Result.ERROR_NOT_SUPPORTED, f"pympsd does not have the launch attribute {name} yet; it has {those}"
    )
