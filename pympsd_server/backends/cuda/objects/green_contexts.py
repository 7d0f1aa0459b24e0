"""Partitions of the multiprocessors: green contexts over groups of SMs, made when first needed and then kept.

The device is split into groups in two ways: into pairs for limits, and into chunks for static partitions.

Making a partition waits for every running kernel (0.4 ms if none runs) and takes 6 MiB; a kept one is available
immediately. Source: docs/decisions/004-what-the-gpu-decided.md.

`SmGroups` chooses the groups for a context: unused ones if it can, otherwise those with the fewest users.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any, Final

from attrs import define, field, frozen

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.partitions import chunk_count, chunk_size
from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import Driver, cu
from pympsd_server.backends.cuda.memory.device_memory import DeviceMemory
from pympsd_server.backends.interface import BackendError


@define
class SmGroups:
    """The numbered groups of one split of a device, and the number of contexts that use each. The owner locks it."""

    count: int
    size: int
    """The number of multiprocessors in a group."""
    _users: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._users = [0] * self.count

    def count_groups(self, multiprocessors: int) -> int:
        """Return the number of groups for a limit, rounded up; 0 if the limit is 0 or includes all groups."""
        groups = -(-multiprocessors // self.size)
        return groups if 0 < groups < self.count else 0

    def take(
        self, count: int, reusable: Iterable[tuple[int, ...]] = (), among: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """Take groups for a context: the least used ones, or a ``reusable`` set if that is not used more.

        ``among``: the groups that the context may have; None for any.
        """
        choices = range(self.count) if among is None else among
        fewest = sorted(choices, key=lambda number: (self._users[number], number))[:count]
        chosen = tuple(sorted(fewest))
        for groups in reusable:
            if len(groups) == count and set(groups) <= set(choices) and self._use_of(groups) <= self._use_of(chosen):
                chosen = groups
                break
        for number in chosen:
            self._users[number] += 1
        return chosen

    def _use_of(self, groups: tuple[int, ...]) -> int:
        return sum(self._users[number] for number in groups)

    def give(self, groups: tuple[int, ...]) -> None:
        """Take back the groups of a context that has ended."""
        for number in groups:
            self._users[number] -= 1


def part_of(chunks: Sequence[int], multiprocessors: int, size: int, remainder: int) -> tuple[int, tuple[int, ...]]:
    """Return how many chunks of a static partition a limit needs, and the chunks to choose them from.

    A limit gets only chunks of ``size`` multiprocessors, so not the one numbered ``remainder``, which has a different
    size. A limit of 0, or of more than the other chunks have, gets all ``chunks``.
    """
    whole = tuple(chunk for chunk in chunks if chunk != remainder)
    count = -(-multiprocessors // size)
    return (count, whole) if 0 < count <= len(whole) else (len(chunks), tuple(chunks))


GROUP_SIZE: Final = 2
PARTITION_BYTES: Final = 6 << 20
"""The bytes of device memory that a green context takes (measured on an H200)."""
_BLOCKS_EACH: Final = 64
_IGNORE_COSCHEDULING: Final = 1
"""CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, whose enumeration cuda-bindings 13.1 renamed."""
_WHERE: Final = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry where(.param .u64 place) {
    .reg .b32 %r<3>; .reg .b64 %rd<7>; .reg .pred %p;
    ld.param.u64 %rd1, [place];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %smid;
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    mov.u64 %rd4, %clock64;
AGAIN:
    mov.u64 %rd5, %clock64; sub.s64 %rd6, %rd5, %rd4;
    setp.lt.s64 %p, %rd6, 20000;
    @%p bra AGAIN;
    ret;
}
\0"""
"""A kernel that writes the multiprocessor of each block, and keeps it busy so that the other blocks run elsewhere."""


@frozen
class Partition:
    """The multiprocessors of a context; ``green`` is None for all of them."""

    multiprocessors: tuple[int, ...]
    """The multiprocessors, by the ids that kernels read in %smid."""
    green: Any = None
    groups: tuple[int, ...] = ()
    split: Split | None = None
    """The split whose groups ``groups`` names; None for all multiprocessors."""


@define
class Split:
    """A device split into groups of multiprocessors, and the partitions that were made of them."""

    parts: Sequence[Any]
    groups: SmGroups
    kept: dict[tuple[int, ...], Partition] = field(factory=dict, init=False)


