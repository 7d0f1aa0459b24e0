"""Stream-ordered allocation, memory pools and their sharing (CUDA driver API, Stream Ordered Memory Allocator).

cuMemAllocAsync takes memory from the current pool of the stream's device, cuMemAllocFromPoolAsync from a given pool.
The address is valid for all later work of the stream. cuMemFreeAsync returns the memory to the pool when the stream
reaches this point; `_objects.pools` describes how a pool reuses and releases memory. In a capturing stream both calls
become nodes of the graph.

A pool is of one *kind*: pinned memory of a device or of a NUMA node of the host, or managed memory. Every device,
the host and its node have a default pool. A location's current pool is its default one until a program sets another.

Sharing: a pool that was created with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR has a secret of 128 bits. Its
descriptor is an empty memfd whose name contains the secret. A process that gets the descriptor imports the pool, and
then single allocations by 64 bytes of data (`shared_handles`). An imported pool cannot allocate.

Sizes are in bytes. Functions raise INVALID_VALUE for a handle that is not a pool's, and for unknown locations and
types.
"""

import os
import re
from collections.abc import Callable
from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_client._arguments import shared_handles
from pympsd_client._arguments.bindings import cuuint64_t, members
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.memory_structs import Access, Location, PoolProperties, accesses
from pympsd_client._arguments.shared_handles import SharedHandle
from pympsd_client._arguments.values import AttributeValue, read_value
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.memory.allocations import allocations
from pympsd_client._objects.memory.peer_access import Pair, is_possible, peer_access
from pympsd_client._objects.pools.imported import ImportedPool
from pympsd_client._objects.pools.pool import Block, Pool, PoolKind, pools
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import resolve

_ATTRIBUTES: Final = members("CUmemPool_attribute", "CU_MEMPOOL_ATTR_")
_LOCATIONS: Final = members("CUmemLocationType", "CU_MEM_LOCATION_TYPE_")
_TYPES: Final = members("CUmemAllocationType", "CU_MEM_ALLOCATION_TYPE_")
_ACCESSES: Final = members("CUmemAccess_flags", "CU_MEM_ACCESS_FLAGS_")
_DEVICE, _HOST, _NODE = (_LOCATIONS[name] for name in ("DEVICE", "HOST", "HOST_NUMA"))
_PINNED: Final = _TYPES["PINNED"]
_MANAGED: Final = _TYPES.get("MANAGED", 2)  # cuda-bindings 12 does not name it
_READ_AND_WRITE: Final = _ACCESSES["PROT_READWRITE"]
DESCRIPTOR: Final = members("CUmemAllocationHandleType", "CU_MEM_HANDLE_TYPE_")["POSIX_FILE_DESCRIPTOR"]


# --- allocation


def allocate(size: int, stream: int) -> int:
    """Return the address of new memory from the current pool of the stream's device, for the stream's later work.

    Return 0 for 0 bytes, as the driver does. Raise OUT_OF_MEMORY.
    """
    context, its_stream = resolve(stream)
    kind, device = kind_of_device(context.device)
    address = by.take_allocation(context, its_stream, size, kind) if (by := intercepted.by) is not None else 0
    return address or pools.current(kind, device).allocate(size, context, its_stream)


def allocate_from(size: int, pool: int, stream: int) -> int:
    """Return the address of new memory from a pool, for the stream's later work.

    Raise OUT_OF_MEMORY, or INVALID_VALUE for another process's pool.
    """
    context, its_stream = resolve(stream)
    source = pools.find(pool)
    by = intercepted.by
    address = by.take_allocation(context, its_stream, size, source.kind) if by is not None else 0
    return address or source.allocate(size, context, its_stream)


def free(address: int, stream: int) -> None:
    """Free an allocation of any kind when the stream reaches this point; 0 is ignored. Raise INVALID_VALUE."""
    context, its_stream = resolve(stream)
    context.usable()
    if address == 0:
        return
    if (by := intercepted.by) is not None and by.take_free(context, its_stream, address):
        return
    allocation = allocations.remove(address)
    if allocation is None:
        raise invalid_value(f"{address:#x} is not the start of an allocation of this process")
    try:
        allocation.free_in_order(context, its_stream)
    except BaseException:
        allocations.put_back(allocation)
        raise


