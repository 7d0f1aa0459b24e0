"""Peer access: which devices' kernels can access this process's memory on other devices, and what requires it.

An executor maps all device memory of the process on another device, or none of it. So the access that one context,
pool or mapping gives lets all kernels of that device reach all of that memory (docs/decisions/020-peer-access.md).

Page-locked and managed memory does not need such access: an executor maps another device's memory of these kinds
while the process has contexts on both. Functions that free it and wait, such as cuMemFreeHost, also wait for the
devices that map it (`PeerAccess.wait_for_peers`).
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
"""The ordinals of the device whose kernels have access, and of the device whose memory they access."""


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
        """Pools (by handle) and mappings (by address) with access, each with the pair of devices."""
        self._sharing: set[int] = set()
        """The ordinals of the devices that have page-locked or managed memory."""
        self._mapped: set[tuple[int, int]] = set()
        """Ordinals of devices, each with the first address of another device's memory that its executor maps."""

    @contextmanager
    def _of_connection(self) -> Iterator[None]:
        """Hold the lock; first forget the access of an earlier connection."""
        with self._lock:
            if self._connection is not process.connection:
                for table in (self._contexts, self._memory, self._sharing, self._mapped):
                    table.clear()
                self._connection = process.connection
            yield

    def enable(self, context: Context, peer: Context) -> None:
        """Give a context access to another context's memory (cuCtxEnablePeerAccess).

        Raise PEER_ACCESS_ALREADY_ENABLED, or OUT_OF_MEMORY if the memory cannot be mapped; then nothing has changed.
        """
        with self._of_connection():
            if (context, peer) in self._contexts:
                reason = "the current context already has access to the other"
                raise CudaError(Result.ERROR_PEER_ACCESS_ALREADY_ENABLED, reason)
            self._contexts.add((context, peer))
            try:
                self._update(context.device.ordinal, window_of(peer.device.ordinal))
            except CudaError:
                self._contexts.discard((context, peer))
                raise

    def disable(self, context: Context, peer: Context) -> None:
        """Undo `enable`; raise PEER_ACCESS_NOT_ENABLED."""
        with self._of_connection():
            if (context, peer) not in self._contexts:
                reason = "the current context has no access to the other: cuCtxEnablePeerAccess was not called"
                raise CudaError(Result.ERROR_PEER_ACCESS_NOT_ENABLED, reason)
            self._contexts.discard((context, peer))
            self._update(context.device.ordinal, window_of(peer.device.ordinal))

    def is_enabled(self, context: Context, peer: Context) -> bool:
        """Return whether a context has access to another context's memory."""
        with self._of_connection():
            return (context, peer) in self._contexts

    def set_of(self, memory: int, pair: Pair, allowed: bool) -> None:
        """Give a device's kernels access to a pool or a mapping, or revoke it; raise OUT_OF_MEMORY."""
        with self._of_connection():
            if allowed:
                self._memory.add((memory, pair))
            else:
                self._memory.discard((memory, pair))
            self._update(pair[0], window_of(pair[1]))

    def is_of(self, memory: int, pair: Pair) -> bool:
        """Return whether a device's kernels have access to a pool or a mapping."""
        with self._of_connection():
            return (memory, pair) in self._memory

    def drop(self, memory: int) -> None:
        """Revoke all access to a destroyed pool or an unmapped mapping."""
        with self._lock, suppress(CudaError):
            for entry in [entry for entry in self._memory if entry[0] == memory]:
                self.set_of(*entry, False)

    def share(self, device: VisibleDevice) -> None:
        """Let the other devices' kernels access a device's page-locked memory from now on; raise OUT_OF_MEMORY."""
        with self._of_connection():
            self._sharing.add(device.ordinal)
            for other in {context.device for context in tuple(contexts.values())}:
                if is_possible(other, device):
                    self._update_unless_failed(other.ordinal, mapped_window_of(device.ordinal))

    def is_mapped(self, device: VisibleDevice, owner: VisibleDevice) -> bool:
        """Return whether a device's kernels can access the page-locked memory of another device."""
        return (device.ordinal, mapped_window_of(owner.ordinal)) in self._mapped

    def wait_for_peers(self, device: VisibleDevice) -> None:
        """Wait for the work of all devices that map a device's page-locked memory."""
        address = mapped_window_of(device.ordinal)
        if this_thread.in_host_function:
            return  # called by a finalizer; waiting would deadlock if that work waits for the host function
        for context in tuple(contexts.values()):
            if (context.device.ordinal, address) in self._mapped:
                with suppress(CudaError):  # on an error its kernels have ended
                    context.call(operations.SYNCHRONIZE_CONTEXT)

    def _is_allowed(self, device: int, address: int) -> bool:
        pair = device, ordinal_of(address)
        if address == mapped_window_of(pair[1]):
            return pair[1] in self._sharing
        pairs = ((context.device.ordinal, peer.device.ordinal) for context, peer in self._contexts)
        return pair in pairs or any(pair == allowed for _, allowed in self._memory)

    def _update(self, device: int, address: int) -> None:
        """Map or unmap another device's memory, which begins at ``address``, if access changes; raise CudaError."""
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

    def _update_unless_failed(self, device: int, address: int) -> None:
        """Do as `_update`, but raise only OUT_OF_MEMORY, after which kernels would fault in the memory.

        After other errors one of the devices has failed, and its kernels have ended.
        """
        try:
            self._update(device, address)
        except CudaError as error:
            if error.code == Result.ERROR_OUT_OF_MEMORY:
                raise

    def on_open(self, context: Context) -> None:
        """Map the memory that does not need cuCtxEnablePeerAccess, when a context opens; raise OUT_OF_MEMORY."""
        own = context.device
        with self._of_connection():
            expected = {(pair[0], window_of(pair[1])) for _, pair in self._memory if own.ordinal in pair}
            for other in {entry.device for entry in tuple(contexts.values()) if is_possible(own, entry.device)}:
                for device, owner in ((own, other), (other, own)):
                    if owner.ordinal in self._sharing:
                        expected.add((device.ordinal, mapped_window_of(owner.ordinal)))
            for device_and_address in expected:
                self._update_unless_failed(*device_and_address)

    def on_close(self, context: Context) -> None:
        """Revoke all access of a closing context and to its memory."""
        ordinal = context.device.ordinal
        with self._of_connection():
            self._contexts = {pair for pair in self._contexts if context not in pair}
            is_last = not any(other.active and other.device.ordinal == ordinal for other in tuple(contexts.values()))
            for device, address in [entry for entry in self._mapped if ordinal in (entry[0], ordinal_of(entry[1]))]:
                if is_last and device == ordinal:
                    self._mapped.discard((device, address))  # its executor itself unmaps everything
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
