"""Decide whether a native worker executes records outside of the interpreter, and keep the state that it needs."""

from __future__ import annotations

import os
from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import WORKER, BadSetting, read
from pympsd.wire.records import Kind
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import BackendError, Context
from pympsd_server.native.library import NoLibrary, library
from pympsd_server.native.states import NativeAccess, NativeDevice
from pympsd_server.native.worker import NativeWorker

_DROP_SECONDS: Final = 1.0


def native_access(device: Device) -> NativeAccess | None:
    """Return a native worker's access to a device; None if only Python has access."""
    return device.native if isinstance(device, NativeDevice) else None


@frozen
class Workers:
    """The kind of workers for the clients of a device."""

    native: bool
    description: str
    """The kind, and why it was chosen, for server.log; empty for a device whose records only Python can execute."""

    @classmethod
    def choose(cls, device: Device) -> Workers:
        """Choose the kind. Raise BackendError with NOT_SUPPORTED if the requested kind is not available."""
        try:
            choice = read(os.environ, WORKER)
        except BadSetting as error:
            raise BackendError(Result.ERROR_NOT_SUPPORTED, str(error)) from None
        helps = native_access(device) is not None
        if choice == "python" or (choice == "auto" and not helps):
            return cls(False, f"python, because {WORKER} requests it" if helps else "")
        try:
            library()
        except NoLibrary as error:
            if choice == "native":
                raise BackendError(Result.ERROR_NOT_SUPPORTED, f"no native worker: {error}") from None
            return cls(False, f"python, because the native one cannot be used: {error}")
        return cls(True, "native" if helps else "")


class NativeMirror:
    """The native worker's view of one context (a Mirror)."""

    def __init__(self, worker: NativeWorker, access: NativeAccess, context_id: int, context: Context) -> None:
        self._worker = worker
        self._access = access
        self._context_id = context_id
        self._state = access.context_state(context)
        worker.add_context(context_id, self._state)

    def add(self, kind: Kind, handle: int, entry: Any) -> None:
        """Add the object of a new handle, if the worker needs it."""
        if kind is Kind.STREAM:
            self._worker.add_stream(self._context_id, handle, self._access.stream_state(entry.backend))
        elif kind is Kind.MODULE:
            self._worker.add_module(self._context_id, handle, self._access.kernel_rows(entry))

    def remove(self, kind: Kind, handle: int) -> None:
        """Remove the object of a handle."""
        if kind is Kind.STREAM:
            self._worker.drop_stream(self._context_id, handle)
        elif kind is Kind.MODULE:
            self._worker.drop_module(self._context_id, handle)

    def set_deferred(self, deferred: bool) -> None:
        """Set whether an error must be delivered: as long as there is one, Python handles the calls that wait."""
        self._state.deferred = int(deferred)

    def close(self) -> None:
        """Stop executing records of the context."""
        self._worker.drop_context(self._context_id, _DROP_SECONDS)
