"""A real GPU: one primary context, which is that of all clients of this executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from pympsd.vocabulary.device_facts import DeviceFacts, window_of
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.settings import BadSetting, chosen_connections
from pympsd.wire.executor_messages import BatchTrace, ContextTrace
from pympsd_server.backends.budget import DeviceBudget
from pympsd_server.backends.cuda.driver.calls import Driver, cu, plain_call
from pympsd_server.backends.cuda.driver.counters import Counters
from pympsd_server.backends.cuda.driver.native_calls import native_calls
from pympsd_server.backends.cuda.driver.probe import uuid_of
from pympsd_server.backends.cuda.memory.device_memory import DeviceMemory
from pympsd_server.backends.cuda.memory.staging import ReachedHost, Staging
from pympsd_server.backends.cuda.objects.client_space import ClientSpace
from pympsd_server.backends.cuda.objects.context import CONTEXT_BYTES, CudaContext
from pympsd_server.backends.cuda.objects.green_contexts import SHARE_BYTES, Share, Shares
from pympsd_server.backends.cuda.reclaim.deferred_free import Retired
from pympsd_server.backends.cuda.reclaim.deferred_release import MODULES_LIMIT, SHARED_LIMIT, Leftovers, SharedMemory
from pympsd_server.backends.cuda.reclaim.janitor import Janitor
from pympsd_server.backends.cuda.submission.completion_words import Words
from pympsd_server.backends.cuda.submission.stream_markers import Events, Watch
from pympsd_server.backends.interface import BackendError, Capabilities, Outcome, Quota

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
_LEVELS: Final = 3
"""Stream priorities that a client has; those of a client below normal all come behind those of a normal one."""
_OURS: Final = {
    "CUDA_MODULE_LOADING": "EAGER",  # else the first launch of a kernel loads it, and holds up everybody then
    "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
}
_NOT_OURS: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_")


def settle_environment(environment: Any) -> None:
    """Make the environment what the driver is to read at cuInit: no client's settings, and none of MPS.

    BackendError NOT_SUPPORTED for a number of hardware queues that cannot be.
    """
    try:
        connections = chosen_connections(environment)
    except BadSetting as error:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, str(error)) from None
    for name in tuple(environment):
        if name.startswith(_NOT_OURS):
            del environment[name]
    environment.update(_OURS, CUDA_DEVICE_MAX_CONNECTIONS=connections)


class CudaDevice:
    """One device of this machine. ``ordinal`` chooses its window of addresses."""

    def __init__(self, facts: DeviceFacts, ordinal: int) -> None:
        """Open it; BackendError when the driver has no such device, or refuses."""
        settle_environment(os.environ)
        try:
            plain_call(cu.cuInit, 0)
        except RuntimeError as error:  # what cuda-bindings raises where it finds no library
            raise BackendError(Result.ERROR_NO_DEVICE, f"the GPU driver cannot be loaded: {error}") from None
        handle = _find(facts.uuid)
        self.facts = facts
        self._lock = Lock()
        self._contexts: dict[CudaContext, int] = {}
        """Living contexts, with the key of their client."""
        self._clients: dict[int, ClientSpace] = {}
        self._ruin: Outcome | None = None
        self._ruining = Lock()
        self.closed = False
        self.driver = Driver(plain_call(cu.cuDevicePrimaryCtxRetain, handle), self.ruin)
        self.counters = Counters()
        self.events = Events(self.driver)
        self.words = Words(self.driver)
        self.native_calls = native_calls(self.driver, facts.attributes)
        self.memory = DeviceMemory(self.driver, int(handle), window_of(ordinal))
        self.staging = Staging(self.driver)
        self.shares = Shares(self.driver, handle, facts.multiprocessors, self.memory)
        self.watch = Watch(self.is_quiet, self.ruin)
        self.janitor = Janitor()
        self.left_modules = Leftovers(self.janitor, self.is_quiet, MODULES_LIMIT)
        self._left_shared = Leftovers(self.janitor, self.is_quiet, SHARED_LIMIT)
        # The context itself counts as taken, and what executors of other users and other programs have.
        self.budget = DeviceBudget(facts.memory_bytes, self._taken_in_all)

    def _taken_in_all(self) -> int:
        free, total = self.driver.call(cu.cuMemGetInfo)
        return int(total) - int(free)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do: neither stop a kernel nor keep a fault to its client."""
        return CAPABILITIES

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """Least and greatest stream priority."""
        return 0, 1 - _LEVELS

    @property
    def trace(self) -> Mapping[str, int]:
        """Counters: contexts, kernels_started, kernels_finished (known to have), bytes_allocated, bytes_used ..."""
        with self._lock:
            contexts = tuple(self._contexts)
        for context in contexts:
            context.is_quiet()
        self.counters.put("contexts", len(contexts))
        self.counters.put("bytes_used", self.budget.used)
        return self.counters

    @property
    def context_traces(self) -> Sequence[ContextTrace]:
        """The multiprocessors of living contexts; how many blocks are resident on them cannot be seen."""
        each = self.facts.attributes["MAX_BLOCKS_PER_MULTIPROCESSOR"]
        with self._lock:
            return [
                ContextTrace(context.serial, ids, len(ids) * each, 0)
                for context in self._contexts
                for ids in (context.share.multiprocessors,)
            ]

    @property
    def batch_traces(self) -> Sequence[BatchTrace]:
        """None: the device does not tell when blocks begin."""
        return ()

    @property
    def memory_used(self) -> Mapping[int, int]:
        """Bytes by client: allocations, modules and contexts."""
        with self._lock:
            return {key: client.budget.used for key, client in self._clients.items()}

    @property
    def unfinished(self) -> int:
        """How many contexts were destroyed and have kernels that still run."""
        with self._lock:
            return sum(context.is_destroyed for context in self._contexts)

    def reach_host(self, address: int, memory: memoryview) -> Callable[[], None]:
        """Pin host memory for copies and kernels; given up, it stays so until nothing is under way on the device."""
        reached = ReachedHost(self.driver, address, memory)
        try:
            reached.register()
        except BackendError:
            self.janitor.add(self.is_quiet, reached.release)
            raise
        return lambda: self.janitor.add(self.is_quiet, reached.release)

    def watch_memory(self, changed: Callable[[], None]) -> None:
        """Have every change of ``memory_used`` told."""
        self.budget.on_change = changed

    # --- contexts

    def create_context(
        self, address_space: int, quota: Quota, on_fault: Callable[[Outcome], None], serial: int = 0
    ) -> CudaContext:
        """Make a context; where it is limited to multiprocessors as nobody was before, that waits for all kernels."""
        if self.closed:
            raise BackendError(Result.ERROR_DEINITIALIZED, "the device is closed")
        if self._ruin is not None:
            raise BackendError(self._ruin.code, self._ruin.reason)
        with self._lock:
            client = self._clients.get(address_space)
            if client is None:
                shared = SharedMemory(self.driver, self._left_shared)
                retired = Retired(self.janitor)
                client = ClientSpace(self.memory, self.budget, quota.memory_bytes, shared, retired)
            client.take(CONTEXT_BYTES, "a context")
        charged = CONTEXT_BYTES
        try:
            share = self.shares.take(quota.multiprocessors)
            try:
                if share.groups:
                    client.take(SHARE_BYTES, "a context on some of the multiprocessors")
                    charged += SHARE_BYTES
                context = CudaContext(self, client, share, quota.priority, serial, on_fault)
            except BaseException:
                self.shares.give(share)
                raise
        except BaseException:
            client.give(charged)
            raise
        context.charged = charged
        with self._lock:
            self._clients[address_space] = client
            client.retired.contexts[context] = None
            self._contexts[context] = address_space
        return context

    def make_stream(self, share: Share, level: int, priority: int) -> Any:
        """Return a CUDA stream in a share; the priorities of clients below normal begin below all of the others'."""
        least, greatest = self.stream_priorities
        wanted = max(greatest, min(least, priority)) - (0 if level else _LEVELS)
        flags = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        if share.green is None:
            return self.driver.call(cu.cuStreamCreateWithPriority, flags, wanted)
        return self.driver.call(cu.cuGreenCtxStreamCreate, share.green, flags, wanted)

    def forget(self, context: CudaContext) -> None:
        """A context has let go of everything."""
        with self._lock:
            key = self._contexts.pop(context)
            client = self._clients[key]
            client.give(context.charged)
            del client.retired.contexts[context]
            if not client.retired.contexts:
                del self._clients[key]
                client.registered.leave()
        self.shares.give(context.share)
        self.budget.changed()

    def is_quiet(self) -> bool:
        """Whether nothing is under way on the whole device."""
        with self._lock:
            contexts = tuple(self._contexts)
        return all(context.is_quiet() for context in contexts)

    def ruin(self, outcome: Outcome) -> None:
        """The driver answers nothing else any more: every context has this error. Any thread may come here."""
        with self._ruining:
            if self._ruin is not None:
                return
            self._ruin = outcome
        contexts = tuple(self._contexts)
        suspects = sorted({name for context in contexts for name in context.suspects()})
        reason = f"{outcome.reason}; launched last where work was unfinished: {', '.join(suspects) or 'no kernel'}"
        for context in contexts:
            context.ruin(Outcome(outcome.code, reason))

    @property
    def ruined(self) -> bool:
        """Whether the driver answers nothing but an error any more."""
        return self._ruin is not None

    def close(self) -> None:
        """Take no more work and tell all who wait. Kernels that run end with the process."""
        self.closed = True
        for context in tuple(self._contexts):
            context.abandon()
        self.watch.close()
        self.janitor.close()
        with suppress(BackendError):  # a ruined device lets go of everything with its process
            if self._ruin is None and self.is_quiet():
                for context in tuple(self._contexts):  # those that the janitor has not released by now
                    context.release()
                self.staging.close()
                self.memory.close()


def _find(uuid: str) -> Any:
    """Return the handle of the device with a UUID; BackendError NO_DEVICE when it is not there any more."""
    for number in range(plain_call(cu.cuDeviceGetCount)):
        handle = plain_call(cu.cuDeviceGet, number)
        if uuid_of(plain_call(cu.cuDeviceGetUuid, handle)) == uuid:
            return handle
    raise BackendError(Result.ERROR_NO_DEVICE, f"the driver has no device {uuid}")
