"""The part of the port for a whole device: its properties, its memory, its traces, and how contexts are created.

An executor opens one `Device` when it starts and keeps it until it ends. The rest of the port is reached through the
device's contexts (`backends.interface`, whose rules for units, threads and errors apply here, too). One device serves
all clients of the executor, so these calls concern all of them: the memory that each of them holds, and the times of
its work.

    device = EmulatedDevice(properties)            # or CudaDevice
    device.watch_memory(report)                    # before the first context
    context = device.create_context(client_id, quota, on_fault, context_id)
    device.memory_used                             # {client_id: 541_065_216}
    device.close()
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pympsd.vocabulary.limits import Quota
from pympsd.wire.executor_messages import BatchTrace, ContextTrace
from pympsd_server.backends.interface import Capabilities, Context, Status
from pympsd_server.backends.virtual_memory import File

Audit = Callable[[int, int, int, int], None]
"""A function to call when an audited client has taken or returned more than 1 MiB of device memory at a time.

Arguments: the client's address space, the bytes (negative if they were returned), the bytes that the client has then,
and its lowest limit in bytes.
"""


class Timeline(Protocol):
    """Receives the times of a device's work, for a trace file.

    Times are nanoseconds of CLOCK_MONOTONIC. Its methods are called from any thread and must not wait.
    ``context`` is the ``context_id`` of ``Device.create_context``, ``name`` a kernel's name or a kind of copy.
    """

    def ran(self, context: int, name: str, began: int, ended: int) -> None:
        """Note the time that a slice of a kernel, a copy or a fill took on the device.

        A kernel that runs in several slices is reported several times.
        """

    def note_finished(self, context: int, stream: int, name: str, submitted: int, began: int, ended: int) -> None:
        """Note that work in a stream is finished, or was stopped.

        Args:
            context: As in `Timeline`.
            stream: The stream's number in its context; 0 for the default stream.
            name: As in `Timeline`.
            submitted: When it was queued.
            began: When the device began it.
            ended: When the device finished or stopped it.
        """


class Device(Protocol):
    """One device, opened by its executor, until ``close``.

    Any thread may read its properties, and reading never waits for work on the device.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this device, which do not change while it is open.

        Callers test them before they offer a feature: ``device.capabilities.stops_kernels``.
        """

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """The lowest and the highest stream priority; the lowest is the larger number.

        As cuCtxGetStreamPriorityRange returns them: (0, -5) for emulated devices.
        """

    @property
    def trace(self) -> Mapping[str, int]:
        """Counters for tests and operators, by name.

        Both backends have ``contexts``, ``kernels_started``, ``kernels_finished``, ``bytes_allocated`` and
        ``bytes_used``. Only the first and the last can also decrease.
        """

    @property
    def context_traces(self) -> Sequence[ContextTrace]:
        """The SMs of each live context, and the maximum number of blocks that were resident on them at the same time.

        A destroyed context is included as long as its kernels run.
        """

    @property
    def batch_traces(self) -> Sequence[BatchTrace]:
        """The latest batches of blocks that began, at most MAX_BATCH_TRACES, the oldest first.

        Empty unless ``Capabilities.sees_blocks``.
        """

    @property
    def memory_used(self) -> Mapping[int, int]:
        """Bytes of device memory by address space: allocations, modules and the contexts themselves.

        Address spaces without contexts are left out.
        """

    @property
    def unfinished(self) -> int:
        """The number of destroyed contexts that keep their resources because their kernels still run.

        This happens only without ``Capabilities.stops_kernels`` (see ``Context.destroy``).
        """

    @property
    def host_memory_base(self) -> int:
        """The first address of the 256 GiB in which kernels can access host memory; 0 if it may be anywhere.

        The client maps pinned memory there, at the same address as the executor.
        """

    def register_host_memory(
        self, address_space: int, address: int, memory: memoryview, file: File
    ) -> Callable[[], None]:
        """Register a client's pinned host memory, so that copies, and kernels if possible, can access it directly.

        Args:
            address_space: The client whose kernels may access it.
            address: The address of the memory, the same in this process and in the client's.
            memory: Its bytes, whole shared pages, which stay mapped while referenced. The reference is dropped when
                no work can access the memory any more.
            file: The file with all pinned memory of the client on this device, HOST_FILE_BYTES long, for executors
                of other devices. It stays open until the client's contexts are destroyed.

        Returns:
            A callback that unregisters it, to be called once after its last use.

        Raises:
            BackendError: OUT_OF_MEMORY, or the driver's refusal.
        """

    def watch_memory(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after every change of ``memory_used``.

        ``changed`` is called from any thread and must not wait: it can set an event.
        """

    def account_others(self, count: int, groups: Mapping[str, int]) -> None:
        """Count the bytes that clients of other executors hold on the device, which later allocations cannot get.

        Args:
            count: The bytes that they hold in all.
            groups: The bytes that they hold by group of clients that share a limit, such as a cgroup (``Quota``).

        Each call replaces the numbers of the previous one.
        """

    def audit_memory(self, audited: Audit) -> None:
        """Call ``audited`` when a client whose quota is audited allocates or frees memory.

        ``audited`` is called from any thread and must not wait. `Audit` describes its arguments.
        """

    def set_timeline(self, timeline: Timeline | None) -> None:
        """Report all work from now on to a timeline, or to none.

        Raises:
            BackendError: NOT_SUPPORTED; NOT_READY if a GPU does not reach an event within 1 s.
        """

    def create_context(
        self, address_space: int, quota: Quota, on_fault: Callable[[Status], None], context_id: int = 0
    ) -> Context:
        """Create a context.

        Args:
            address_space: The client process. Contexts of one address space share memory, and one memory limit.
            quota: The limits of the context and its client.
            on_fault: Called once, from any thread, with the sticky error when the context becomes faulted.
            context_id: The context's id in traces and timelines.

        Raises:
            BackendError: OUT_OF_MEMORY if there is no memory for the context itself; the reason names the bytes.
        """

    def close(self) -> None:
        """Stop all work and release the device. The contexts that still exist accept no more work.

        Kernels that the device cannot stop end with the process.
        """
