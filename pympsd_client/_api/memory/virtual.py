"""Virtual memory management (CUDA driver API): reserving addresses, and mapping physical memory there.

On a device without it (attribute VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0) all functions raise NOT_SUPPORTED. Host
memory belongs to a context, as device memory does, and is mapped at addresses of that context's device.
"""

from typing import Any, Final

from pympsd.vocabulary.device_properties import MAPPED_OFFSET, MAPPING_GRANULE, VIRTUAL_OFFSET
from pympsd.vocabulary.results import Result
from pympsd.wire.records import MEMORY_OF_HOST, MEMORY_SHAREABLE
from pympsd_client._api.memory.pools import check_node, node_of
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, check_no_flags, invalid_value, not_supported
from pympsd_client._arguments.memory_structs import AllocationProperties, Location, accesses
from pympsd_client._arguments.values import AttributeValue
from pympsd_client._command_stream import operations
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.context import Context, context_on, this_thread
from pympsd_client._objects.memory.imports import secret_of_file
from pympsd_client._objects.memory.peer_access import is_possible
from pympsd_client._objects.memory.shared_pages import export_memory
from pympsd_client._objects.memory.virtual import Physical, virtual_memory
from pympsd_client._objects.own_contexts import own_contexts
from pympsd_client._objects.process import process

_LOCATIONS: Final = members("CUmemLocationType", "CU_MEM_LOCATION_TYPE_")
_TYPES: Final = members("CUmemAllocationType", "CU_MEM_ALLOCATION_TYPE_")
_HANDLE_TYPES: Final = members("CUmemAllocationHandleType", "CU_MEM_HANDLE_TYPE_")
_ACCESSES: Final = members("CUmemAccess_flags", "CU_MEM_ACCESS_FLAGS_")
_GRANULARITIES: Final = members("CUmemAllocationGranularity_flags", "CU_MEM_ALLOC_GRANULARITY_")
_DEVICE, _HOST, _NODE = (_LOCATIONS[name] for name in ("DEVICE", "HOST", "HOST_NUMA"))
_DESCRIPTOR: Final = _HANDLE_TYPES["POSIX_FILE_DESCRIPTOR"]
_READ_AND_WRITE: Final = _ACCESSES["PROT_READWRITE"]
_ROOM: Final = MAPPED_OFFSET - VIRTUAL_OFFSET


def _require_support(device: VisibleDevice, name: str) -> VisibleDevice:
    if not device.properties.attributes.get("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
        raise not_supported(
            f"{name}: virtual memory management is not supported (device attribute "
            "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0). Use cuMemAlloc"
        )
    return device


def _find_own_device(name: str) -> VisibleDevice:
    """Return the device of the current context, or the first device if no context is current."""
    stack = this_thread.stack
    return _require_support(stack[-1].device if stack else process.device(0), name)


def _check_granules(size: int) -> None:
    if size == 0 or size % MAPPING_GRANULE:
        raise invalid_value(f"size must be a multiple of the granularity, {MAPPING_GRANULE} bytes, not {size}")


# --- addresses


def reserve(size: int, alignment: int, requested: int, flags: int) -> int:
    """Reserve addresses of the current context's device, or of the first device; return the first address.

    ``alignment``: a power of 2, or 0. ``requested``: the preferred first address, used if the range is free there.
    Raise INVALID_VALUE, OUT_OF_MEMORY.
    """
    device = _find_own_device("cuMemAddressReserve")
    _check_granules(size)
    check_no_flags("cuMemAddressReserve", flags)
    if alignment & (alignment - 1):
        raise invalid_value(f"the alignment must be a power of 2, not {alignment}")
    if size > _ROOM or alignment > _ROOM:
        raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"a process can reserve at most {_ROOM} addresses of a device")
    return virtual_memory.reserve(device.ordinal, size, max(alignment, MAPPING_GRANULE), requested)


def free_addresses(address: int, size: int) -> None:
    """Free addresses that cuMemAddressReserve returned.

    Raise INVALID_VALUE for anything else, and if memory is mapped there.
    """
    _find_own_device("cuMemAddressFree")
    virtual_memory.free_addresses(address, size)


# --- physical memory


def granularity(properties: AllocationProperties | None, option: int) -> int:
    """Return the granularity of all sizes and addresses in bytes; raise INVALID_VALUE, NOT_SUPPORTED."""
    _check(properties, "cuMemGetAllocationGranularity")
    if option not in _GRANULARITIES.values():
        raise invalid_value(f"there is no granularity {option}")
    return MAPPING_GRANULE