# --- pools


def kind_of_device(device: VisibleDevice) -> tuple[PoolKind, VisibleDevice]:
    """Return the kind of a device's pools, and the device."""
    kind = _kinds.get(device.number)
    if kind is None:
        kind = _kinds[device.number] = PoolKind(_PINNED, Location(_DEVICE, device.number))
    return kind, device


_kinds: Final[dict[int, PoolKind]] = {}


def default_of(device: int) -> int:
    """Return the default pool of a device; raise INVALID_DEVICE."""
    return pools.default(*kind_of_device(process.device(device))).handle


def current_of(device: int) -> int:
    """Return the current pool of a device: the pool set with cuDeviceSetMemPool, else the default one."""
    return pools.current(*kind_of_device(process.device(device))).handle


def set_current(device: int, pool: int) -> None:
    """Make cuMemAllocAsync allocate from a pool of the device; raise INVALID_VALUE for a pool of another device."""
    pools.set_current(kind_of_device(process.device(device))[0], pools.find(pool))


def create(properties: PoolProperties | None) -> int:
    """Return a new pool of device, managed or host memory; raise INVALID_VALUE, NOT_SUPPORTED.

    Pools of device memory or of the host's NUMA node can be exported if they are created with a type of handle.
    """
    if properties is None:
        raise invalid_value("the properties of the pool are NULL")
    kind, device = kind_of(properties.location, properties.allocation_type, wrong=Result.ERROR_INVALID_VALUE)
    if properties.handle_types:
        _check_exported(properties.handle_types, kind, device)
    if properties.usage:
        raise not_supported(f"cuMemPoolCreate: usage must be 0, not {properties.usage:#x}")
    if properties.max_size >= 1 << 63 or (kind.is_managed and properties.max_size):
        raise invalid_value(f"maxSize must be below 2^63 bytes, and 0 for managed memory, not {properties.max_size}")
    return pools.add(Pool(kind, device, properties.max_size, bool(properties.handle_types))).handle


def _check_exported(handle_types: int, kind: PoolKind, device: VisibleDevice | None) -> None:
    if kind.location.type == _HOST and not kind.is_managed:
        raise invalid_value("pools of the host's memory can be exported only if they are at a NUMA node: _HOST_NUMA")
    devices = process.require().devices if device is None else (device,)
    can = min(device.properties.attributes.get("MEMPOOL_SUPPORTED_HANDLE_TYPES", 0) for device in devices)
    if kind.is_managed or handle_types & ~can:
        raise not_supported(
            "cuMemPoolCreate: pools to be exported must not be of managed memory, and their handles must be of the "
            f"types in the device attribute MEMPOOL_SUPPORTED_HANDLE_TYPES, which is {can}; others take "
            "CU_MEM_HANDLE_TYPE_NONE"
        )


def kind_of(
    location: Location, allocation_type: int, wrong: int = Result.ERROR_INVALID_DEVICE
) -> tuple[PoolKind, VisibleDevice | None]:
    """Return the kind of pool for a location and an allocation type, and the device that has its memory, or None.

    Raise INVALID_VALUE, NOT_SUPPORTED, and a CudaError with the code ``wrong`` for a device that is not there.
    """
    if allocation_type not in (_PINNED, _MANAGED):
        raise invalid_value(f"there is no allocation type {allocation_type}")
    is_managed = allocation_type == _MANAGED
    if location.type not in _LOCATIONS.values() or (location.type == _LOCATIONS["INVALID"] and not is_managed):
        raise invalid_value(f"there is no memory location of type {location.type}")
    device = process.device(location.id, wrong) if location.type == _DEVICE else None
    if device is not None and not is_managed:
        return kind_of_device(device)
    of_host = "HOST_NUMA_MEMORY_POOLS_SUPPORTED" if location.type == _NODE else "HOST_MEMORY_POOLS_SUPPORTED"
    attribute = "MANAGED_MEMORY" if is_managed else of_host
    if not all(device.properties.attributes.get(attribute) for device in process.require().devices):
        raise not_supported(
            "only pools of device memory are supported: CU_MEM_ALLOCATION_TYPE_PINNED at CU_MEM_LOCATION_TYPE_DEVICE "
            f"(device attribute {attribute} is 0)"
        )
    if not is_managed:
        if location.type not in (_HOST, _NODE):
            raise invalid_value(
                "pools of host memory must be at CU_MEM_LOCATION_TYPE_HOST, or _HOST_NUMA with a number"
            )
        check_node(location)
    return PoolKind(allocation_type, location, is_managed, not is_managed), None


