"""The executor processes of a server: start them when they are first needed, watch them, replace them.

**The problem.** The process that drives a device may have to die: a client's kernel may crash the driver, hang the
device or use up the machine's memory, and after a fatal fault only another process can use the GPU. A server must not
die, because it has its clients' sessions. Therefore a server never opens a device. Executors do, one for each *slot*:
a device, and the user (or the SM partition) whose contexts run there, see `state_machine.executor_slots`.

**The life of an executor.** `get_or_start` starts one when the first context of a slot is opened:

    spawn -> ExecutorSetup -> ExecutorReady -> requests and answers, pings -> link closed -> reaped

Each executor that is started on a device has a new *generation*. A context keeps the generation of its executor, so a
context of an ended executor is never mistaken for a context of the next one (`executor_of`). An executor of an unused
slot may be ended to free device memory for another user's executor (`_make_room`).

**Ends.** There are three, and the difference decides whether clients notice:

- *expected*: this server ends an executor that is unused, or that must be replaced because of a fault or a
  termination (`end`, `end_expected`). Nobody is notified; the next context starts another executor.
- *unexpected*: the process crashed, was killed, or violated the protocol. `on_loss` is called, and containment
  handles the loss as a fatal fault of the device. After SIGKILL the cgroup's memory is logged, because the kernel
  does not report that it has killed a process for lack of memory.
- *silent*: the thread that reads the link never waits for a kernel. So an executor that does not answer a ping for
  SILENCE_SECONDS is wedged and is killed, unless a signal has stopped the process, which then may continue later.

**Invariants.** At most one executor of a slot runs at a time; `_starting` has a lock for each slot. The next one is
started when the loss of the last one has been handled, so that new contexts are not lost with it. A request is
answered, or fails with ExecutorGone when the executor ends, so no task waits forever. Executors inherit a pipe
directory that does not exist, so that the driver in them never connects to an MPS daemon.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final

import trio
from attrs import define, field

from pympsd.channel.descriptors import EXHAUSTED, explain
from pympsd.channel.message_channel import MessageChannel
from pympsd.errors import RemoteError
from pympsd.process.spawn import open_process
from pympsd.process.version import build_id
from pympsd.vocabulary.device_properties import DeviceProperties, combine_utilization
from pympsd.vocabulary.results import Result
from pympsd.wire import executor_messages
from pympsd_server.service.executor import Executor, ExecutorError, ended_error
from pympsd_server.service.memory_accounts import CgroupMemory, MemoryAccounts
from pympsd_server.state_machine.client_table import ContextRecord
from pympsd_server.state_machine.executor_slots import ALL_USERS, ExecutorSlot

START_SECONDS: Final = 60.0
"""The time limit for an executor to become ready."""
LEAVE_SECONDS: Final = 1.0
"""The time limit for an executor to exit after its link is closed; a stopped or stuck executor is then killed."""
HEARTBEAT_SECONDS: Final = 5.0
"""The interval between pings of an executor."""
SILENCE_SECONDS: Final = 20.0
"""The seconds without an answer after which an executor is wedged.

The thread of its link never waits for a kernel.
"""
NOWHERE: Final = "/dev/null/no-mps-for-executors"
"""The pipe directory of executors.

