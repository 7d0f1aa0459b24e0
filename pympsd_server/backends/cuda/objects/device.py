"""A real GPU: one primary context of the driver, shared by all clients of this executor.

`CudaDevice` builds the parts that all contexts share (`DeviceServices`) and holds the tables of contexts and clients.
Sharing one context, as MPS does, makes the device fast. `CAPABILITIES` states the price: kernels of one client can
reach the memory of another client of the same user, a fault ends the work of all, and a kernel cannot be stopped.
After a fault the executor's owner replaces the process.

Any thread that calls the driver may notice a fault. `fault` keeps the first error, adds the names of the kernels that
were launched last in streams with unfinished work, and faults every context. From then on nothing is freed one by
one, because the driver answers every call with the same error; the end of the process releases everything.

The driver's environment is prepared before cuInit: settings that clients or operators made for other programs must
not hide devices or lead to a daemon, and kernels are loaded eagerly, because a lazy load delays all clients'
launches.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from pympsd.vocabulary.device_properties import DeviceProperties, uuid_text, window_of
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import CONNECTIONS, BadSetting, read
from pympsd.wire.executor_messages import BatchTrace, ContextTrace
from pympsd_server.backends.budget import AccountedDevice, ClientBudget, Counters, DeviceBudget
from pympsd_server.backends.cuda.driver.calls import Driver, cu, plain_call
from pympsd_server.backends.cuda.memory.cleanup_thread import CleanupThread
from pympsd_server.backends.cuda.memory.deferred_free import DeferredFree
from pympsd_server.backends.cuda.memory.deferred_release import (
    MAX_MODULE_BYTES,
    MAX_SHARED_BYTES,
    ClientMappings,
    DeferredRelease,
)
from pympsd_server.backends.cuda.memory.device_memory import DeviceMemory
from pympsd_server.backends.cuda.memory.scratch import ScratchPool
from pympsd_server.backends.cuda.memory.staging import RegisteredMemory, Staging
from pympsd_server.backends.cuda.objects.client_space import ClientSpace
from pympsd_server.backends.cuda.objects.context import CONTEXT_BYTES, CudaContext
from pympsd_server.backends.cuda.objects.device_services import DeviceServices
from pympsd_server.backends.cuda.objects.green_contexts import PARTITION_BYTES, Partitions
from pympsd_server.backends.cuda.objects.native_access import CudaNativeAccess, native_calls
from pympsd_server.backends.cuda.objects.stream import PRIORITIES
from pympsd_server.backends.cuda.submission.completions import CompletionWords
from pympsd_server.backends.cuda.submission.stream_markers import EventPool, MarkerWatcher
from pympsd_server.backends.cuda.submission.work_times import WorkTimes
from pympsd_server.backends.device_interface import Timeline
from pympsd_server.backends.interface import BackendError, Capabilities, Status
from pympsd_server.backends.virtual_memory import File
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
    "CUDA_MODULE_LOADING": "EAGER",  # else the first launch of a kernel loads it, which delays all clients
    "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
}
_REMOVED: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_")


def prepare_environment(environment: Any) -> None:
    """Prepare the environment that the driver reads at cuInit: remove the settings of clients and of MPS.

    Raises:
        BackendError: NOT_SUPPORTED if it has an impossible number of hardware queues.
    """
    try:
        connections = read(environment, CONNECTIONS)
    except BadSetting as error:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, str(error)) from None
    for name in tuple(environment):
        if name.startswith(_REMOVED):
            del environment[name]
    environment.update(_SET, CUDA_DEVICE_MAX_CONNECTIONS=connections)


class CudaDevice(AccountedDevice):
    """One device of this machine. ``ordinal`` chooses its window of addresses."""

    native: NativeAccess
    """The native worker's access to the device. The attribute is missing if streams cannot write completion marks."""

    def __init__(self, properties: DeviceProperties, ordinal: int) -> None:
        """Open the device; raise BackendError if the driver does not have it, or refuses to open it."""
        prepare_environment(os.environ)
        try:
            plain_call(cu.cuInit, 0)
        except RuntimeError as error:  # cuda-bindings found no library
            raise BackendError(Result.ERROR_NO_DEVICE, f"the GPU driver cannot be loaded: {error}") from None
        handle = _find(properties.uuid)
        self.properties = properties
        self._lock = Lock()
        self._contexts: dict[CudaContext, int] = {}
        """The address space of the client of each context that is not released, by context."""
        self._clients: dict[int, ClientSpace] = {}
        self._error: Status | None = None
        self._fault_lock = Lock()
        self.closed = False
        driver = self._driver = Driver(plain_call(cu.cuDevicePrimaryCtxRetain, handle), self.fault)
        memory = DeviceMemory(driver, int(handle), window_of(ordinal))
        staging = Staging(driver)
        self._partitions = Partitions(driver, handle, properties, memory)
        cleanup, events = CleanupThread(), EventPool(driver)
        self.services = DeviceServices(
            driver=driver,
            attributes=properties.attributes,
            counters=Counters(),
            events=events,
            words=CompletionWords(driver),
            memory=memory,
            staging=staging,
            scratch=ScratchPool(memory),
            watcher=MarkerWatcher(self.is_quiet, self.fault),
            cleanup=cleanup,
            unloaded_modules=DeferredRelease(cleanup, self.is_quiet, MAX_MODULE_BYTES),
            times=WorkTimes(driver, events),
        )
        self._exited_mappings = DeferredRelease(cleanup, self.is_quiet, MAX_SHARED_BYTES)
        if (calls := native_calls(driver, properties.attributes)) is not None:
            self.native = CudaNativeAccess(calls, lambda code: driver.handle_failure(code, "a launch or a wait"))
        # The memory of the driver's context, of other users' executors and of other programs counts as taken.
        self.budget = DeviceBudget(properties.memory_bytes, self._measure_used)

    def _measure_used(self) -> int:
        free, total = self._driver.call(cu.cuMemGetInfo)
        return int(total) - int(free)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this device: it can neither stop a kernel nor contain a fault."""
        return CAPABILITIES

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """The lowest and the highest stream priority."""
        return PRIORITIES

    @property
    def trace(self) -> Mapping[str, int]:
        """Counters: contexts, kernels_started, kernels_finished (as far as known), bytes_allocated, bytes_used ..."""
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
        """The multiprocessors of each context, and 0, because the number of blocks that were resident is unknown."""
        max_blocks = self.properties.attributes["MAX_BLOCKS_PER_MULTIPROCESSOR"]
        with self._lock:
            return [
                ContextTrace(context.id, ids, len(ids) * max_blocks, 0)
                for context in self._contexts
                for ids in (context.partition.multiprocessors,)
            ]

    @property
    def batch_traces(self) -> Sequence[BatchTrace]:
        """Empty, because the device does not report when blocks begin."""
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
        """0, because kernels can access host memory anywhere."""
        return 0

    def register_host_memory(
        self, address_space: int, address: int, memory: memoryview, file: File
    ) -> Callable[[], None]:
        """Register host memory for copies and kernels; unregistering waits until no work runs on the device."""
        pinned, cleanup = RegisteredMemory(self._driver, address, memory), self.services.cleanup
        try:
            pinned.register()
        except BackendError:
            cleanup.add(self.is_quiet, pinned.release)
            raise
        return lambda: cleanup.add(self.is_quiet, pinned.release)

    # --- contexts

    def set_timeline(self, timeline: Timeline | None) -> None:
        """Report all work from now on to a timeline, or to none. While there is one, only Python issues work.

        The timeline gets no slices of the device's time, only when work in a stream began and ended.
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
        self, address_space: int, quota: Quota, on_fault: Callable[[Status], None], context_id: int = 0
    ) -> CudaContext:
        """Create a context; the first one on a set of multiprocessors waits for all running kernels."""
        if self.closed:
            raise BackendError(Result.ERROR_DEINITIALIZED, "the device is closed")
        if self._error is not None:
            raise BackendError(self._error.code, self._error.reason)
        with self._lock:
            client = self._clients.get(address_space)
            if client is None:
                mappings = ClientMappings(self._driver, self._exited_mappings)
                frees = DeferredFree(self.services.cleanup)
                groups = self.budget.groups(quota.groups, address_space)
                audited = address_space if quota.audited else 0
                budget = ClientBudget(self.budget, quota.memory_bytes, groups, audited)
                client = ClientSpace(self.services.memory, budget, mappings, frees)
            client.take(CONTEXT_BYTES, "a context")
        charge = CONTEXT_BYTES
        try:
            partition = self._partitions.take(quota.multiprocessors, quota.chunks)
            try:
                if partition.green is not None:
                    client.take(PARTITION_BYTES, "a context on some of the multiprocessors")
                    charge += PARTITION_BYTES
                context = CudaContext(self, self.services, client, partition, quota.priority, context_id, on_fault)
            except BaseException:
                self._partitions.give(partition)
                raise
        except BaseException:
            client.give(charge)
            raise
        context.charged = charge
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
        self.budget.report_change()

    def is_quiet(self) -> bool:
        """Return whether no work of any context runs."""
        with self._lock:
            contexts = tuple(self._contexts)
        return all(context.is_quiet() for context in contexts)

    def fault(self, status: Status) -> None:
        """Fault every context, because the driver now answers every call with this error. Safe from any thread."""
        with self._fault_lock:
            if self._error is not None:
                return
            self._error = status
        contexts = tuple(self._contexts)
        suspect_kernels = sorted({name for context in contexts for name in context.suspect_kernels()})
        reason = (
            f"{status.reason}; launched last where work was unfinished: {', '.join(suspect_kernels) or 'no kernel'}"
        )
        for context in contexts:
            context.queue.fault(Status(status.code, reason))

    @property
    def is_faulted(self) -> bool:
        """Whether a fault makes every call of the driver fail."""
        return self._error is not None

    def close(self) -> None:
        """Accept no more work and call all completions. Running kernels end with the process."""
        self.closed = True
        for context in tuple(self._contexts):
            context.abandon()
        self.services.watcher.close()
        self.services.cleanup.close()
        with suppress(BackendError):  # a faulted device: the end of the process releases everything
            if self._error is None and self.is_quiet():
                for context in tuple(self._contexts):  # those that the cleanup thread has not released yet
                    context.release()
                self.services.staging.close()
                self.services.memory.close()


def _find(uuid: str) -> Any:
    """Return the handle of the device with a UUID; raise BackendError NO_DEVICE if the driver does not have it."""
    for number in range(plain_call(cu.cuDeviceGetCount)):
        handle = plain_call(cu.cuDeviceGet, number)
        if uuid_text(bytes(plain_call(cu.cuDeviceGetUuid, handle).bytes)) == uuid:
            return handle
    raise BackendError(Result.ERROR_NO_DEVICE, f"the driver has no device {uuid}")
