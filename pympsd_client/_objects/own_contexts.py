"""Contexts that the client opens by itself, on devices where the program has none.

In CUDA, physical memory (cuMemCreate) needs no context, and another process's memory and events can be opened in a
context of another device. An executor keeps both in contexts. So the client uses a context that the program has on
the device, or else opens one (`OwnContexts.use`), which stays open as long as something needs it.

Contexts are closed without the lock, because the objects of a closing context have locks of their own, which threads
hold when they call `OwnContexts.close_unneeded`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Final

from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.context import Context, contexts, find_on
from pympsd_client._objects.process import process


class OwnContexts:
    """The contexts that the client has opened by itself. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = RLock()
        self._opened: Final[set[Context]] = set()
        self._users: Counter[Context] = Counter()
        """How many blocks of `use` each context is in."""
        self.needed: Final[list[Callable[[Context], bool]]] = []
        """Functions that return whether something still needs a context."""

    @contextmanager
    def use(self, device: VisibleDevice) -> Iterator[Context]:
        """Give a context on a device: the current one, another one of the program's, or one that is opened for it.

        After the block a context that was opened stays open only if something needs it. Raise CudaError.
        """
        with self._lock:
            context = find_on(device.ordinal)
            if context is None:
                context = Context.open_new(process.require(), device)
                self._opened.add(context)
            self._users[context] += 1
        try:
            yield context
        finally:
            with self._lock:
                self._users.subtract((context,))
                self._users += Counter()  # without those that nothing uses
            self.close_unneeded(context)

    def close_unneeded(self, context: Context) -> None:
        """Close a context that `use` has opened if nothing needs it any more; no effect for the program's own."""
        with self._lock:
            is_used = self._users[context] or any(is_needed(context) for is_needed in self.needed)
            if context not in self._opened or is_used:
                return
            self._opened.discard(context)
            contexts.pop(context.handle, None)
        context.close(process.require())


own_contexts: Final = OwnContexts()
