"""The services that the contexts and streams of one device share.

Passing one object instead of twelve keeps the constructors of contexts, streams and copies short; none of the
services depends on the objects that use it."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from pympsd_server.backends.budget import Counters
from pympsd_server.backends.cuda.driver.calls import Driver
from pympsd_server.backends.cuda.memory.cleanup_thread import CleanupThread
from pympsd_server.backends.cuda.memory.deferred_release import DeferredRelease
from pympsd_server.backends.cuda.memory.device_memory import DeviceMemory
from pympsd_server.backends.cuda.memory.scratch import ScratchPool
from pympsd_server.backends.cuda.memory.staging import Staging
from pympsd_server.backends.cuda.submission.completions import CompletionWords
from pympsd_server.backends.cuda.submission.stream_markers import EventPool, MarkerWatcher
from pympsd_server.backends.cuda.submission.work_times import WorkTimes


@frozen(eq=False)
class DeviceServices:
    """The services of one device; each is safe to use from several threads."""

    driver: Driver
    attributes: Mapping[str, int]
    """CUdevice_attribute values, by name."""
    counters: Counters
    events: EventPool
    words: CompletionWords
    memory: DeviceMemory
    staging: Staging
    scratch: ScratchPool
    watcher: MarkerWatcher
    cleanup: CleanupThread
    unloaded_modules: DeferredRelease
    times: WorkTimes
