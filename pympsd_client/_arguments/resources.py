"""Structures of green contexts and execution affinity: a device's resources, and the groups that divide them."""

import ctypes
import struct
from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import CUexecAffinityParam, CUexecAffinityType
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.values import address_of, addresses_of

SM_COUNT: Final = int(CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)
RESOURCE_BYTES: Final = 144
GROUP_BYTES: Final = 64
_LAYOUT: Final = struct.Struct("=i8sI80x4I32x")
_GROUP: Final = struct.Struct("=4I48x")
_MARK: Final = b"pympsd R"
"""The mark of a CUdevResource of pympsd, in the part that CUDA reserves."""
_SM: Final = 1
"""CU_DEV_RESOURCE_TYPE_SM."""


@frozen
class SmResource:
    """``count`` SMs of a device (by number); parts have at least ``minimum`` SMs, in multiples of ``alignment``."""

    device: int
    count: int
    minimum: int
    alignment: int
    flags: int = 0

    @property
    def packed(self) -> bytes:
        """The bytes of a CUdevResource, whose type is INVALID if it has no SMs."""
        kind = _SM if self.count else 0
        return _LAYOUT.pack(kind, _MARK, self.device, self.count, self.minimum, self.alignment, self.flags)


@frozen
class SmGroup:
    """A CU_DEV_SM_RESOURCE_GROUP_PARAMS; a ``count`` of 0 stands for all remaining SMs."""

    count: int
    coscheduled: int
    preferred: int
    flags: int


def check_type(kind: int) -> None:
    """Raise INVALID_RESOURCE_TYPE for every type except SMs."""
    if kind != _SM:
        raise CudaError(Result.ERROR_INVALID_RESOURCE_TYPE, "only SMs can be divided among contexts here")


def sm_resource(argument: Any) -> SmResource:
    """Return the SMs of a CUdevResource.

    Raise INVALID_VALUE for NULL, INVALID_RESOURCE_TYPE for a resource other than SMs, TypeError for anything else.
    """
    if argument is None:
        raise invalid_value("the resource is NULL")
    return _resource(address_of(argument, "CUdevResource"))


def _resource(place: int) -> SmResource:
    kind, mark, device, count, minimum, alignment, flags = _LAYOUT.unpack(ctypes.string_at(place, RESOURCE_BYTES))
    if kind != _SM or mark != _MARK:
        raise CudaError(
            Result.ERROR_INVALID_RESOURCE_TYPE, "the resource is not one of SMs, as cuDeviceGetDevResource returns it"
        )
    return SmResource(device, count, minimum, alignment, flags)


def sm_resources(argument: Any, count: int) -> list[SmResource]:
    """Return the SMs of ``count`` CUdevResource, a list or a C array."""
    return [_resource(place) for place in addresses_of(argument, count, "CUdevResource", RESOURCE_BYTES)]


def groups(argument: Any, count: int) -> list[SmGroup]:
    """Return ``count`` CU_DEV_SM_RESOURCE_GROUP_PARAMS, a list or a C array."""
    places = addresses_of(argument, count, "CU_DEV_SM_RESOURCE_GROUP_PARAMS", GROUP_BYTES)
    return [SmGroup(*_GROUP.unpack(ctypes.string_at(place, GROUP_BYTES))) for place in places]


def put_counts(argument: Any, counts: list[int]) -> None:
    """Write each group's number of SMs into its CU_DEV_SM_RESOURCE_GROUP_PARAMS."""
    places = addresses_of(argument, len(counts), "CU_DEV_SM_RESOURCE_GROUP_PARAMS", GROUP_BYTES)
    for place, count in zip(places, counts, strict=True):
        ctypes.c_uint32.from_address(place).value = count


def sm_affinity(count: int) -> Any:
    """Return a CUexecAffinityParam of type SM_COUNT."""
    affinity = CUexecAffinityParam()
    affinity.type = CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
    affinity.param.smCount.val = count
    return affinity