The path does not exist, because the libcuda of an executor must not connect to a daemon.
"""


@define
class Executors:
    """The executors of a server."""

    devices: tuple[DeviceProperties, ...]
    backend: str
    nursery: trio.Nursery
    log: Any
    on_fault: Callable[[int, int, str], None] = lambda context_id, code, reason: None
    """The function to call with (context id, code, reason) when an executor reports a faulted context."""
    on_loss: Callable[[ExecutorSlot, str], None] = lambda slot, reason: None
    """The function to call with (slot, reason) when an executor has ended unexpectedly."""
    on_memory: Any = None
    """The function to call with (device, bytes by client) after changes; None if memory is not reported."""
    on_shortage: Callable[[Executor, executor_messages.MemoryShort], None] = lambda executor, message: None
    """The function to call when a client lacks memory that its soft limit guarantees."""
    on_audited: Callable[[int, executor_messages.MemoryAudited], None] = lambda device, message: None
    """The function to call with (device, message) when an audited client has allocated or freed memory."""
    accounts: MemoryAccounts = field(factory=MemoryAccounts, init=False)
    is_used: Callable[[ExecutorSlot], bool] = lambda slot: True
    """A function that returns whether a slot has contexts.

    The executor of an unused slot may be ended for another user's executor.
    """
    on_start: Callable[[Executor], None] = lambda executor: None
    """The function to call when an executor is ready."""
    memory: CgroupMemory = field(factory=CgroupMemory)
    """A function that describes the memory of this process's cgroup, for the log line about a killed executor."""
    launches: Counter[int] = field(factory=Counter, init=False)
    """The number of kernels that all generations of executors have started, by device."""
    _utilization: dict[int, dict[ExecutorSlot, int]] = field(factory=dict, init=False)
    """The utilization of each running executor in percent, by device; without devices that never reported it."""
    _running: dict[ExecutorSlot, Executor] = field(factory=dict, init=False)
    _latest: dict[ExecutorSlot, Executor] = field(factory=dict, init=False)
    """The last executor that was started in each slot; it may be starting, running, ending or gone."""
    _generations: dict[int, int] = field(factory=dict, init=False)
    """The generation of the last executor that was started, by device."""
    _starting: dict[ExecutorSlot, trio.Lock] = field(factory=dict, init=False)
    _requests: count[int] = field(factory=lambda: count(1), init=False)

    def next_request(self) -> int:
        """Return a new request number."""
        return next(self._requests)

    def find(self, slot: ExecutorSlot) -> Executor | None:
        """Return the executor that runs in a slot; None if there is none."""
        return self._running.get(slot)

    @property
    def all_running(self) -> tuple[Executor, ...]:
        """The running executors."""
        return tuple(self._running.values())

    def get_utilization(self, device: int) -> int | None:
        """Return the percentage of time in which kernels of any executor ran; None if it is not counted."""
        percentages = self._utilization.get(device)
        return None if percentages is None else combine_utilization(percentages.values())

    def executor_of(self, context: ContextRecord) -> Executor | None:
        """Return a context's executor; None if that executor has ended, even if the slot has another one."""
        executor = self._running.get(context.slot)
        return executor if executor is not None and executor.generation == context.generation else None

    async def get_or_start(self, slot: ExecutorSlot) -> Executor:
        """Return a slot's executor; start it if necessary. Raise ExecutorError."""
        async with self._starting.setdefault(slot, trio.Lock()):
            await self.wait_until_ended(slot)
            if slot not in self._running:
                await self._make_room(slot)
                generation = self._generations[slot.device] = self._generations.get(slot.device, 0) + 1
                await self.nursery.start(self._run, slot, generation)
            if slot not in self._running:
                raise ended_error(slot.device)
            return self._running[slot]

    async def wait_until_ended(self, slot: ExecutorSlot) -> None:
        """If a slot's executor is ending, wait until it is reaped and, after an unexpected end, its loss is handled.

        Without this wait, a context of the next executor would count among the contexts that are lost with this one.
        """
        latest = self._latest.get(slot)
        if latest is not None and (latest.end_expected or latest.has_ended):
            await latest.gone.wait()

    async def _make_room(self, slot: ExecutorSlot) -> None:
        """End other users' unused executors on the device, because each occupies device memory."""
        closable = [
            executor
            for executor in self._running.values()
            if executor.device == slot.device and executor.slot != slot
        ]
        for executor in closable:
            if not (self.is_used(executor.slot) or self._starting[executor.slot].locked()):
                await self.end(executor)

    async def vacate(self, slot: ExecutorSlot) -> None:
        """Kill a slot's executor. The slot's next executor is another process, of another generation."""
        executor = self._running.get(slot)
        if executor is not None:
            await self.end(executor)

    async def end_if_abandoned(self, executor: Executor) -> None:
        """Kill an executor that has no contexts left, but still runs kernels of earlier ones.

        The kernels cannot be stopped and keep their memory; the next context starts another executor.
        """
        if not executor.unfinished or executor.end_expected:
            return
        if self.is_used(executor.slot):
            # The same memory is in use as before, but other clients count for it.
            self._report_memory(executor.slot, self.accounts.count_in_slot(executor.slot))
            return
        self.log.info("executor_abandoned", device=executor.device, pid=executor.process.pid)
        await self.end(executor)

    async def end(self, executor: Executor) -> None:
        """Kill an executor, and wait until its process has ended."""
        executor.end_expected = True
        if not executor.gone.is_set():
            executor.process.kill()
            await executor.gone.wait()

    async def _run(self, slot: ExecutorSlot, generation: int, task_status: Any) -> None:
        """Start an executor, report that it is ready, and serve its link until it has ended."""
        device = slot.device
        try:
            own_end, process = await _spawn()
        except OSError as error:
            reason = f"the executor of device {device} could not be started: {explain(error)}"
            if error.errno in EXHAUSTED:
                self.log.error("shared_memory_failed")
            self.log.error("executor_not_started", reason=reason)
            raise ExecutorError(Result.ERROR_OPERATING_SYSTEM, reason) from None
        channel = MessageChannel(trio.socket.from_stdlib_socket(own_end), fds_allowed=2)
        executor = self._latest[slot] = Executor(slot, generation, process, channel)
        reports = self.on_memory is not None
        setup = executor_messages.ExecutorSetup(
            build_id(), device, generation, self.backend, self.devices[device], reports
        )
        channel.send(setup)
        oom_kills = self.memory.oom_kills()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.run_sender)
                ready = await _await_ready(channel)
                self.log.info("executor_started", device=device, pid=process.pid)
                if ready.workers:
                    self.log.info("executor_workers", pid=process.pid, workers=ready.workers)
                if slot.user not in (ALL_USERS, os.getuid()):
                    self.log.info("executor_user", pid=process.pid, uid=slot.user)
                if slot.partition:
                    self.log.info("executor_partition", pid=process.pid, name=slot.partition)
                self._running[slot] = executor
                self.accounts.add_executor(executor)
                self.on_start(executor)
                task_status.started()
                nursery.start_soon(self._watch, executor)
                await self._listen(executor)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # The start failed: raise the error itself in the waiting task (an except* would wrap it again).
            failed = group.subgroup(ExecutorError)
            if failed is None:
                raise
            cause = _first(failed)
            reason = f"the executor of device {device} could not be started: {cause.reason}"
            self.log.error("executor_not_started", reason=reason)
            raise cause from None
        finally:
            self._running.pop(slot, None)
            executor.end()
            self.accounts.remove_executor(slot)
            self._utilization.get(device, {}).pop(slot, None)
            self._push_memory(slot.device)
            channel.close()
            with trio.CancelScope(shield=True):
                status = await _reap(executor)
                executor.gone.set()  # waiting tasks continue after on_loss, because no other task runs until then
        self.log.info("executor_ended", device=device, pid=process.pid, status=status)
        if executor.end_expected:
            return
        reason = f"the executor of device {device} ended with status {status}"
        if status == -signal.SIGKILL and not executor.is_killed:
            reason = f"{reason}, possibly out of memory ({self.memory.describe(oom_kills)})"
            self.log.error("executor_killed", reason=reason)
        self.on_loss(slot, reason)

    async def _watch(self, executor: Executor) -> None:
        """Ping an executor, and kill it if it is silent, unless a signal has stopped its process."""
        while True:
            await trio.sleep(HEARTBEAT_SECONDS)
            request = self.next_request()
            with trio.move_on_after(SILENCE_SECONDS) as silence:
                with suppress(ExecutorError):
                    await executor.ask(request, executor_messages.Ping(request))
            if silence.cancelled_caught and not _is_stopped(executor.process.pid):
                self.log.error("executor_silent", device=executor.device, pid=executor.process.pid)
                executor.kill()

    async def _listen(self, executor: Executor) -> None:
        """Pass on the reports and answers of an executor until its link ends. Kill it if it violates the protocol."""
        try:
            while (received := await executor.channel.receive_message()) is not None:
                message, fds = received
                if isinstance(message, executor_messages.ContextFaulted):
                    self.on_fault(message.context, message.code, message.reason)
                elif isinstance(message, executor_messages.MemoryUsed):
                    self.launches[executor.device] += message.launches
                    if message.utilization is not None:
                        self._utilization.setdefault(executor.device, {})[executor.slot] = message.utilization
                    self._report_memory(executor.slot, message.clients)
                elif isinstance(message, executor_messages.MemoryShort):
                    self.on_shortage(executor, message)
                elif isinstance(message, executor_messages.MemoryAudited):
                    self.on_audited(executor.device, message)
                else:
                    executor.deliver(message, fds)
        except RemoteError:
            executor.kill()

    def _report_memory(self, slot: ExecutorSlot, bytes_by_client: dict[int, int]) -> None:
        """Store the memory that a slot's clients hold, and report the memory of all clients of the device."""
        self.accounts.report(slot, bytes_by_client)
        self._push_memory(slot.device)

    def _push_memory(self, device: int) -> None:
        if self.on_memory is not None:
            self.on_memory(device, self.accounts.usage(device))


