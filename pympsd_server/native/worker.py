"""One client's native worker, as Python holds it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref
from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError
from pympsd_server.native.access import NativeAccess
from pympsd_server.native.library import library
from pympsd_server.native.states import ContextState, DriverCalls, KernelRow, StreamState

_NO_CALLS: Final = ctypes.POINTER(DriverCalls)()
_lost: Final[list[object]] = []
"""What a call of the driver that does not return may still use."""


@frozen
class Taken:
    """A record for Python: ``code`` is the CUresult that the driver refused it with, 0 where it was not tried."""

    record: bytes
    code: int


class NativeWorker:
    """Functions of src/worker.h, whose comments say from which thread each may be called.

    ``address``: where the ring begins in this process; ``spin_ns``: how long it looks for records before it sleeps.
    """

    def __init__(self, socket: int, address: int, access: NativeAccess | None, spin_ns: int) -> None:
        self._library = library()
        pointer = ctypes.pointer(access.calls) if access is not None else _NO_CALLS
        self._worker: Any = self._library.worker_open(socket, address, pointer, spin_ns)
        if not self._worker:
            raise BackendError(Result.ERROR_OPERATING_SYSTEM, "no memory for the client's worker")
        self._record, self._length, self._code = ctypes.c_void_p(), ctypes.c_uint32(), ctypes.c_int()
        self._access = access
        self._states: dict[int, ContextState] = {}
        self._things: dict[tuple[int, type, int], object] = {}
        """By serial, kind and handle: what the library has pointers to stays as long as it may look at it."""

    def take(self) -> Taken | None:
        """Work until a record is Python's; return it, None at the end."""
        if not self._library.worker_take(self._worker, byref(self._record), byref(self._length), byref(self._code)):
            return None
        return Taken(ctypes.string_at(self._record.value or 0, self._length.value), self._code.value)

    def refused(self, code: int) -> BackendError:
        """Return the error that a taken record's code stands for."""
        assert self._access is not None  # nothing else has codes
        return self._access.refused(code)

    def send(self, data: bytes) -> int:
        """Write answers without waiting; return how many bytes went, or a negative errno."""
        return int(self._library.worker_send(self._worker, data, len(data)))

    def send_by(self, write: Callable[[], int], count: int) -> int:
        """Have ``write`` write ``count`` bytes of answers without waiting; return how many it says went.

        Until all did, be it only after more calls of ``send``, the worker leaves answers to Python.
        """
        self._library.worker_lock_sending(self._worker)
        unsent = True
        try:
            sent = write()
            unsent = sent < count
            return sent
        finally:
            self._library.worker_unlock_sending(self._worker, unsent)

    def close(self) -> None:
        """Have ``take`` return None soon."""
        self._library.worker_close(self._worker)

    def __del__(self) -> None:
        if getattr(self, "_worker", None):
            self._library.worker_free(self._worker)

    # --- what it may execute records of

    def add_context(self, serial: int, state: ContextState) -> None:
        """Execute this context's plain records from now on."""
        self._states[serial] = state
        _check(self._library.worker_add_context(self._worker, serial, ctypes.pointer(state)))

    def drop_context(self, serial: int, seconds: float) -> None:
        """Execute none of its records any more. What a call of the driver still uses then is never freed."""
        gone = self._library.worker_drop_context(self._worker, serial, int(seconds * 1e9)) == 0
        kept: list[object] = [self._states.pop(serial, None)]
        kept += [self._things.pop(key) for key in tuple(self._things) if key[0] == serial]
        if not gone:
            _lost.extend((self, *kept))

    def add_stream(self, serial: int, handle: int, state: StreamState) -> None:
        """The context has a stream."""
        self._things[serial, StreamState, handle] = state
        _check(self._library.worker_add_stream(self._worker, serial, handle, ctypes.pointer(state)))

    def drop_stream(self, serial: int, handle: int) -> None:
        """The context's stream was destroyed."""
        self._library.worker_drop_stream(self._worker, serial, handle)
        self._things.pop((serial, StreamState, handle), None)

    def add_module(self, serial: int, handle: int, rows: ctypes.Array[KernelRow]) -> None:
        """The context has loaded code."""
        self._things[serial, KernelRow, handle] = rows
        first = ctypes.cast(rows, ctypes.POINTER(KernelRow))
        _check(self._library.worker_add_module(self._worker, serial, handle, first, len(rows)))

    def drop_module(self, serial: int, handle: int) -> None:
        """The context's code was unloaded."""
        self._library.worker_drop_module(self._worker, serial, handle)
        self._things.pop((serial, KernelRow, handle), None)


def _check(result: int) -> None:
    if result:
        raise BackendError(Result.ERROR_OUT_OF_MEMORY, "the executor has no memory left for the client's things")
