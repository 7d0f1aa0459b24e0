"""Structures and arrays of graph management, given as objects or addresses, read and written in memory."""

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pympsd_client._arguments import values
from pympsd_client._arguments.copy_structs import Memcpy3D
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.values import InMemory, check_count, number


def _layout(name: str, fields: str) -> type[ctypes.Structure]:
    """Return a ctypes structure with the named fields, each of 8 bytes, or of 4 if its name ends with a dot."""
    types: list[tuple[str, Any]] = [
        (field.rstrip("."), ctypes.c_uint32 if field.endswith(".") else ctypes.c_uint64) for field in fields.split()
    ]
    return type(name, (ctypes.Structure,), {"_fields_": types})


_GRID: Final = "gridDimX. gridDimY. gridDimZ. blockDimX. blockDimY. blockDimZ. sharedMemBytes."
KernelParameters: Final[Any] = _layout("KernelParameters", f"func {_GRID} kernelParams extra kern ctx")
FillParameters: Final[Any] = _layout("FillParameters", "dst pitch value. elementSize. width height")
FillParametersWithContext: Final[Any] = _layout("_", "dst pitch value. elementSize. width height ctx")
BatchParameters: Final[Any] = _layout("BatchParameters", "ctx count. paramArray flags.")
HostParameters: Final[Any] = _layout("HostParameters", "fn userData")
CopyParameters: Final[Any] = type(
    "CopyParameters",
    (ctypes.Structure,),
    {
        "_fields_": [
            ("flags", ctypes.c_int),
            ("reserved", ctypes.c_int),
            ("copyCtx", ctypes.c_uint64),
            ("copyParams", Memcpy3D),
        ]
    },
)
AllocationParameters: Final[Any] = _layout(
    "AllocationParameters",
    "allocType. handleTypes. locationType. locationId. security maxSize usage r0 r1 r2 r3 r4 r5 "
    "accessDescs accessDescCount bytesize dptr",
)
ACCESS_BYTES: Final = 12
"""The size of a CUmemAccessDesc in bytes."""
ChildParameters: Final[Any] = _layout("ChildParameters", "graph ownership.")
EventParameters: Final[Any] = _layout("EventParameters", "event ctx")
ConditionalParameters: Final[Any] = _layout("ConditionalParameters", "handle type. size. phGraph_out ctx")
InstantiateParameters: Final[Any] = _layout("InstantiateParameters", "flags hUploadStream hErrNode_out result_out.")
UpdateResult: Final[Any] = _layout("UpdateResult", "result. errorNode errorFromNode")
EdgeData: Final[Any] = type(
    "EdgeData", (ctypes.Structure,), {"_fields_": [(n, ctypes.c_ubyte) for n in ("from_port", "to_port", "type")]}
)
EDGE_BYTES: Final = 8
NODE_PARAMETERS_AT: Final = 16
"""The offset in bytes of the node type's parameters in a CUgraphNodeParams."""
NODE_PARAMETERS_BYTES: Final = 256


def address_of(argument: Any, name: str) -> int:
    """Return the address of a structure, given as an object of cuda.bindings or as its address.

    Raise INVALID_VALUE for NULL, TypeError for anything else.
    """
    if argument is None or argument == 0:
        raise invalid_value(f"the {name} is NULL")
    return values.address_of(argument, name)


def handles(argument: Any, count: int, name: str) -> list[int]:
    """Return the first ``count`` handles of a sequence or of an array in memory.

    Raise INVALID_VALUE for NULL, RuntimeError if a sequence has fewer.
    """
    if count == 0:
        return []
    if argument is None or argument == 0:
        raise invalid_value(f"{name} is NULL, but its number of elements is {count}")
    if isinstance(argument, InMemory):
        check_count(count, name)
        return list((ctypes.c_uint64 * count).from_address(argument))
    numbers = [number(value) for value in argument]
    if len(numbers) < count:
        raise RuntimeError(f"List is too small: {len(numbers)} < {count}")
    return numbers[:count]


def edge_data(argument: Any, count: int) -> list[tuple[int, int, int]]:
    """Return (from port, to port, kind) of the first ``count`` edges of an array, all 0 if the array is NULL.

    Raise RuntimeError if a list has fewer.
    """
    if count == 0 or argument is None or argument == 0:
        return [(0, 0, 0)] * count
    if isinstance(argument, InMemory):
        check_count(count, "edgeData")
        addresses: Iterable[int] = range(argument, argument + count * EDGE_BYTES, EDGE_BYTES)
    else:
        addresses = [address_of(edge, "CUgraphEdgeData") for edge in argument[:count]]
        if len(argument) < count:
            raise RuntimeError(f"List is too small: {len(argument)} < {count}")
    edges = [EdgeData.from_address(address) for address in addresses]
    return [(edge.from_port, edge.to_port, edge.type) for edge in edges]


class Elements(list[Any]):
    """A list with a copy of its elements in a C array at ``address`` (0 if empty), valid while this object exists."""

    def __init__(self, values: Sequence[int], size: int = 8) -> None:
        super().__init__(values)
        self._array: Any = None
        if values:
            self._array = ctypes.create_string_buffer(b"".join(value.to_bytes(size, "little") for value in values))
        self.address: int = ctypes.addressof(self._array) if values else 0


def edge_number(from_port: int, to_port: int, kind: int) -> int:
    """Return the 8 bytes of a CUgraphEdgeData as one number."""
    return from_port | to_port << 8 | kind << 16
