"""Contexts that the client opens by itself, on devices where the program has none.

In CUDA, physical memory (cuMemCreate) needs no context, and another process's memory and events can be opened in a
context of another device. An executor keeps both in contexts. So the client uses a context that the program has on
the device, or else opens one (`OwnContexts.on`), which stays open as long as something needs it.
"""

from collections.abc import Callable
from threading import RLock
from typing import Final

from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.context import Context, contexts, usable_on
from pympsd_client._objects.process import process


class OwnContexts:
    """The contexts that the client has opened by itself. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = RLock()
        self._opened: Final[dict[int, Context]] = {}
        """The contexts by the ordinals of their devices."""
        self.needed: Final[list[Callable[[Context], bool]]] = []
        """Functions that return whether something still needs a context."""

    def on(self, device: VisibleDevice) -> Context:
        """Return a context on a device: one of the program's, or one that this function opens. Raise CudaError."""
        with self._lock:
            if (usable := usable_on(device.ordinal)) is not None:
                return usable
            opened = Context(device, 0, primary=False)
            opened.open(process.require())
            self._opened[device.ordinal] = opened
            return opened

    def close_unneeded(self, context: Context) -> None:
        """Close a context that `on` has opened if nothing needs it any more; no effect for the program's contexts."""
        with self._lock:
            if context in self._opened.values() and not any(is_needed(context) for is_needed in self.needed):
                del self._opened[context.device.ordinal]
                contexts.pop(context.handle, None)
                context.close(process.require())


own_contexts: Final = OwnContexts()