def _check(properties: AllocationProperties | None, name: str) -> VisibleDevice:
    """Return the device for memory with these properties; raise INVALID_VALUE, NOT_SUPPORTED."""
    if properties is None:
        raise invalid_value("the properties of the memory are NULL")
    location = properties.location
    if properties.type not in _TYPES.values() or properties.type == _TYPES["INVALID"]:
        raise invalid_value(f"there is no allocation type {properties.type}")
    if location.type not in _LOCATIONS.values() or location.type == _LOCATIONS["INVALID"]:
        raise invalid_value(f"there is no memory location of type {location.type}")
    if location.type == _LOCATIONS["HOST_NUMA_CURRENT"]:
        raise invalid_value("memory at a node of the host needs its number: use CU_MEM_LOCATION_TYPE_HOST_NUMA")
    if properties.type != _TYPES["PINNED"] or location.type not in (_DEVICE, _HOST, _NODE):
        raise not_supported(
            f"{name}: memory to be mapped must be CU_MEM_ALLOCATION_TYPE_PINNED at CU_MEM_LOCATION_TYPE_DEVICE, "
            "_HOST or _HOST_NUMA"
        )
    if location.type == _HOST and properties.handle_types:
        raise invalid_value("memory at CU_MEM_LOCATION_TYPE_HOST cannot be exported; at a node (_HOST_NUMA) it can")
    if properties.handle_types not in (0, _DESCRIPTOR):
        raise not_supported(
            f"{name}: memory can be exported as CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR only, not as "
            f"{properties.handle_types:#x}"
        )
    if properties.compression or properties.usage:
        raise not_supported(f"{name}: allocFlags must be 0: no compression, no other usage")
    if location.type == _DEVICE:
        return _require_support(process.device(location.id), name)
    device = _find_own_device(name)
    check_node(location)
    if not device.properties.attributes.get("HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
        raise not_supported(f"{name}: device {device.number} cannot map memory of the host")
    return device


def create(size: int, properties: AllocationProperties | None, flags: int) -> int:
    """Return a handle of new memory, which all contexts of its device can map.

    The memory belongs to a context on the device, preferably the current one, and is freed with it. Raise
    OUT_OF_MEMORY, INVALID_VALUE or NOT_SUPPORTED.
    """
    device = _check(properties, "cuMemCreate")
    assert properties is not None
    _check_granules(size)
    check_no_flags("cuMemCreate", flags)
    is_host = properties.location.type != _DEVICE
    if size > (_ROOM if is_host else device.properties.memory_bytes):
        raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"{size} bytes are more than the device has")
    flags = (MEMORY_SHAREABLE if properties.handle_types else 0) | (MEMORY_OF_HOST if is_host else 0)
    with own_contexts.use(device) as context:
        handle = context.allocate_handle()
        context.call(operations.CREATE_MEMORY, handle, size, flags)
        return virtual_memory.add(Physical(handle, context, size, properties, is_host))


def release(handle: int) -> None:
    """Release a handle; the memory is freed when it is not mapped any more. Raise INVALID_VALUE."""
    _find_own_device("cuMemRelease")
    virtual_memory.release(handle)


def retain(address: int) -> int:
    """Return the handle of the memory mapped at an address, which must be released once more; raise INVALID_VALUE."""
    _find_own_device("cuMemRetainAllocationHandle")
    return virtual_memory.retain_at(address)


def properties_of(handle: int) -> AllocationProperties:
    """Return the properties with which memory was created; raise INVALID_VALUE."""
    _find_own_device("cuMemGetAllocationPropertiesFromHandle")
    return virtual_memory.find(handle).properties


# --- mapping


def map_memory(address: int, size: int, offset: int, handle: int, flags: int) -> None:
    """Map memory at reserved addresses; kernels can access it after cuMemSetAccess. Raise INVALID_VALUE."""
    _find_own_device("cuMemMap")
    physical = virtual_memory.find(handle)
    _check_granules(size)
    if offset or flags:
        raise invalid_value(f"offset and flags of cuMemMap must be 0, not {offset} and {flags}")
    virtual_memory.map(physical, address, size)


def unmap(address: int, size: int) -> None:
    """Unmap the memory in a range of reserved addresses; kernels that access it fault. Raise INVALID_VALUE."""
    _find_own_device("cuMemUnmap")
    _check_granules(size)
    virtual_memory.unmap(address, size)


