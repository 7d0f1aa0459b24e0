"""What of a client's records is executed outside the interpreter: its native worker is told what they name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.vocabulary.settings import WORKER, BadSetting, chosen_worker
from pympsd_server.backends.interface import BackendError, Device
from pympsd_server.native.library import NoLibrary, library

if TYPE_CHECKING:
    from pympsd_server.executor.client_context import ClientContext
    from pympsd_server.native.worker import NativeWorker

_DROP_SECONDS: Final = 1.0


@frozen
class Workers:
    """Which workers the clients of a device get."""

    native: bool
    told: str
    """For server.log: the kind, and why no other; empty for a device whose records only Python executes."""

    @classmethod
    def chosen(cls, device: Device) -> Workers:
        """Choose; BackendError NOT_SUPPORTED for what cannot be had."""
        try:
            choice = chosen_worker(os.environ)
        except BadSetting as error:
            raise BackendError(Result.ERROR_NOT_SUPPORTED, str(error)) from None
        helps = device.native_calls is not None
        if choice == "python" or (choice == "auto" and not helps):
            return cls(False, f"python, for {WORKER} says so" if helps else "")
        try:
            library()
        except NoLibrary as error:
            if choice == "native":
                raise BackendError(Result.ERROR_NOT_SUPPORTED, f"no native worker: {error}") from None
            return cls(False, f"python, for the native one cannot be used: {error}")
        return cls(True, "native" if helps else "")


class Outside:
    """The native worker's view of one context, kept up to date by what Python does."""

    def __init__(self, worker: NativeWorker, serial: int, context: ClientContext) -> None:
        self._worker = worker
        self._serial = serial
        self._state = context.backend.native_state
        if self._state is not None:
            worker.add_context(serial, self._state)

    def minted(self, kind: str, handle: int, thing: Any) -> None:
        """A handle stands for something now."""
        if self._state is None:
            return
        if kind == "stream":
            self._worker.add_stream(self._serial, handle, thing.backend.native_state)
        elif kind == "module":
            self._worker.add_module(self._serial, handle, thing.native_kernels)

    def taken(self, kind: str, handle: int) -> None:
        """A handle stands for nothing any more."""
        if self._state is None:
            return
        if kind == "stream":
            self._worker.drop_stream(self._serial, handle)
        elif kind == "module":
            self._worker.drop_module(self._serial, handle)

    def deferred(self, is_some: bool) -> None:
        """Whether an error waits for the next call that waits: such calls are Python's then."""
        if self._state is not None:
            self._state.deferred = int(is_some)

    def close(self) -> None:
        """Nothing of the context is executed outside any more."""
        if self._state is not None:
            self._worker.drop_context(self._serial, _DROP_SECONDS)
