"""Peer access: which devices' kernels access this process's memory on which other devices, and for whom.

An executor maps all device memory of the process on another device, or none of it. So access that one context, pool
or mapping gives lets all kernels of that device reach all of that memory (docs/decisions/020-peer-access.md).

Page-locked and managed memory is accessible without such access: an executor maps such memory of another device while
the process has contexts on both. Functions that free it and wait, as cuMemFreeHost does, wait for the devices that
map it (`PeerAccess.wait_for_peers`).
"""

from contextlib import suppress
from threading import RLock
from typing import Final

from pympsd.vocabulary.device_properties import mapped_window_of, ordinal_of, window_of
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._connect.connection import Connection, VisibleDevice
from pympsd_client._objects.context import Context, contexts, this_thread, usable_on, when_closed, when_opened
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
        self._sharing: set[int] = set()
        """The ordinals of the devices that have page-locked or managed memory."""
        self._mapped: set[tuple[int, int]] = set()
        """The ordinals of devices, each with the first address of the other devices' memory in its executor."""

    def _forget_old_connection(self) -> None:
        if self._connection is not process.connection:
            for table in (self._contexts, self._memory, self._sharing, self._mapped):
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
                self._update(context.device.ordinal, window_of(peer.device.ordinal))
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
            self._update(context.device.ordinal, window_of(peer.device.ordinal))

    def set_of(self, memory: int, pair: Pair, allowed: bool) -> None:
        """Give kernels of a device access to a pool's or mapped memory, or take it; raise OUT_OF_MEMORY."""
        with self._lock:
            self._forget_old_connection()
            if allowed:
                self._memory.add((memory, pair))
            else:
                self._memory.discard((memory, pair))
            self._update(pair[0], window_of(pair[1]))

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

    def share(self, device: VisibleDevice) -> None:
        """Let the other devices' kernels access page-locked memory that a device has now; raise OUT_OF_MEMORY."""
        with self._lock:
            self._forget_old_connection()
            self._sharing.add(device.ordinal)
            for other in {context.device for context in tuple(contexts.values())}:
                if is_possible(other, device):
                    try:
                        self._update(other.ordinal, mapped_window_of(device.ordinal))
                    except CudaError as error:
                        if error.code == Result.ERROR_OUT_OF_MEMORY:
                            raise
                        # else one of the devices has failed, and its kernels with it

    def is_mapped(self, device: VisibleDevice, owner: VisibleDevice) -> bool:
        """Return whether a device's kernels can access the page-locked memory of another device."""
        return (device.ordinal, mapped_window_of(owner.ordinal)) in self._mapped

    def wait_for_peers(self, device: VisibleDevice) -> None:
        """Wait until the devices that map a device's page-locked memory have done their work, which may access it."""
        address = mapped_window_of(device.ordinal)
        if this_thread.in_host_function:
            return  # that work may wait for this function, which must free nothing; but finalizers do
        for context in tuple(contexts.values()):
            if (context.device.ordinal, address) in self._mapped:
                with suppress(CudaError):  # its kernels have ended, then
                    context.call(operations.SYNCHRONIZE_CONTEXT)

    def _is_allowed(self, device: int, address: int) -> bool:
        pair = device, ordinal_of(address)
        if address == mapped_window_of(pair[1]):
            return pair[1] in self._sharing
        pairs = ((context.device.ordinal, peer.device.ordinal) for context, peer in self._contexts)
        return pair in pairs or any(pair == allowed for _, allowed in self._memory)

    def _update(self, device: int, address: int) -> None:
        """Map, or unmap, another device's memory from an address on, if that is to change; raise CudaError."""
        context, peer, mapped = usable_on(device), usable_on(ordinal_of(address)), (device, address)
        if context is None:
            return
        if mapped in self._mapped and not self._is_allowed(*mapped):
            self._mapped.discard(mapped)
            context.call(operations.UNMAP_PEER, address)
        elif mapped not in self._mapped and peer is not None and self._is_allowed(*mapped):
            window = peer.query(operations.PUBLISH_WINDOW, address)
            context.call(operations.MAP_PEER, address, *window)
            self._mapped.add(mapped)

    def on_open(self, context: Context) -> None:
        """Map the memory that needs no access of contexts, when the first context of a device opens."""
        own = context.device
        with self._lock:
            self._forget_old_connection()
            expected = {(pair[0], window_of(pair[1])) for _, pair in self._memory if own.ordinal in pair}
            for other in {entry.device for entry in tuple(contexts.values()) if is_possible(own, entry.device)}:
                for device, owner in ((own, other), (other, own)):
                    if owner.ordinal in self._sharing:
                        expected.add((device.ordinal, mapped_window_of(owner.ordinal)))
            for device_and_address in expected:
                with suppress(CudaError):  # the context is there, though its kernels do not reach that memory
                    self._update(*device_and_address)

    def on_close(self, context: Context) -> None:
        """Drop the access of a context that closes, and to its memory."""
        ordinal = context.device.ordinal
        with self._lock:
            self._forget_old_connection()
            self._contexts = {pair for pair in self._contexts if context not in pair}
            is_last = not any(other.active and other.device.ordinal == ordinal for other in tuple(contexts.values()))
            for device, address in [entry for entry in self._mapped if ordinal in (entry[0], ordinal_of(entry[1]))]:
                if is_last and device == ordinal:
                    self._mapped.discard((device, address))  # its executor unmaps everything
                elif is_last and (accessing := usable_on(device)) is not None:
                    self._mapped.discard((device, address))
                    with suppress(CudaError):
                        accessing.call(operations.UNMAP_PEER, address)
                else:
                    with suppress(CudaError):
                        self._update(device, address)


peer_access: Final = PeerAccess()
when_opened.append(peer_access.on_open)
when_closed.append(peer_access.on_close)