def set_access(address: int, size: int, argument: Any, count: int) -> None:
    """Give devices, and for host memory the program, access to whole mappings, to read and write; or revoke it.

    Raise INVALID_VALUE, also for the program's access to device memory; INVALID_DEVICE for a device without peer
    access; NOT_SUPPORTED for read-only access; OUT_OF_MEMORY if this process has mapped something else there.
    """
    _find_own_device("cuMemSetAccess")
    _check_granules(size)
    descriptions = accesses(argument, count)
    if not descriptions:
        raise invalid_value("count is 0; give at least one description of an access")
    context = virtual_memory.find_mapping(address).context
    for description in descriptions:
        _check_access(context, description.location, description.flags)
    for description in descriptions:
        if description.location.type != _DEVICE:
            virtual_memory.set_host_access(address, size, description.flags)
        else:
            virtual_memory.set_access(
                address, size, process.device(description.location.id).ordinal, description.flags
            )


def _check_access(context: Context, location: Location, flags: int) -> None:
    """Raise CudaError unless a location can have the access ``flags`` to memory that is mapped in a context."""
    if flags not in _ACCESSES.values() or location.type not in _LOCATIONS.values():
        raise invalid_value(f"access {flags:#x} from a location of type {location.type}")
    if location.type not in (_DEVICE, _HOST, _NODE):
        raise invalid_value(f"a location of type {location.type} cannot access mapped memory")
    device = context.device
    if location.type == _DEVICE:
        device = process.device(location.id, wrong=Result.ERROR_INVALID_VALUE)
    if device.ordinal != context.device.ordinal and flags and not is_possible(device, context.device):
        raise CudaError(
            Result.ERROR_INVALID_DEVICE,
            f"device {device.number} has no peer access to device {context.device.number} (cuDeviceCanAccessPeer "
            "answers 0); copy with cuMemcpyPeer",
        )
    if flags not in (0, _READ_AND_WRITE):
        raise not_supported(
            "cuMemSetAccess: access must be CU_MEM_ACCESS_FLAGS_PROT_READWRITE or _NONE; read-only is not supported"
        )


def access(location: Location | None, address: int) -> int:
    """Return a location's access to mapped memory, a CUmemAccess_flags; raise INVALID_VALUE."""
    _find_own_device("cuMemGetAccess")
    if location is None or location.type not in (_DEVICE, _HOST, _NODE):
        raise invalid_value("the location must be a device or the host")
    mapping = virtual_memory.find_mapping(address)
    if location.type != _DEVICE:
        return mapping.host_access
    return mapping.access.get(process.device(location.id).ordinal, 0)


# --- sharing


def export(handle: int, kind: int, flags: int) -> AttributeValue:
    """Return a new descriptor with which another client of the device imports memory; the caller closes it.

    Raise INVALID_VALUE for memory that was not created with this type of handle.
    """
    _find_own_device("cuMemExportToShareableHandle")
    physical = virtual_memory.find(handle)
    if flags or kind != _DESCRIPTOR or physical.properties.handle_types != _DESCRIPTOR:
        raise invalid_value(
            "the handle type must be CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (1), with which the "
            "memory must have been created, and the flags 0"
        )
    return AttributeValue(export_memory(physical.context, physical.handle), "i")


def import_descriptor(fd: int, kind: int) -> int:
    """Import memory that another process has exported, and return its handle. The caller keeps the descriptor.

    Raise INVALID_VALUE for a descriptor of anything else, or if the memory has been freed.
    """
    device = _find_own_device("cuMemImportFromShareableHandle")
    if kind != _DESCRIPTOR:
        raise invalid_value(f"memory must be imported from CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (1), not {kind}")
    secret = secret_of_file(fd)
    if secret is None:
        raise invalid_value(f"{fd} is not a descriptor of memory that cuMemExportToShareableHandle returned")
    context = context_on(device.ordinal)
    handle = context.allocate_handle()
    answer = context.call(operations.IMPORT_MEMORY, handle, secret >> 64, secret & ((1 << 64) - 1))
    size, is_of_host = operations.IMPORT_MEMORY.answer.unpack_from(answer)
    location = Location(_NODE, node_of(device)) if is_of_host else Location(_DEVICE, device.number)
    properties = AllocationProperties(_TYPES["PINNED"], _DESCRIPTOR, location, 0, 0, 0)
    return virtual_memory.add(Physical(handle, context, int(size), properties, bool(is_of_host)))
