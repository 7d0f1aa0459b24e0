"""A real GPU: one primary context, shared by all clients of this executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from pympsd.vocabulary.device_facts import DeviceFacts, uuid_text, window_of
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.settings import chosen_connections
from pympsd.vocabulary.variables import BadSetting
from pympsd.wire.executor_messages import BatchTrace, ContextTrace
from pympsd_server.backends.budget import AccountedDevice, ClientBudget, Counters, DeviceBudget
from pympsd_server.backends.cuda.driver.calls import Driver, cu, plain_call
from pympsd_server.backends.cuda.memory.device_memory import DeviceMemory
from pympsd_server.backends.cuda.memory.scratch import ScratchPool
from pympsd_server.backends.cuda.memory.staging import PinnedMemory, Staging
from pympsd_server.backends.cuda.objects.client_space import ClientSpace
from pympsd_server.backends.cuda.objects.context import CONTEXT_BYTES, CudaContext
from pympsd_server.backends.cuda.objects.device_services import DeviceServices
from pympsd_server.backends.cuda.objects.green_contexts import PARTITION_BYTES, Partitions
from pympsd_server.backends.cuda.objects.native_access import CudaNativeAccess, native_calls
from pympsd_server.backends.cuda.objects.stream import PRIORITIES
from pympsd_server.backends.cuda.reclaim.cleanup_thread import Janitor
from pympsd_server.backends.cuda.reclaim.deferred_free import DeferredFree
from pympsd_server.backends.cuda.reclaim.deferred_release import (
    MODULES_LIMIT,
    SHARED_LIMIT,
    ClientMappings,
    DeferredRelease,
)
from pympsd_server.backends.cuda.submission.completion_words import CompletionWords
from pympsd_server.backends.cuda.submission.stream_markers import EventPool, MarkerWatcher
from pympsd_server.backends.cuda.submission.work_times import WorkTimes
from pympsd_server.backends.interface import BackendError, Capabilities, Outcome, Timeline
from pympsd_server.backends.quota import Quota
from pympsd_server.native.states import NativeAccess

CAPABILITIES: Final = Capabilities(
    isolates_address_spaces=False,
    contains_faults=False,
    stops_kernels=False,
    limits_multiprocessors=True,
    limits_memory=True,
    sees_blocks=False,
    passes_waiting_kernels=False,
    maps_host_memory=True,
)
_SET: Final = {
    "CUDA_MODULE_LOADING": "EAGER",  # else the first launch of a kernel loads it, and delays all clients then
    "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
}
_REMOVED: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_")


def prepare_environment(environment: Any) -> None:
    """Set the environment that the driver reads at cuInit: no client's settings, and none of MPS.

    BackendError NOT_SUPPORTED for an impossible number of hardware queues.
    """
    try:
        connections = chosen_connections(environment)
    except BadSetting as error:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, str(error)) from None
    for name in tuple(environment):
        if name.startswith(_REMOVED):
            del environment[name]
    environment.update(_SET, CUDA_DEVICE_MAX_CONNECTIONS=connections)


class CudaDevice(AccountedDevice):
    """One device of this machine. ``ordinal`` chooses its window of addresses."""

    native: NativeAccess
    """Set if streams can write the marks by which a native worker sees the end of work."""

    def __init__(self, facts: DeviceFacts, ordinal: int) -> None:
        """Open it; BackendError when the driver has no such device, or refuses."""
        prepare_environment(os.environ)
        try:
            plain_call(cu.cuInit, 0)
        except RuntimeError as error:  # cuda-bindings found no library
            raise BackendError(Result.ERROR_NO_DEVICE, f"the GPU driver cannot be loaded: {error}") from None
        handle = _find(facts.uuid)
        self.facts = facts
        self._lock = Lock()
        self._contexts: dict[CudaContext, int] = {}
        """The contexts that are not released, with the key of their client."""
        self._clients: dict[int, ClientSpace] = {}
        self._error: Outcome | None = None
        self._poisoning = Lock()
        self.closed = False
        driver = self._driver = Driver(plain_call(cu.cuDevicePrimaryCtxRetain, handle), self.poison)
        memory = DeviceMemory(driver, int(handle), window_of(ordinal))
        staging = Staging(driver)
        self._partitions = Partitions(driver, handle, facts, memory)
        janitor, events = Janitor(), EventPool(driver)
        self.services = DeviceServices(
            driver=driver,
            attributes=facts.attributes,
            counters=Counters(),
            events=events,
            words=CompletionWords(driver),
            memory=memory,
            staging=staging,
            scratch=ScratchPool(memory),
            watcher=MarkerWatcher(self.is_quiet, self.poison),
            janitor=janitor,
            unloaded_modules=DeferredRelease(janitor, self.is_quiet, MODULES_LIMIT),
            times=WorkTimes(driver, events),
        )
        self._departed_mappings = DeferredRelease(janitor, self.is_quiet, SHARED_LIMIT)
        if (calls := native_calls(driver, facts.attributes)) is not None:
            self.native = CudaNativeAccess(calls, lambda code: driver.failed(code, "a launch or a wait"))
        # The memory of the context itself counts as taken, and that of other users' executors and other programs.
        self.budget = DeviceBudget(facts.memory_bytes, self._taken_in_all)

    def _taken_in_all(self) -> int:
        free, total = self._driver.call(cu.cuMemGetInfo)
        return int(total) - int(free)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do: it can neither stop a kernel nor contain a fault."""
        return CAPABILITIES

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """Least and greatest stream priority."""
        return PRIORITIES

    @property
    def trace(self) -> Mapping[str, int]:
        """Counters: contexts, kernels_started, kernels_finished (known to have), bytes_allocated, bytes_used ..."""
        with self._lock:
            contexts = tuple(self._contexts)
        for context in contexts:
            context.is_quiet()
        counters = self.services.counters
        counters.put("contexts", len(contexts))
        counters.put("bytes_used", self.budget.used)
        return counters

    @property
    def context_traces(self) -> Sequence[ContextTrace]:
        """The multiprocessors of the contexts; the number of blocks resident on them cannot be seen."""
        each = self.facts.attributes["MAX_BLOCKS_PER_MULTIPROCESSOR"]
        with self._lock:
            return [
                ContextTrace(context.serial, ids, len(ids) * each, 0)
                for context in self._contexts
                for ids in (context.partition.multiprocessors,)
            ]

    @property
    def batch_traces(self) -> Sequence[BatchTrace]:
        """Empty: the device does not report when blocks begin."""
        return ()

    @property
    def memory_used(self) -> Mapping[int, int]:
        """Bytes by client: allocations, modules and contexts."""
        with self._lock:
            return {key: client.budget.used for key, client in self._clients.items()}

    @property
    def unfinished(self) -> int:
        """The number of destroyed contexts whose kernels still run."""
        with self._lock:
            return sum(context.is_destroyed for context in self._contexts)

    @property
    def host_memory_base(self) -> int:
        """Host memory may lie anywhere."""
        return 0

    def register_host_memory(self, address_space: int, address: int, memory: memoryview) -> Callable[[], None]:
        """Register host memory for copies and kernels; unregistering waits until no work runs on the device."""
        pinned, janitor = PinnedMemory(self._driver, address, memory), self.services.janitor
        try:
            pinned.register()
        except BackendError:
            janitor.add(self.is_quiet, pinned.release)
            raise
        return lambda: janitor.add(self.is_quiet, pinned.release)

    # --- contexts

    def set_timeline(self, timeline: Timeline | None) -> None:
        """Report all work from now on to a timeline, which native workers leave to Python meanwhile; or none.

        What the device does at any time is not known: only when work in a stream began and ended.
        """
        if timeline is None:
            self.services.times.stop()
        else:
            self.services.times.start(timeline)
        with self._lock:
            contexts = tuple(self._contexts)
        for context in contexts:
            context.queue.set_timed(timeline is not None)

    def create_context(
        self, address_space: int, quota: Quota, on_fault: Callable[[Outcome], None], serial: int = 0
    ) -> CudaContext:
        """Create a context; the first one on a set of multiprocessors waits for all running kernels."""
        if self.closed:
            raise BackendError(Result.ERROR_DEINITIALIZED, "the device is closed")
        if self._error is not None:
            raise BackendError(self._error.code, self._error.reason)
        with self._lock:
            client = self._clients.get(address_space)
            if client is None:
                mappings = ClientMappings(self._driver, self._departed_mappings)
                frees = DeferredFree(self.services.janitor)
                groups = self.budget.groups(quota.groups, address_space)
                audited = address_space if quota.audited else 0
                budget = ClientBudget(self.budget, quota.memory_bytes, groups, audited)
                client = ClientSpace(self.services.memory, budget, mappings, frees)
            client.take(CONTEXT_BYTES, "a context")
        charged = CONTEXT_BYTES
        try:
            partition = self._partitions.take(quota.multiprocessors, quota.chunks)
            try:
                if partition.green is not None:
                    client.take(PARTITION_BYTES, "a context on some of the multiprocessors")
                    charged += PARTITION_BYTES
                context = CudaContext(self, self.services, client, partition, quota.priority, serial, on_fault)
            except BaseException:
                self._partitions.give(partition)
                raise
        except BaseException:
            client.give(charged)
            raise
        context.charged = charged
        with self._lock:
            self._clients[address_space] = client
            client.deferred_free.contexts[context] = None
            self._contexts[context] = address_space
        return context

    def remove(self, context: CudaContext) -> None:
        """Remove a context that has released everything."""
        with self._lock:
            key = self._contexts.pop(context)
            client = self._clients[key]
            client.give(context.charged)
            del client.deferred_free.contexts[context]
            if not client.deferred_free.contexts:
                del self._clients[key]
                client.mappings.release_later()
        self._partitions.give(context.partition)
        self.budget.changed()

    def is_quiet(self) -> bool:
        """Whether no work runs on the whole device."""
        with self._lock:
            contexts = tuple(self._contexts)
        return all(context.is_quiet() for context in contexts)

    def poison(self, outcome: Outcome) -> None:
        """Poison every context: the driver returns nothing but this error any more. Safe from any thread."""
        with self._poisoning:
            if self._error is not None:
                return
            self._error = outcome
        contexts = tuple(self._contexts)
        suspect_kernels = sorted({name for context in contexts for name in context.suspect_kernels()})
        reason = (
            f"{outcome.reason}; launched last where work was unfinished: {', '.join(suspect_kernels) or 'no kernel'}"
        )
        for context in contexts:
            context.queue.poison(Outcome(outcome.code, reason))

    @property
    def poisoned(self) -> bool:
        """Whether the driver returns nothing but an error any more."""
        return self._error is not None

    def close(self) -> None:
        """Accept no more work and call all completions. Kernels that run end with the process."""
        self.closed = True
        for context in tuple(self._contexts):
            context.abandon()
        self.services.watcher.close()
        self.services.janitor.close()
        with suppress(BackendError):  # a poisoned device releases everything with its process
            if self._error is None and self.is_quiet():
                for context in tuple(self._contexts):  # those that the janitor has not released by now
                    context.release()
                self.services.staging.close()
                self.services.memory.close()


def _find(uuid: str) -> Any:
    """Return the handle of the device with a UUID; BackendError NO_DEVICE if it is gone."""
    for number in range(plain_call(cu.cuDeviceGetCount)):
        handle = plain_call(cu.cuDeviceGet, number)
        if uuid_text(bytes(plain_call(cu.cuDeviceGetUuid, handle).bytes)) == uuid:
            return handle
    raise BackendError(Result.ERROR_NO_DEVICE, f"the driver has no device {uuid}")
