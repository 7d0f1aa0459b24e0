"""Pools of device and host memory between processes (CUDA driver API, Stream Ordered Memory Allocator)."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from pympsd_client._api.memory.pools import DESCRIPTOR, of_device, of_node
from pympsd_client._arguments import shared_handles
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.shared_handles import SharedHandle
from pympsd_client._arguments.values import AttributeValue
from pympsd_client._objects.memory.allocations import allocations
from pympsd_client._objects.pools.imported import ImportedPool
from pympsd_client._objects.pools.pool import Block, pools
from pympsd_client._objects.process import process

_EXPORT_DATA: Final = "CUmemPoolPtrExportData"
_HOST: Final = "host"
_FILE: Final = re.compile(rf"/memfd:pympsd-pool-([0-9a-f]{{32}})-([0-9]+|{_HOST}) \(deleted\)")


def export(pool: int, kind: int, flags: int) -> AttributeValue:
    """Return a new descriptor of a pool, which other processes import; the caller closes it.

    INVALID_VALUE for a pool that was not created to be exported so.
    """
    found = pools.find(pool)
    if flags or kind != DESCRIPTOR or not found.secret:
        raise invalid_value(
            "a pool is exported as it was created: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (1), flags 0"
        )
    where = _HOST if found.device is None else found.device.ordinal
    return AttributeValue(os.memfd_create(f"pympsd-pool-{found.secret:032x}-{where}"), "i")


def import_pool(fd: int, kind: int, flags: int) -> int:
    """Return the pool of another process, from which nothing is allocated here; the descriptor stays the caller's.

    INVALID_VALUE for a descriptor of anything else, and for a pool of a device that this process does not see.
    """
    if flags or kind != DESCRIPTOR:
        raise invalid_value(
            f"a pool is imported from CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (1), not {kind}; flags 0"
        )
    try:
        named = _FILE.fullmatch(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        named = None
    where = "" if named is None else named[2]
    device = next((one for one in process.require().devices if str(one.ordinal) == where), None)
    if named is None or (device is None and where != _HOST):
        raise invalid_value(f"{fd} is no descriptor of a pool of a visible device or of the host")
    memory = of_node() if device is None else of_device(device)[0]
    return pools.add(ImportedPool(memory, device, int(named[1], 16))).handle


def export_pointer(address: int) -> bytes:
    """Return the data by which other processes import an allocation from a pool that they have imported.

    INVALID_VALUE for what is not from a pool that was created to be exported.
    """
    found = allocations.get(address)
    if not isinstance(found, Block) or not found.pool.secret:
        raise invalid_value(f"{address:#x} is not the start of an allocation from a pool that is exported")
    secret, offset = found.pool.export(found)
    handle = SharedHandle(secret, found.context.device.ordinal, offset, found.size, found.pool.secret)
    return shared_handles.packed(_EXPORT_DATA, handle)


def import_pointer(pool: int, given: Any) -> int:
    """Return where an allocation of an imported pool is mapped; it is freed as other allocations are.

    INVALID_VALUE for an allocation of another pool, of another server, or that is freed.
    """
    found = pools.find(pool)
    if not isinstance(found, ImportedPool):
        raise invalid_value("allocations are imported into a pool that cuMemPoolImportFromShareableHandle returned")
    handle = shared_handles.unpacked(_EXPORT_DATA, given, invalid_value)
    return found.import_block(handle)
