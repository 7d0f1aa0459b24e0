"""The emulated device: contexts on one compute thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock

from pympsd.vocabulary.device_facts import DeviceFacts, window_of
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.budget import ContextBudget, DeviceBudget
from pympsd_server.backends.emulated.client_space import ClientSpace, reserve
from pympsd_server.backends.emulated.context import EmulatedContext
from pympsd_server.backends.emulated.context_memory import ContextMemory
from pympsd_server.backends.emulated.placement import Placement
from pympsd_server.backends.emulated.scheduler import Scheduler
from pympsd_server.backends.emulated.trace import Trace
from pympsd_server.backends.emulated.turns import GREATEST_PRIORITY, LEAST_PRIORITY
from pympsd_server.backends.interface import BackendError, Capabilities, Outcome, Quota

_CAPABILITIES = Capabilities(
    isolates_address_spaces=True,
    contains_faults=True,
    stops_kernels=True,
    limits_multiprocessors=True,
)


class EmulatedDevice:
    """One device of an emulated machine. ``ordinal`` chooses its window of addresses."""

    def __init__(self, facts: DeviceFacts, ordinal: int) -> None:
        self._facts = facts
        self._base = window_of(ordinal)
        self._budget = DeviceBudget(facts.memory_bytes)
        self._scheduler = Scheduler()
        self._trace = Trace()
        self._lock = Lock()
        self._spaces: dict[int, ClientSpace] = {}
        self._contexts: dict[EmulatedContext, int] = {}
        """Living contexts, with the key of their address space."""
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """What this implementation can do: everything."""
        return _CAPABILITIES

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """Least and greatest stream priority."""
        return LEAST_PRIORITY, GREATEST_PRIORITY

    @property
    def trace(self) -> Mapping[str, int]:
        """Counters: contexts, kernels_started, kernels_finished, batches, slices, bytes_allocated, bytes_used ...

        ``resident_blocks_high_water`` is the most blocks one context had resident at once.
        """
        with self._lock:
            for context in self._contexts:
                self._trace.raise_to("resident_blocks_high_water", context.placement.high_water)
            self._trace.put("contexts", len(self._contexts))
        self._trace.put("slices", self._scheduler.slices)
        self._trace.put("bytes_used", self._budget.used)
        return self._trace

    def create_context(
        self, address_space: int, quota: Quota, on_fault: Callable[[Outcome], None]
    ) -> EmulatedContext:
        """Make a context; BackendError OUT_OF_MEMORY when the device or the quota has no room for one."""
        with self._lock:
            if self._closed:
                raise BackendError(Result.ERROR_DEINITIALIZED, "the device is closed")
            budget = ContextBudget(self._budget, quota.memory_bytes)
            client = self._spaces.get(address_space) or reserve(self._base, self._facts.memory_bytes)
            context = EmulatedContext(
                self._facts,
                self._scheduler,
                ContextMemory(client, budget),
                Placement(self._multiprocessors(quota), self._facts.attributes),
                quota.priority,
                self._trace,
                on_fault,
                self._forget,
            )
            self._spaces[address_space] = client
            client.contexts += 1
            self._contexts[context] = address_space
        return context

    def _multiprocessors(self, quota: Quota) -> tuple[int, ...]:
        every = self._facts.multiprocessors
        count = quota.multiprocessors or every
        return tuple(range(max(1, min(count, every))))

    def _forget(self, context: EmulatedContext) -> None:
        with self._lock:
            self._trace.raise_to("resident_blocks_high_water", context.placement.high_water)
            key = self._contexts.pop(context)
            client = self._spaces[key]
            client.contexts -= 1
            if not client.contexts:
                del self._spaces[key]
                client.space.close()

    def close(self) -> None:
        """Destroy every context and end the compute thread."""
        with self._lock:
            self._closed = True
            contexts = tuple(self._contexts)
        for context in contexts:
            context.destroy()
        self._scheduler.close()