class Partitions:
    """The partitions of one device. Safe to use from several threads."""

    def __init__(self, driver: Driver, device: int, properties: DeviceProperties, memory: DeviceMemory) -> None:
        self._driver = driver
        self._device = device
        self._memory = memory
        self._lock = Lock()
        self._properties = properties
        self._all = Partition(tuple(range(properties.multiprocessors)))
        parts, _ = self._split(GROUP_SIZE, _IGNORE_COSCHEDULING)
        self._pairs = Split(parts, SmGroups(len(parts), GROUP_SIZE))
        self._chunks: Split | None = None
        self._where = driver.call(cu.cuModuleGetFunction, driver.call(cu.cuModuleLoadData, _WHERE), b"where")

    def take(self, multiprocessors: int, chunks: tuple[int, ...] = ()) -> Partition:
        """Return a partition of this many multiprocessors, rounded up to whole groups; raise BackendError.

        0 means all multiprocessors. With ``chunks``, the multiprocessors are those of a static partition.
        """
        with self._lock:
            if chunks:
                split = self._split_into_chunks()
                size, remainder = split.groups.size, chunk_count(self._properties)
                count, among = part_of(chunks, multiprocessors, size, remainder)
            else:
                split, among = self._pairs, None
                count = split.groups.count_groups(multiprocessors)
            if not count:
                return self._all
            groups = split.groups.take(count, split.kept, among)
            try:
                if groups not in split.kept:
                    split.kept[groups] = self._make(split, groups)
            except BaseException:
                split.groups.give(groups)
                raise
            return split.kept[groups]

    def give(self, partition: Partition) -> None:
        """Take back the partition of a context that has ended."""
        with self._lock:
            if partition.split is not None:
                partition.split.groups.give(partition.groups)

    def _split(self, size: int, flags: int) -> tuple[list[Any], Any]:
        """Return the groups of this size into which the driver divides the device, and the remainder."""
        call, kinds = self._driver.call, cu.CUdevResourceType
        resource = call(cu.cuDeviceGetDevResource, self._device, kinds.CU_DEV_RESOURCE_TYPE_SM)
        max_groups = self._properties.multiprocessors // size
        parts, count, remainder = call(cu.cuDevSmResourceSplitByCount, max_groups, resource, flags, size)
        return list(parts[: int(count)]), remainder

    def _split_into_chunks(self) -> Split:
        if self._chunks is None:
            size, count = chunk_size(self._properties), chunk_count(self._properties)
            parts, remainder = self._split(size, 0)
            if len(parts) != count or any(part.sm.smCount != size for part in parts):
                reason = f"the driver makes {len(parts)} chunks of this device's SMs, not {count} of {size} each"
                raise BackendError(Result.ERROR_INVALID_RESOURCE_CONFIGURATION, reason)
            self._chunks = Split([*parts, remainder], SmGroups(count + 1, size))
        return self._chunks

    def _make(self, split: Split, groups: tuple[int, ...]) -> Partition:
        call = self._driver.call
        parts = [split.parts[group] for group in groups]
        description = call(cu.cuDevResourceGenerateDesc, parts, len(parts))
        flag = cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        green = call(cu.cuGreenCtxCreate, description, self._device, int(flag))
        count = sum(part.sm.smCount for part in parts)
        return Partition(self._measure_multiprocessors(green, count), green, groups, split)

    def _measure_multiprocessors(self, green: Any, multiprocessors: int) -> tuple[int, ...]:
        """Measure the ids of a green context's multiprocessors, because the driver reports only their number."""
        call, blocks = self._driver.call, multiprocessors * _BLOCKS_EACH
        stream = call(cu.cuGreenCtxStreamCreate, green, int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING), 0)
        address, smids = self._memory.allocate(4 * blocks), bytearray(4 * blocks)
        try:
            parameters = ((address,), (ctypes.c_uint64,))
            call(cu.cuLaunchKernel, self._where, blocks, 1, 1, 32, 1, 1, 0, stream, parameters, 0)
            call(cu.cuStreamSynchronize, stream)
            call(cu.cuMemcpyDtoH, smids, address, len(smids))
        finally:
            self._memory.free(address)
            call(cu.cuStreamDestroy, stream)
        return tuple(sorted(set(struct.unpack(f"={blocks}I", smids))))
