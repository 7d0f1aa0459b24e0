"""The emulated device: contexts on one compute thread."""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from pympsd.vocabulary.device_properties import DeviceProperties, mapped_window_of, window_of
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.partitions import list_multiprocessors
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import BatchTrace, ContextTrace
from pympsd_server.backends.budget import AccountedDevice, DeviceBudget
from pympsd_server.backends.device_interface import Timeline
from pympsd_server.backends.emulated.device.context import EmulatedContext
from pympsd_server.backends.emulated.device.context_memory import ContextMemory, context_overhead
from pympsd_server.backends.emulated.memory.client_space import ClientSpaces
from pympsd_server.backends.emulated.scheduling.placement import Multiprocessors, Placement
from pympsd_server.backends.emulated.scheduling.policy import GREATEST_PRIORITY, LEAST_PRIORITY, ContextQueue, Policy
from pympsd_server.backends.emulated.scheduling.scheduler import Scheduler
from pympsd_server.backends.emulated.scheduling.work_item import Trace
from pympsd_server.backends.interface import BackendError, Capabilities, Status
from pympsd_server.backends.virtual_memory import File


class EmulatedDevice(AccountedDevice):
    """One device of an emulated machine."""

    def __init__(self, properties: DeviceProperties, ordinal: int, policy: Policy | None = None) -> None:
        """``ordinal`` chooses the window of addresses; ``policy`` decides whose work runs (default: fair shares)."""
        self._properties = properties
        self._ordinal = ordinal
        self.budget = DeviceBudget(properties.memory_bytes)
        self._multiprocessors = Multiprocessors(properties.multiprocessors)
        self._spaces = ClientSpaces(properties, window_of(ordinal), self.budget)
        self._scheduler = Scheduler(policy)
        self._trace = Trace()
        self._lock = Lock()
        self._contexts: dict[EmulatedContext, int] = {}
        """The key of the address space of each existing context, by context."""
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """All abilities, except what MPS did not have before Volta, and what the machine's description excludes."""
        volta = self._properties.is_volta_or_newer
        return Capabilities(
            isolates_address_spaces=self._properties.isolates_address_spaces,
            contains_faults=True,
            stops_kernels=self._properties.stops_kernels,
            limits_multiprocessors=volta,
            limits_memory=volta,
            maps_virtual_memory=self._properties.isolates_address_spaces,
            maps_host_memory=True,
            evaluates_conditions=True,
        )

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """The lowest and the highest stream priority."""
        return LEAST_PRIORITY, GREATEST_PRIORITY

    @property
    def trace(self) -> Mapping[str, int]:
        """Counters: contexts, kernels_started, kernels_finished, batches, slices, bytes_allocated, bytes_used ...

        ``busy_nanoseconds`` is the time in which kernels ran.
        ``resident_blocks_high_water`` is the largest number of blocks that one context had resident at the same time.
        """
        with self._lock:
            for context in self._contexts:
                self._trace.raise_to("resident_blocks_high_water", context.placement.high_water)
            self._trace.put("contexts", len(self._contexts))
        self._trace.put("slices", self._scheduler.slices)
        self._trace.put("busy_nanoseconds", self._trace.busy_nanoseconds)
        self._trace.put("bytes_used", self.budget.used)
        return self._trace

    @property
    def context_traces(self) -> Sequence[ContextTrace]:
        """The SMs of each context, and the maximum number of blocks that were resident on them at the same time."""
        with self._lock:
            return [context.placement.trace(context.id) for context in self._contexts]

    @property
    def batch_traces(self) -> Sequence[BatchTrace]:
        """The batches of blocks that began last."""
        return self._trace.batches

    @property
    def memory_used(self) -> Mapping[int, int]:
        """The bytes of allocations and contexts, by the key of their address space."""
        with self._lock:
            return self._spaces.usage()

    @property
    def unfinished(self) -> int:
        """The number of destroyed contexts whose kernels still run."""
        with self._lock:
            return sum(context.is_destroyed for context in self._contexts)

    @property
    def host_memory_base(self) -> int:
        """The address where the last part of the device's window begins."""
        return mapped_window_of(self._ordinal)

    def register_host_memory(
        self, address_space: int, address: int, memory: memoryview, file: File
    ) -> Callable[[], None]:
        """Map host memory into the client's address space for kernels.

        Copies can access host memory that is not mapped.
        """
        with self._lock:
            self._spaces.host_memory.add(address_space, address, memory, file)

        def unregister() -> None:
            with self._lock:
                self._spaces.host_memory.remove(address_space, address)

        return unregister

    def set_timeline(self, timeline: Timeline | None) -> None:
        """Report all work to a timeline."""
        self._scheduler.timeline = timeline

    def create_context(
        self, address_space: int, quota: Quota, on_fault: Callable[[Status], None], context_id: int = 0
    ) -> EmulatedContext:
        """Create a context; raise BackendError OUT_OF_MEMORY if the device's or the quota's memory is too small."""
        with self._lock:
            if self._closed:
                raise BackendError(Result.ERROR_DEINITIALIZED, "the device is closed")
            limited = self.capabilities.limits_multiprocessors
            among = list_multiprocessors(self._properties, quota.chunks)
            multiprocessors = self._multiprocessors.take(quota.multiprocessors if limited else 0, among)
            try:
                context = self._make(address_space, quota, multiprocessors, on_fault, context_id)
            except BaseException:
                self._multiprocessors.give(multiprocessors)
                raise
            self._contexts[context] = address_space
        return context

    def _make(
        self,
        address_space: int,
        quota: Quota,
        multiprocessors: tuple[int, ...],
        on_fault: Callable[[Status], None],
        context_id: int,
    ) -> EmulatedContext:
        """Create a context with its memory and its placement, and enter it in the client's address space."""
        client = self._spaces.find(address_space, quota)
        among = list_multiprocessors(self._properties, quota.chunks)
        visible_ids = tuple(map(among.index, multiprocessors)) if quota.counts_sms and among else None
        overhead = context_overhead(self._properties, len(multiprocessors))
        memory = ContextMemory(client, overhead, f"a context on {len(multiprocessors)} multiprocessors")
        context = EmulatedContext(
            self._properties,
            self._scheduler,
            memory,
            Placement(multiprocessors, self._properties.attributes, visible_ids),
            context_id,
            self._trace,
            on_fault,
            self._remove,
            ContextQueue(quota.priority, memory_used=memory.bytes_of_client),
        )
        try:
            self._spaces.enter(address_space, client)
        except BackendError:
            memory.close()
            raise
        return context

    def _remove(self, context: EmulatedContext) -> None:
        with self._lock:
            self._trace.raise_to("resident_blocks_high_water", context.placement.high_water)
            self._spaces.leave(self._contexts.pop(context))
            self._multiprocessors.give(context.placement.sm_ids)
        self.budget.report_change()

    def close(self) -> None:
        """Destroy every context and end the compute thread."""
        with self._lock:
            self._closed = True
            contexts = tuple(self._contexts)
        # First, so that nothing runs that destroying a context would have to wait for.
        self._scheduler.close()
        for context in contexts:
            context.destroy()
