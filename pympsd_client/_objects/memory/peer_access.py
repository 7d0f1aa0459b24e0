"""Peer access: which devices' kernels access this process's memory on which other devices, and for whom.

An executor maps all of the process's memory on another device, or none of it. So access that one context, pool or
mapping gives lets all kernels of that device reach all of that memory (docs/decisions/020-peer-access.md).
"""

from contextlib import suppress
from threading import RLock
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._connect.connection import Connection, VisibleDevice
from pympsd_client._objects.context import Context, contexts, usable_on, when_closed, when_opened
from pympsd_client._objects.process import process

Pair = tuple[int, int]
"""The ordinals of the device whose kernels have access, and of that whose memory it is."""


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
        self._mapped: set[Pair] = set()

    def _forget_old_connection(self) -> None:
        if self._connection is not process.connection:
            for table in (self._contexts, self._memory, self._mapped):
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

    def _update(self, pair: Pair) -> None:
        """Map, or unmap, one device's memory for another if that is to change; raise CudaError."""
        context, peer = (usable_on(ordinal) for ordinal in pair)
        if context is None:
            return
        if pair in self._mapped and not self._is_allowed(pair):
            self._mapped.discard(pair)
            context.call(operations.UNMAP_PEER, pair[1])
        elif pair not in self._mapped and peer is not None and self._is_allowed(pair):
            window = peer.query(operations.PUBLISH_WINDOW)
            context.call(operations.MAP_PEER, pair[1], *window)
            self._mapped.add(pair)

    def on_open(self, context: Context) -> None:
        """Map the memory that pools give access to, when the first context of a device opens."""
        with self._lock:
            self._forget_old_connection()
            for pair in {allowed for _, allowed in self._memory if context.device.ordinal in allowed}:
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
                    self._mapped.discard(pair)  # its executor unmaps everything
                elif is_last and (accessing := usable_on(pair[0])) is not None:
                    self._mapped.discard(pair)
                    with suppress(CudaError):
                        accessing.call(operations.UNMAP_PEER, ordinal)
                else:
                    with suppress(CudaError):
                        self._update(pair)


peer_access: Final = PeerAccess()
when_opened.append(peer_access.on_open)
when_closed.append(peer_access.on_close)