def kind_of_node() -> PoolKind:
    """Return the kind of pool for memory of the host's NUMA node."""
    return PoolKind(_PINNED, Location(_NODE, node_of(process.device(0))), is_host=True)


def node_of(device: VisibleDevice) -> int:
    """Return a device's NUMA node of the host; raise INVALID_VALUE if the device does not name one.

    pympsd does not bind memory to the node; the system places a page at the node that first touches it.
    """
    node = device.properties.attributes.get("HOST_NUMA_ID", -1)
    if node < 0:
        raise invalid_value("the device does not name a NUMA node of the host (its attribute HOST_NUMA_ID is -1)")
    return node


def check_node(location: Location) -> None:
    """Raise INVALID_VALUE for a NUMA node that the host does not have."""
    if location.type == _NODE and location.id != (node := node_of(process.device(0))):
        raise invalid_value(f"the host has the NUMA node {node} (device attribute HOST_NUMA_ID), not {location.id}")


def destroy(pool: int) -> None:
    """Destroy a pool; its allocations stay until they are freed. Raise INVALID_VALUE for a default pool."""
    pools.destroy(pool)


def trim(pool: int, keep: int) -> None:
    """Give free memory of a pool back to the device, but keep at least ``minBytesToKeep`` reserved bytes."""
    pools.find(pool).trim(keep)


def default_at(location: Location | None, kind: int) -> int:
    """Return the default pool of a location; raise INVALID_VALUE, NOT_SUPPORTED."""
    return pools.default(*_resolve_place(location, kind)).handle


def current_at(location: Location | None, kind: int) -> int:
    """Return the current pool of a location; raise INVALID_VALUE, NOT_SUPPORTED."""
    return pools.current(*_resolve_place(location, kind)).handle


def set_current_at(location: Location | None, kind: int, pool: int) -> None:
    """Make a pool the current one of a location; raise INVALID_VALUE, NOT_SUPPORTED."""
    pools.set_current(_resolve_place(location, kind)[0], pools.find(pool))


def _resolve_place(location: Location | None, kind: int) -> tuple[PoolKind, VisibleDevice | None]:
    if location is None:
        raise invalid_value("the location is NULL")
    return kind_of(location, kind)


# --- attributes


@frozen
class _Attribute:
    get: Callable[[Pool], int]
    code: str = "i"
    set: Callable[[Pool, int], None] | None = None


def _flag(name: str) -> _Attribute:
    return _Attribute(lambda pool: int(getattr(pool, name)), set=lambda pool, value: setattr(pool, name, bool(value)))


def _make_reset(reset: Callable[[Pool], None]) -> Callable[[Pool, int], None]:
    def act(pool: Pool, value: int) -> None:
        if value:
            raise invalid_value(f"a high watermark can only be reset to 0, not {value}")
        reset(pool)

    return act


