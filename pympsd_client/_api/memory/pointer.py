"""Attributes of addresses (CUDA driver API, Unified Addressing).

An address has attributes if it is in an allocation of this process, its page-locked memory, or a module's variable.
"""

from collections.abc import Callable
from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import CUcontext, CUdeviceptr, CUmemoryPool, members
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.values import AttributeValue, read_numbers, read_value
from pympsd_client._objects.code.module import modules
from pympsd_client._objects.context import Context, current, this_thread
from pympsd_client._objects.memory.allocations import Allocation, allocations, is_shareable
from pympsd_client._objects.memory.managed import ManagedVariable
from pympsd_client._objects.memory.pinned import pinned
from pympsd_client._objects.memory.virtual import Mapping
from pympsd_client._objects.pools.imported import ImportedBlock
from pympsd_client._objects.pools.pool import Block

_ATTRIBUTES: Final = members("CUpointer_attribute", "CU_POINTER_ATTRIBUTE_")
_TYPES: Final = members("CUmemorytype", "CU_MEMORYTYPE_")
_DESCRIPTOR: Final = members("CUmemAllocationHandleType", "CU_MEM_HANDLE_TYPE_")["POSIX_FILE_DESCRIPTOR"]
_READ_AND_WRITE: Final = 3
"""CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE."""
_NO_DEVICE: Final = -2
"""CU_DEVICE_INVALID."""
_OF_NO_CONTEXT: Final = (Block, ImportedBlock, Mapping)


@frozen
class PointedMemory:
    """The memory that contains an address."""

    start: int
    size: int
    context: Context | None
    is_host: bool
    device_pointer: int
    """The address at which kernels access the same byte, or 0 if they cannot."""
    host_pointer: int
    """The address at which the program accesses the same byte, or 0 if it cannot."""
    buffer_id: int
    allocation: Allocation | None = None


def memory_at(address: int) -> PointedMemory | None:
    """Return the memory that contains an address, or None if the address has no attributes."""
    allocation = allocations.find_containing(address)
    if allocation is not None:
        reached = address if allocation.is_shared else 0
        start, size, context = allocation.handle, allocation.size, allocation.shown_context
        return PointedMemory(
            start, size, context, allocation.is_host, address, reached, allocation.buffer_id, allocation
        )
    host_address, reached = pinned.addresses_of(address)
    region = pinned.region_at(host_address)
    if region is not None:
        reached = host_address if region.is_mapped else reached
        return PointedMemory(
            region.address, region.size, region.context, True, reached, host_address, region.buffer_id
        )
    for module in modules.list_all():
        variable = module.variable_at(address)
        if variable is not None:
            return PointedMemory(variable.address, variable.size, module.context, False, address, 0, variable.address)
    return None


def attribute(requested: int, address: int) -> AttributeValue:
    """Return an attribute of an address; raise INVALID_VALUE if the address does not have it.

    A context must be current, except for memory that belongs to no context: of a pool, or mapped.
    """
    memory = memory_at(address)
    if this_thread.stack or memory is None or not isinstance(memory.allocation, _OF_NO_CONTEXT):
        current().usable()
    if requested not in _VALUES:
        raise _describe_unknown(requested)
    if memory is None:
        raise invalid_value(
            f"{address:#x} is not in memory that this process has allocated or registered, nor in a module's variable"
        )
    return _read(requested, memory, address)


def attributes(count: int, requested: Any, address: int) -> list[AttributeValue]:
    """Return several attributes of an address; those that the address does not have are NULL.

    No context has to be current, but the error of a current context is reported.
    """
    if this_thread.stack:
        current().usable()
    numbers = read_numbers(requested, count, "i")
    if count == 0 or count > len(numbers):
        raise invalid_value(f"numAttributes is {count}; there are {len(numbers)} attributes")
    memory = memory_at(address)
    values = []
    for number in numbers[:count]:
        if number not in _VALUES:
            raise _describe_unknown(number)
        try:
            values.append(_none(number) if memory is None else _read(number, memory, address))
        except CudaError:
            values.append(_none(number))
    return values


def set_attribute(value: Any, requested: int, address: int) -> None:
    """Set SYNC_MEMOPS of an allocation, with which its copies and fills return when they are done.

    Raise INVALID_VALUE for any other attribute or address.
    """
    current().usable()
    if requested != _ATTRIBUTES["SYNC_MEMOPS"]:
        if requested not in _ATTRIBUTES.values():
            raise _describe_unknown(requested)
        raise invalid_value("CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is the only attribute of an address that can be set")
    allocation = allocations.find_containing(address)
    if allocation is None:
        raise invalid_value(f"{address:#x} is not in an allocation of this process")
    allocation.synchronous = bool(read_value(value, "?"))
    allocations.any_synchronous |= allocation.synchronous


def address_range(address: int) -> tuple[int, int]:
    """Return the start and the size in bytes of the allocation that contains an address; raise NOT_FOUND."""
    current().usable()
    memory = memory_at(address)
    if memory is None:
        raise CudaError(Result.ERROR_NOT_FOUND, f"{address:#x} is not in an allocation of this process")
    return memory.start, memory.size


def _describe_unknown(requested: int) -> CudaError:
    return invalid_value(f"there is no pointer attribute {requested}")


