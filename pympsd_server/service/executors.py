"""Executor processes, one a device: started when first needed, asked by request number, watched, replaced."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from itertools import count
from typing import Any, Final

import trio
from attrs import define, field

from pympsd.build import build_id
from pympsd.channel.awaited import MessageChannel
from pympsd.channel.descriptors import EXHAUSTED, close_all, told
from pympsd.channel.processes import open_process
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.results import Result
from pympsd.wire import executor_messages as said
from pympsd.wire.errors import RemoteError

START_SECONDS: Final = 60.0
"""An executor that is not ready after so long is given up."""
LEAVE_SECONDS: Final = 1.0
"""One whose link is closed leaves at once; one that is stopped or stuck is killed after so long."""
HEARTBEAT_SECONDS: Final = 5.0
"""So often an executor is asked whether it is well."""
SILENCE_SECONDS: Final = 20.0
"""One that has not answered for so long is wedged. Its link's thread answers, which never waits for a kernel."""
NOWHERE: Final = "/dev/null/no-mps-for-executors"
"""The executor's pipe directory: its own libcuda must not knock at our door."""


class ExecutorError(Exception):
    """A request failed: a CUresult and a sentence."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@define
class Executor:
    """A running executor of a device; ``generation`` counts the device's executors from 1."""

    device: int
    generation: int
    process: trio.Process
    channel: MessageChannel
    gone: trio.Event = field(factory=trio.Event, init=False)
    """Set when its process has ended and is reaped."""
    retired: bool = field(default=False, init=False)
    """Its end was asked for: it is no loss."""
    _answers: dict[int, tuple[trio.Event, list[tuple[Any, tuple[int, ...]]]]] = field(factory=dict, init=False)
    _ended: bool = False

    async def ask(self, request: int, message: object) -> tuple[Any, tuple[int, ...]]:
        """Send a request; return its answer and descriptors; raise ExecutorError when it failed or ended."""
        if self._ended:
            raise _gone(self.device)
        event, answers = self._answers[request] = (trio.Event(), [])
        self.channel.send(message)
        try:
            await event.wait()
        except BaseException:
            # Cancelled just as the answer came: nobody takes its descriptors.
            close_all(fd for _, fds in answers for fd in fds)
            raise
        finally:
            del self._answers[request]
        if not answers:
            raise _gone(self.device)
        answer, fds = answers[0]
        if isinstance(answer, said.ExecutorRefused):
            raise ExecutorError(answer.code, answer.reason)
        return answer, fds

    def take(self, message: Any, fds: tuple[int, ...]) -> None:
        """Hand an answer to who asked."""
        waiting = self._answers.get(getattr(message, "request", 0))
        if waiting is None:
            close_all(fds)
            return
        waiting[1].append((message, fds))
        waiting[0].set()

    def end(self) -> None:
        """Wake all who wait: the executor is gone."""
        self._ended = True
        for event, _ in self._answers.values():
            event.set()


class ExecutorGone(ExecutorError):
    """The executor has ended, before or during the request."""


def _gone(device: int) -> ExecutorGone:
    return ExecutorGone(Result.ERROR_MPS_RPC_FAILURE, f"the executor of device {device} has ended")