_VALUES: Final = {
    _ATTRIBUTES[name]: row
    for name, row in {
        "REUSE_FOLLOW_EVENT_DEPENDENCIES": _flag("follows_events"),
        "REUSE_ALLOW_OPPORTUNISTIC": _flag("is_opportunistic"),
        "REUSE_ALLOW_INTERNAL_DEPENDENCIES": _flag("adds_dependencies"),
        "RELEASE_THRESHOLD": _Attribute(
            lambda pool: pool.release_threshold, "Q", lambda pool, value: setattr(pool, "release_threshold", value)
        ),
        "RESERVED_MEM_CURRENT": _Attribute(lambda pool: pool.reserved, "Q"),
        "RESERVED_MEM_HIGH": _Attribute(lambda pool: pool.reserved_high, "Q", _make_reset(Pool.reset_reserved_high)),
        "USED_MEM_CURRENT": _Attribute(lambda pool: pool.used, "Q"),
        "USED_MEM_HIGH": _Attribute(lambda pool: pool.used_high, "Q", _make_reset(Pool.reset_used_high)),
        "ALLOCATION_TYPE": _Attribute(lambda pool: pool.kind.allocation_type),
        "EXPORT_HANDLE_TYPES": _Attribute(lambda pool: DESCRIPTOR if pool.secret else 0, "I"),
        "LOCATION_ID": _Attribute(lambda pool: pool.kind.location.id),
        "LOCATION_TYPE": _Attribute(lambda pool: pool.kind.location.type),
        "MAX_POOL_SIZE": _Attribute(lambda pool: pool.max_bytes, "Q"),
        "HW_DECOMPRESS_ENABLED": _Attribute(lambda pool: 0),
        "LOCALITY_DOMAIN_ID": _Attribute(lambda pool: -1),
    }.items()
    if name in _ATTRIBUTES  # older versions of cuda-bindings have fewer
}


def attribute(pool: int, requested: int) -> AttributeValue:
    """Return an attribute of a pool; raise INVALID_VALUE."""
    row, entry = _row(requested), pools.find(pool)
    return AttributeValue(row.get(entry), row.code, cuuint64_t if row.code == "Q" else None)


def set_attribute(pool: int, requested: int, value: Any) -> None:
    """Set an attribute of a pool; raise INVALID_VALUE for a read-only one, and for a watermark other than 0."""
    row, entry = _row(requested), pools.find(pool)
    if row.set is None:
        raise invalid_value(f"the pool attribute {requested} cannot be set")
    row.set(entry, read_value(value, row.code))


def _row(requested: int) -> _Attribute:
    row = _VALUES.get(requested)
    if row is None:
        raise invalid_value(f"there is no pool attribute {requested}")
    return row


def set_access(pool: int, argument: Any, count: int) -> None:
    """Change which devices can access the pool's memory. Its own device always can; others need peer access.

    Managed and host memory is accessible to the devices in whose contexts it is allocated. Raise INVALID_DEVICE for a
    device without peer access, NOT_SUPPORTED for read-only access, INVALID_VALUE.
    """
    entry, peers = pools.find(pool), dict[Pair, bool]()
    for description in accesses(argument, count):
        if description.location.type not in (_DEVICE, _HOST, _NODE) or description.flags not in _ACCESSES.values():
            raise invalid_value(f"access {description.flags:#x} from a location of type {description.location.type}")
        is_own = _is_accessible(entry, description.location)
        if is_own and description.flags != _READ_AND_WRITE:
            reason = "a pool's own location can always read and write; its access cannot be revoked"
            raise CudaError(Result.ERROR_INVALID_DEVICE, reason)
        if not is_own and (pair := _peers(entry, description)) is not None:
            peers[pair] = bool(description.flags)
    for pair, is_given in peers.items():
        peer_access.set_of(entry.handle, pair, is_given)


def _peers(pool: Pool, requested: Access) -> Pair | None:
    """Return the pair of devices for which access to a pool needs peer access; None if there is nothing to change.

    Raise CudaError if access is requested but not possible.
    """
    location = requested.location
    device = process.device(location.id) if location.type == _DEVICE else None
    if device is None or pool.device is None or not is_possible(device, pool.device):
        if requested.flags:
            reason = f"location {location.id} cannot access the pool's memory: there is no peer access"
            raise CudaError(
                Result.ERROR_INVALID_DEVICE, f"{reason} (cuDeviceCanAccessPeer answers 0); copy with cuMemcpyPeer"
            )
        return None
    if requested.flags not in (0, _READ_AND_WRITE):
        reason = "access must be CU_MEM_ACCESS_FLAGS_PROT_READWRITE or _NONE; read-only is not supported"
        raise not_supported(f"cuMemPoolSetAccess: {reason}")
    return device.ordinal, pool.device.ordinal


