"""One client's native worker, as Python uses it (native/src/worker.h has the theory of operation of the C side).

A worker belongs to one client and is run by one Python thread, which calls `take`. Without the interpreter's lock, C
code then reads records, executes plain launches and waits, and returns when a record needs Python. Python executes
that record, with all rules, and calls `take` again. The same thread adds and drops the contexts, streams and modules
that the C code may use. The structures that both sides change are declared in `native.states`.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref
from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError
from pympsd_server.native.library import library
from pympsd_server.native.states import ContextState, DriverCalls, KernelRow, NativeAccess, StreamState

_NO_CALLS: Final = ctypes.POINTER(DriverCalls)()
_leaked: Final[list[object]] = []
"""Objects that are never freed, because a driver call that has not returned may still use them."""


@frozen
class DeclinedRecord:
    """A record that Python must execute; ``code``: the CUresult of the driver's refusal, 0 if it was not tried."""

    record: bytes
    code: int


class NativeWorker:
    """The functions of src/worker.h, whose comments state which threads may call each one.

    ``address``: the ring's address in this process; ``spin_ns``: nanoseconds to poll for records before sleeping.
    """

    def __init__(self, socket: int, address: int, access: NativeAccess | None, spin_ns: int) -> None:
        self._library = library()
        pointer = ctypes.pointer(access.calls) if access is not None else _NO_CALLS
        self._worker: Any = self._library.worker_open(socket, address, pointer, spin_ns)
        if not self._worker:
            raise BackendError(Result.ERROR_OPERATING_SYSTEM, "no memory for the client's worker")
        self._record, self._length, self._code = ctypes.c_void_p(), ctypes.c_uint32(), ctypes.c_int()
        self.access = access
        self._states: dict[int, ContextState] = {}
        self._objects: dict[tuple[int, type, int], object] = {}
        """The objects to which the library has pointers, by context id, kind and handle."""

    def take(self) -> DeclinedRecord | None:
        """Work until Python must execute a record, and return that record; return None at the end."""
        if not self._library.worker_take(self._worker, byref(self._record), byref(self._length), byref(self._code)):
            return None
        return DeclinedRecord(ctypes.string_at(self._record.value or 0, self._length.value), self._code.value)

    def error_of(self, code: int) -> BackendError:
        """Return the error for the code of a declined record."""
        assert self.access is not None  # without access no record has a code
        return self.access.refused(code)

    def send(self, data: bytes) -> int:
        """Write answers without waiting; return the number of bytes written, or a negative errno."""
        return int(self._library.worker_send(self._worker, data, len(data)))

    def send_by(self, write: Callable[[], int], count: int) -> int:
        """Call ``write`` to write ``count`` bytes of answers without waiting; return its result, the bytes written.

        Until all bytes are written, if necessary by calls of ``send``, the worker leaves answers to Python.
        """
        self._library.worker_lock_sending(self._worker)
        unsent = True
        try:
            sent_bytes = write()
            unsent = sent_bytes < count
            return sent_bytes
        finally:
            self._library.worker_unlock_sending(self._worker, unsent)

    def close(self) -> None:
        """Make ``take`` return None soon."""
        self._library.worker_close(self._worker)

    def __del__(self) -> None:
        if getattr(self, "_worker", None):
            self._library.worker_free(self._worker)

    # --- contexts, streams and modules

    def add_context(self, context_id: int, state: ContextState) -> None:
        """Execute records of this context from now on."""
        self._states[context_id] = state
        try:
            result = self._library.worker_add_context(self._worker, context_id, ctypes.pointer(state))
            self._check(result, (context_id,))
        except BackendError:
            del self._states[context_id]
            raise

    def drop_context(self, context_id: int, seconds: float) -> None:
        """Stop executing records of this context.

        Objects that a driver call still uses after ``seconds`` are never freed.
        """
        leaked_objects: list[object] = [self._states.pop(context_id, None)]
        is_unused = self._library.worker_drop_context(self._worker, context_id, int(seconds * 1e9)) == 0
        leaked_objects += [self._objects.pop(key) for key in tuple(self._objects) if key[0] == context_id]
        if not is_unused:
            _leaked.extend((self, *leaked_objects))

    def add_stream(self, context_id: int, handle: int, state: StreamState) -> None:
        """Add a stream to the context."""
        key = context_id, StreamState, handle
        self._objects[key] = state
        self._check(self._library.worker_add_stream(self._worker, context_id, handle, ctypes.pointer(state)), key)

    def drop_stream(self, context_id: int, handle: int) -> None:
        """Remove a stream from the context."""
        self._library.worker_drop_stream(self._worker, context_id, handle)
        self._objects.pop((context_id, StreamState, handle), None)

    def add_module(self, context_id: int, handle: int, rows: ctypes.Array[KernelRow]) -> None:
        """Add a module's functions to the context."""
        key = context_id, KernelRow, handle
        self._objects[key] = rows
        first = ctypes.cast(rows, ctypes.POINTER(KernelRow))
        self._check(self._library.worker_add_module(self._worker, context_id, handle, first, len(rows)), key)

    def drop_module(self, context_id: int, handle: int) -> None:
        """Remove a module from the context."""
        self._library.worker_drop_module(self._worker, context_id, handle)
        self._objects.pop((context_id, KernelRow, handle), None)

    def _check(self, result: int, key: tuple[Any, ...]) -> None:
        """Forget the object of a key that could not be added, and raise BackendError."""
        if not result:
            return
        self._objects.pop(key, None)
        if key[0] not in self._states:
            raise BackendError(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")
        raise BackendError(Result.ERROR_OUT_OF_MEMORY, "the executor has no memory left for the client's objects")
