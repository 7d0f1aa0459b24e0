"""Peer access: which devices' kernels access this process's memory on which other devices, and for whom.

An executor maps all of the process's memory on another device, or only the host memory that is shared with that
device's executor, or none of it. So access that one context, pool or mapping gives lets all kernels of that device
reach all of that memory (docs/decisions/020-peer-access.md). Page-locked and managed memory needs no access: kernels
of every device reach it as soon as the process has contexts on both.
"""

from contextlib import suppress
from enum import IntEnum
from threading import RLock
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._connect.connection import Connection, VisibleDevice
from pympsd_client._objects.context import Context, contexts, usable_on, when_closed, when_opened
from pympsd_client._objects.memory.shared_pages import when_shared
from pympsd_client._objects.process import process

Pair = tuple[int, int]
"""The ordinals of the device whose kernels have access, and of that whose memory it is."""


class _Reach(IntEnum):
    """What kernels of a device reach of this process's memory on another."""

    NOTHING = 0
    HOST_MEMORY = 1
    ALL = 2


_MAP: Final = {_Reach.HOST_MEMORY: operations.MAP_PEERS_HOST_MEMORY, _Reach.ALL: operations.MAP_PEER}


def is_possible(device: VisibleDevice, peer: VisibleDevice) -> bool:
    """Return whether kernels of a device can access memory of another."""
    return (
        device is not peer and device.properties.isolates_address_spaces and peer.properties.isolates_address_spaces
    )