@define
class Executors:
    """All executors of a server."""

    devices: tuple[DeviceFacts, ...]
    backend: str
    show_as: str
    nursery: trio.Nursery
    log: Any
    on_fault: Any
    """Called with (context serial, code, reason)."""
    on_loss: Any
    """Called with (device, reason) when an executor has ended that nobody asked to."""
    on_memory: Any = None
    """Called with (device, bytes by client) when that has changed; None: nobody wants to know."""
    _running: dict[int, Executor] = field(factory=dict, init=False)
    _generations: dict[int, int] = field(factory=dict, init=False)
    _starting: dict[int, trio.Lock] = field(factory=dict, init=False)
    _requests: count[int] = field(factory=lambda: count(1), init=False)

    def next_request(self) -> int:
        """Return a request number."""
        return next(self._requests)

    def running(self, device: int) -> Executor | None:
        """Return a device's executor when there is one."""
        return self._running.get(device)

    async def of(self, device: int) -> Executor:
        """Return a device's executor, started now if need be; raise ExecutorError."""
        async with self._starting.setdefault(device, trio.Lock()):
            if device not in self._running:
                self._generations[device] = self._generations.get(device, 0) + 1
                await self.nursery.start(self._run, device, self._generations[device])
            if device not in self._running:
                raise _gone(device)
            return self._running[device]

    async def retire(self, device: int) -> None:
        """End a device's executor, whatever it does; the next one is another process, of another generation."""
        executor = self._running.get(device)
        if executor is not None:
            executor.retired = True
            executor.process.kill()
            await executor.gone.wait()

    async def _run(self, device: int, generation: int, task_status: Any) -> None:
        try:
            ours, process = await _spawn(self.show_as)
        except OSError as error:
            reason = f"the executor of device {device} could not be started: {told(error)}"
            if error.errno in EXHAUSTED:
                self.log.error("shared_memory_failed")
            self.log.error("executor_not_started", reason=reason)
            raise ExecutorError(Result.ERROR_OPERATING_SYSTEM, reason) from None
        channel = MessageChannel(trio.socket.from_stdlib_socket(ours), fds_allowed=2)
        executor = Executor(device, generation, process, channel)
        reports = self.on_memory is not None
        setup = said.ExecutorSetup(build_id(), device, generation, self.backend, self.devices[device], reports)
        channel.send(setup)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.run_sender)
                await _await_ready(channel)
                self.log.info("executor_started", device=device, pid=process.pid)
                self._running[device] = executor
                task_status.started()
                nursery.start_soon(self._watch, executor)
                await self._listen(executor)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # A start that failed: whoever waits for it gets the plain error (an except* would wrap it again).
            failed = group.subgroup(ExecutorError)
            if failed is None:
                raise
            raise _first(failed) from None
        finally:
            self._running.pop(device, None)
            executor.end()
            if self.on_memory is not None:
                self.on_memory(device, {})
            channel.close()
            with trio.CancelScope(shield=True):
                status = await _reap(process)
                executor.gone.set()
        self.log.info("executor_ended", device=device, pid=process.pid, status=status)
        if not executor.retired:
            self.on_loss(device, f"the executor of device {device} ended with status {status}")

    async def _watch(self, executor: Executor) -> None:
        """Kill an executor whose heart has stopped; one that was stopped by a signal is left to whoever did that."""
        while True:
            await trio.sleep(HEARTBEAT_SECONDS)
            request = self.next_request()
            with trio.move_on_after(SILENCE_SECONDS) as silence:
                with suppress(ExecutorError):
                    await executor.ask(request, said.Ping(request))
            if silence.cancelled_caught and not _stopped(executor.process.pid):
                self.log.error("executor_silent", device=executor.device, pid=executor.process.pid)
                executor.process.kill()

    async def _listen(self, executor: Executor) -> None:
        try:
            while (received := await executor.channel.receive_message()) is not None:
                message, fds = received
                if isinstance(message, said.ContextFaulted):
                    self.on_fault(message.context, message.code, message.reason)
                elif isinstance(message, said.MemoryUsed):
                    if self.on_memory is not None:
                        self.on_memory(executor.device, message.clients)
                else:
                    executor.take(message, fds)
        except RemoteError:
            executor.process.kill()


def _first(group: BaseExceptionGroup[ExecutorError]) -> ExecutorError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _spawn(show_as: str) -> tuple[socket.socket, trio.Process]:
    main = os.path.join(os.path.dirname(os.path.dirname(__file__)), "executor", "__main__.py")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        try:
            # Its standard streams are the server's: nothing in, nothing out, last words to the daemon.
            process = await open_process(
                [sys.executable, "-I", main, "--link-fd", str(theirs.fileno()), "--name", show_as],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": NOWHERE},
            )
        except BaseException:
            ours.close()
            raise
    return ours, process


async def _await_ready(channel: MessageChannel) -> None:
    with trio.move_on_after(START_SECONDS):
        try:
            received = await channel.receive_message()
        except RemoteError as error:
            raise ExecutorError(Result.ERROR_UNKNOWN, str(error)) from None
        message = received[0] if received else None
        if isinstance(message, said.ExecutorReady):
            return
        if isinstance(message, said.ExecutorFailed):
            raise ExecutorError(message.code, message.reason)
        raise ExecutorError(Result.ERROR_UNKNOWN, "the executor ended before it was ready; server.log may say why")
    raise ExecutorError(Result.ERROR_UNKNOWN, f"the executor was not ready within {START_SECONDS:.0f} s")


def _stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


async def _reap(process: trio.Process) -> int:
    # Its link is closed: it leaves by itself, unless it is stuck.
    with trio.move_on_after(LEAVE_SECONDS):
        return await process.wait()
    process.kill()
    return await process.wait()