def _none(requested: int) -> AttributeValue:
    """Return the value of an attribute that an address does not have."""
    if requested in (_ATTRIBUTES["DEVICE_POINTER"], _ATTRIBUTES["HOST_POINTER"], _ATTRIBUTES["P2P_TOKENS"]):
        _, code, type = _VALUES[requested]
        return AttributeValue((0, 0) if code == "2Q" else 0, code, type)
    return _read(requested, PointedMemory(0, 0, None, False, 0, 0, 0), 0)


def _read(requested: int, memory: PointedMemory, address: int) -> AttributeValue:
    value, code, type = _VALUES[requested]
    return AttributeValue(value(memory, address), code, type)


def _device_pointer(memory: PointedMemory, address: int) -> int:
    allocation, stack = memory.allocation, this_thread.stack
    is_reached = allocation is None or not stack or allocation.is_reached_from(stack[-1])
    if not memory.device_pointer or not is_reached:
        raise invalid_value(f"kernels of the current context cannot access the memory at {address:#x}")
    return memory.device_pointer


def _host_pointer(memory: PointedMemory, address: int) -> int:
    if not memory.host_pointer:
        raise invalid_value(f"{address:#x} is in device memory, which the host cannot access")
    return memory.host_pointer


def _tokens(memory: PointedMemory, address: int) -> int:
    raise invalid_value("there are no tokens for the nv-p2p.h interface of the kernel")


def _context(memory: PointedMemory, address: int) -> int:
    """Return the context; NULL for pool memory, mapped memory and managed variables, which belong to a device."""
    if memory.context is None or isinstance(memory.allocation, (ManagedVariable, *_OF_NO_CONTEXT)):
        return 0
    return memory.context.handle


def _handle_types(memory: PointedMemory, address: int) -> int:
    allocation = memory.allocation
    if isinstance(allocation, Mapping):
        return allocation.physical.properties.handle_types
    return _DESCRIPTOR if isinstance(allocation, Block) and allocation.pool.secret else 0


def _is_ipc_capable(memory: PointedMemory, address: int) -> int:
    if memory.allocation is None or memory.context is None or not is_shareable(memory.allocation):
        return 0
    return int(bool(memory.context.device.properties.attributes.get("IPC_EVENT_SUPPORTED")))


def _access(memory: PointedMemory, address: int) -> int:
    if isinstance(memory.allocation, Mapping):
        return max(memory.allocation.access.values(), default=0)
    return _READ_AND_WRITE if memory.size else 0


def _flag(name: str) -> Callable[[PointedMemory, int], int]:
    """Return a function that reads a property of an allocation, and returns 0 for other memory."""
    return lambda memory, _: int(getattr(memory.allocation, name, False))


_VALUES: Final[dict[int, tuple[Callable[[PointedMemory, int], int], str, Callable[[int], Any] | None]]] = {
    _ATTRIBUTES[name]: row
    for name, row in {
        "CONTEXT": (_context, "Q", CUcontext),
        "MEMORY_TYPE": (lambda memory, _: memory.size and _TYPES["HOST" if memory.is_host else "DEVICE"], "I", None),
        "DEVICE_POINTER": (_device_pointer, "Q", CUdeviceptr),
        "HOST_POINTER": (_host_pointer, "Q", None),
        "P2P_TOKENS": (_tokens, "2Q", None),
        "SYNC_MEMOPS": (_flag("synchronous"), "?", None),
        "BUFFER_ID": (lambda memory, _: memory.buffer_id, "Q", None),
        "IS_MANAGED": (_flag("is_managed"), "?", None),
        "DEVICE_ORDINAL": (
            lambda memory, _: _NO_DEVICE if memory.context is None else memory.context.device.number,
            "i",
            None,
        ),
        "IS_LEGACY_CUDA_IPC_CAPABLE": (_is_ipc_capable, "?", None),
        "RANGE_START_ADDR": (lambda memory, _: memory.start, "Q", CUdeviceptr),
        "RANGE_SIZE": (lambda memory, _: memory.size, "Q", None),
        "MAPPED": (lambda memory, _: int(memory.size > 0), "?", None),
        "ALLOWED_HANDLE_TYPES": (_handle_types, "Q", None),
        "IS_GPU_DIRECT_RDMA_CAPABLE": (lambda memory, _: 0, "I", None),
        "ACCESS_FLAGS": (_access, "I", None),
        "MEMPOOL_HANDLE": (
            lambda memory, _: memory.allocation.pool.handle if isinstance(memory.allocation, Block) else 0,
            "Q",
            CUmemoryPool,
        ),
        "MAPPING_SIZE": (lambda memory, _: memory.size, "Q", None),
        "MAPPING_BASE_ADDR": (lambda memory, _: memory.start, "Q", CUdeviceptr),
        "MEMORY_BLOCK_ID": (lambda memory, _: memory.buffer_id, "Q", None),
        "IS_HW_DECOMPRESS_CAPABLE": (lambda memory, _: 0, "?", None),
        "LOCALITY_DOMAIN_ORDINAL": (lambda memory, _: -1, "i", None),
    }.items()
    if name in _ATTRIBUTES  # older versions of cuda-bindings have fewer
}
"""For each attribute: the function that reads its value, the struct code of its C type, and a Python type or None."""