def _first(group: BaseExceptionGroup[ExecutorError]) -> ExecutorError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _spawn() -> tuple[socket.socket, trio.Process]:
    main = os.path.join(os.path.dirname(os.path.dirname(__file__)), "executor", "__main__.py")
    own_end, executor_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with executor_end:
        try:
            # The executor inherits the server's standard streams, so its errors reach the daemon.
            process = await open_process(
                [sys.executable, "-I", main, "--link-fd", str(executor_end.fileno())],
                pass_fds=(executor_end.fileno(),),
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": NOWHERE},
            )
        except BaseException:
            own_end.close()
            raise
    return own_end, process


async def _await_ready(channel: MessageChannel) -> executor_messages.ExecutorReady:
    with trio.move_on_after(START_SECONDS):
        try:
            received = await channel.receive_message()
        except RemoteError as error:
            raise ExecutorError(Result.ERROR_UNKNOWN, str(error)) from None
        message = received[0] if received else None
        if isinstance(message, executor_messages.ExecutorReady):
            return message
        if isinstance(message, executor_messages.ExecutorFailed):
            raise ExecutorError(message.code, message.reason)
        raise ExecutorError(Result.ERROR_UNKNOWN, "the executor ended before it was ready; see server.log")
    raise ExecutorError(Result.ERROR_UNKNOWN, f"the executor was not ready within {START_SECONDS:.0f} s")


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


async def _reap(executor: Executor) -> int:
    # The link is closed, so the executor exits unless it is stuck.
    with trio.move_on_after(LEAVE_SECONDS):
        return await executor.process.wait()
    executor.kill()
    return await executor.process.wait()