def _is_accessible(pool: Pool, location: Location) -> bool:
    if location.type != _DEVICE:
        return pool.kind.is_shared
    device = process.device(location.id)
    return pool.device is None or device.number == pool.device.number


def access(pool: int, location: Location | None) -> int:
    """Return a location's access to the pool's memory, a CUmemAccess_flags; raise INVALID_VALUE."""
    entry = pools.find(pool)
    if location is None or location.type not in (_DEVICE, _HOST, _NODE):
        raise invalid_value("the location must be a device or the host")
    if _is_accessible(entry, location):
        return _READ_AND_WRITE
    if location.type != _DEVICE or entry.device is None:
        return 0
    devices = process.device(location.id).ordinal, entry.device.ordinal
    return _READ_AND_WRITE if peer_access.is_of(entry.handle, devices) else 0


_EXPORT_DATA: Final = "CUmemPoolPtrExportData"
_HOST_NAME: Final = "host"
_FILE: Final = re.compile(rf"/memfd:pympsd-pool-([0-9a-f]{{32}})-([0-9]+|{_HOST_NAME}) \(deleted\)")


def export(pool: int, kind: int, flags: int) -> AttributeValue:
    """Return a new descriptor with which other processes import a pool; the caller closes it.

    Raise INVALID_VALUE for a pool that was not created with this type of handle.
    """
    entry = pools.find(pool)
    if flags or kind != DESCRIPTOR or not entry.secret:
        raise invalid_value(
            "the handle type must be CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (1), with which the "
            "pool must have been created, and the flags 0"
        )
    where = _HOST_NAME if entry.device is None else entry.device.ordinal
    return AttributeValue(os.memfd_create(f"pympsd-pool-{entry.secret:032x}-{where}"), "i")


def import_pool(fd: int, kind: int, flags: int) -> int:
    """Import another process's pool, which cannot allocate here. The caller keeps the descriptor.

    Raise INVALID_VALUE for a descriptor of anything else, and for a pool of a device that this process does not see.
    """
    if flags or kind != DESCRIPTOR:
        raise invalid_value(
            "a pool must be imported from CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (1) with flags 0, not "
            f"{kind} and {flags:#x}"
        )
    try:
        match = _FILE.fullmatch(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        match = None
    where = "" if match is None else match[2]
    device = next((device for device in process.require().devices if str(device.ordinal) == where), None)
    if match is None or (device is None and where != _HOST_NAME):
        raise invalid_value(f"{fd} is not a descriptor of a pool of a visible device or of the host")
    memory = kind_of_node() if device is None else kind_of_device(device)[0]
    return pools.add(ImportedPool(memory, device, int(match[1], 16))).handle


def export_pointer(address: int) -> bytes:
    """Return the data with which processes that have imported a pool import one of its allocations.

    Raise INVALID_VALUE unless the memory is from a pool that can be exported.
    """
    block = allocations.get(address)
    if not isinstance(block, Block) or not block.pool.secret:
        raise invalid_value(f"{address:#x} is not the start of an allocation from a pool that is exported")
    secret, offset = block.pool.export(block)
    handle = SharedHandle(secret, block.context.device.ordinal, offset, block.size, block.pool.secret)
    return shared_handles.pack(_EXPORT_DATA, handle)


def import_pointer(pool: int, argument: Any) -> int:
    """Map an allocation of an imported pool and return its address, which is freed like any other allocation.

    Raise INVALID_VALUE for an allocation of another pool or another server, or one that is freed.
    """
    entry = pools.find(pool)
    if not isinstance(entry, ImportedPool):
        raise invalid_value("the pool must be one that cuMemPoolImportFromShareableHandle returned")
    handle = shared_handles.unpack(_EXPORT_DATA, argument, invalid_value)
    return entry.import_block(handle)