class PeerAccess:
    """The peer access of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = RLock()
        self._connection: Connection | None = None
        self._contexts: set[tuple[Context, Context]] = set()
        """Pairs of contexts: the first has access to the memory of the second."""
        self._memory: set[tuple[int, Pair]] = set()
        """Memory pools (handle) and mapped memory (address), each with a pair that it gives access to."""
        self._hosts: set[int] = set()
        """The devices, by ordinal, whose executors share host memory with this process."""
        self._mapped: dict[Pair, _Reach] = {}

    def _forget_old_connection(self) -> None:
        if self._connection is not process.connection:
            for table in (self._contexts, self._memory, self._hosts, self._mapped):
                table.clear()
            self._connection = process.connection

    def enable(self, context: Context, peer: Context) -> None:
        """Give a context access to another context's memory (cuCtxEnablePeerAccess).

        PEER_ACCESS_ALREADY_ENABLED, and OUT_OF_MEMORY if the memory cannot be mapped; then nothing has changed.
        """
        with self._lock:
            self._forget_old_connection()
            if (context, peer) in self._contexts:
                reason = "the current context has access to that one already"
                raise CudaError(Result.ERROR_PEER_ACCESS_ALREADY_ENABLED, reason)
            self._contexts.add((context, peer))
            try:
                self._update((context.device.ordinal, peer.device.ordinal))
            except CudaError:
                self._contexts.discard((context, peer))
                raise

    def disable(self, context: Context, peer: Context) -> None:
        """Undo `enable`; raise PEER_ACCESS_NOT_ENABLED."""
        with self._lock:
            self._forget_old_connection()
            if (context, peer) not in self._contexts:
                reason = "the current context has no access to that one: cuCtxEnablePeerAccess was not called"
                raise CudaError(Result.ERROR_PEER_ACCESS_NOT_ENABLED, reason)
            self._contexts.discard((context, peer))
            self._update((context.device.ordinal, peer.device.ordinal))

    def set_of(self, memory: int, pair: Pair, allowed: bool) -> None:
        """Give kernels of a device access to a pool's or mapped memory, or take it; raise OUT_OF_MEMORY."""
        with self._lock:
            self._forget_old_connection()
            if allowed:
                self._memory.add((memory, pair))
            else:
                self._memory.discard((memory, pair))
            self._update(pair)

    def is_of(self, memory: int, pair: Pair) -> bool:
        """Return whether a pool's or mapped memory can be accessed so."""
        with self._lock:
            self._forget_old_connection()
            return (memory, pair) in self._memory

    def drop(self, memory: int) -> None:
        """Drop the access to freed memory."""
        with self._lock, suppress(CudaError):
            for entry in [entry for entry in self._memory if entry[0] == memory]:
                self.set_of(*entry, False)

    def _is_allowed(self, pair: Pair) -> bool:
        pairs = ((context.device.ordinal, peer.device.ordinal) for context, peer in self._contexts)
        return pair in pairs or any(pair == allowed for _, allowed in self._memory)

    def _find_reach(self, context: Context, pair: Pair) -> _Reach:
        """Return what kernels of a context on the first device of a pair are to reach on the second."""
        if self._is_allowed(pair):
            return _Reach.ALL
        shares_memory = pair[1] in self._hosts and context.device.properties.isolates_address_spaces
        return _Reach.HOST_MEMORY if shares_memory else _Reach.NOTHING

    def _update(self, pair: Pair) -> None:
        """Map, or unmap, one device's memory for another if that is to change; raise CudaError."""
        context, peer = (usable_on(ordinal) for ordinal in pair)
        if context is None:
            return
        reach = self._find_reach(context, pair)
        if reach == self._mapped.get(pair, _Reach.NOTHING):
            return
        if reach is _Reach.NOTHING:
            del self._mapped[pair]
            context.call(operations.UNMAP_PEER, pair[1])
        elif peer is not None:
            window = peer.query(operations.PUBLISH_WINDOW)
            context.call(_MAP[reach], pair[1], *window)
            self._mapped[pair] = reach

    def on_open(self, context: Context) -> None:
        """Map the memory that pools give access to, and host memory, when the first context of a device opens."""
        with self._lock:
            self._forget_old_connection()
            ordinal = context.device.ordinal
            self._update_all({allowed for _, allowed in self._memory if ordinal in allowed})
            self._update_all({(ordinal, host) for host in self._hosts} | self._pairs_to(ordinal))

    def on_share(self, context: Context) -> None:
        """Let kernels of the other devices reach the host memory that the executor of a context shares now."""
        ordinal = context.device.ordinal
        with self._lock:
            self._forget_old_connection()
            if ordinal not in self._hosts and context.device.properties.isolates_address_spaces:
                self._hosts.add(ordinal)
                self._update_all(self._pairs_to(ordinal))

    def _pairs_to(self, ordinal: int) -> set[Pair]:
        """Return the pairs of each device on which there is a context with a device that shares host memory."""
        if ordinal not in self._hosts:
            return set()
        return {(context.device.ordinal, ordinal) for context in tuple(contexts.values())}

    def _update_all(self, pairs: set[Pair]) -> None:
        for pair in pairs:
            if pair[0] != pair[1]:
                with suppress(CudaError):  # the context is there, though its kernels do not reach that memory
                    self._update(pair)

    def on_close(self, context: Context) -> None:
        """Drop the access of a context that closes, and to its memory."""
        ordinal = context.device.ordinal
        with self._lock:
            self._forget_old_connection()
            self._contexts = {pair for pair in self._contexts if context not in pair}
            is_last = not any(other.active and other.device.ordinal == ordinal for other in tuple(contexts.values()))
            for pair in [pair for pair in self._mapped if ordinal in pair]:
                if is_last and pair[0] == ordinal:
                    del self._mapped[pair]  # its executor unmaps everything
                elif is_last and (accessing := usable_on(pair[0])) is not None:
                    del self._mapped[pair]
                    with suppress(CudaError):
                        accessing.call(operations.UNMAP_PEER, ordinal)
                else:
                    with suppress(CudaError):
                        self._update(pair)


peer_access: Final = PeerAccess()
when_opened.append(peer_access.on_open)
when_closed.append(peer_access.on_close)
when_shared.append(peer_access.on_share)
