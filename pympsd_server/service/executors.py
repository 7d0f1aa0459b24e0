"""Executor processes, one a place: started when first needed, asked by request number, watched, replaced."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final

import trio
from attrs import define, field

from pympsd.build import build_id
from pympsd.channel.descriptors import EXHAUSTED, close_all, explain
from pympsd.channel.message_channel import MessageChannel
from pympsd.channel.processes import open_process
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.results import Result
from pympsd.wire import executor_messages as said
from pympsd.wire.errors import RemoteError
from pympsd_server.state_machine.executor_slots import EVERYBODY, Place
from pympsd_server.state_machine.roster import Context

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
    """A running executor; ``generation`` counts those of its device from 1, of whatever users."""

    place: Place
    generation: int
    process: trio.Process
    channel: MessageChannel
    gone: trio.Event = field(factory=trio.Event, init=False)
    """Set when its process has ended and is reaped."""
    retired: bool = field(default=False, init=False)
    """Its end was asked for: it is no loss."""
    unfinished: int = field(default=0, init=False)
    """How many contexts it had last, as far as is known, that are gone and have kernels that still run."""
    _answers: dict[int, tuple[trio.Event, list[tuple[Any, tuple[int, ...]]]]] = field(factory=dict, init=False)
    _ended: bool = False

    @property
    def device(self) -> int:
        """The ordinal of its device."""
        return self.place.device

    async def free(self, request: said.Detach | said.DropClient) -> None:
        """Have a context or a client freed, and note what has to wait for its kernels; raise ExecutorError."""
        answer, _ = await self.ask(request.request, request)
        self.unfinished = answer.unfinished

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
    """Called with (place, reason) when an executor has ended that nobody asked to."""
    on_memory: Any = None
    """Called with (device, bytes by client) when that has changed; None: nobody wants to know."""
    is_used: Callable[[Place], bool] = lambda place: True
    """Whether a place has contexts. The executor of one that has none makes room on its device for another user's."""
    _running: dict[Place, Executor] = field(factory=dict, init=False)
    _generations: dict[int, int] = field(factory=dict, init=False)
    """By device."""
    _starting: dict[Place, trio.Lock] = field(factory=dict, init=False)
    _held: dict[Place, dict[int, int]] = field(factory=dict, init=False)
    """Bytes by client."""
    _requests: count[int] = field(factory=lambda: count(1), init=False)

    def next_request(self) -> int:
        """Return a request number."""
        return next(self._requests)

    def running(self, place: Place) -> Executor | None:
        """Return a place's executor when there is one."""
        return self._running.get(place)

    def that_runs(self, context: Context) -> Executor | None:
        """Return the executor of a context, None when it has ended: another one has its place, or will."""
        executor = self._running.get(context.place)
        return executor if executor is not None and executor.generation == context.generation else None

    async def of(self, place: Place) -> Executor:
        """Return a place's executor, started now if need be; raise ExecutorError."""
        async with self._starting.setdefault(place, trio.Lock()):
            found = self._running.get(place)
            if found is not None and found.retired:
                await found.gone.wait()
            if place not in self._running:
                await self._make_room(place)
                generation = self._generations[place.device] = self._generations.get(place.device, 0) + 1
                await self.nursery.start(self._run, place, generation)
            if place not in self._running:
                raise _gone(place.device)
            return self._running[place]

    async def _make_room(self, place: Place) -> None:
        """End the executors of other users on the device that nobody uses: each holds memory of it for itself."""
        others = [one for one in self._running.values() if one.device == place.device and one.place != place]
        for one in others:
            if not (self.is_used(one.place) or self._starting[one.place].locked()):
                await self.end(one)

    async def retire(self, place: Place) -> None:
        """End a place's executor, whatever it does; the next one is another process, of another generation."""
        executor = self._running.get(place)
        if executor is not None:
            await self.end(executor)

    async def end_if_forsaken(self, executor: Executor) -> None:
        """End an executor on which nobody is left and in which kernels of those who were still run.

        They cannot be stopped, and keep their memory: the next context is another executor's.
        """
        if not executor.unfinished or executor.retired:
            return
        if self.is_used(executor.place):
            # As much is held as before, but not by whom it was.
            self._tell_memory(executor.place, self._held.get(executor.place, {}))
            return
        self.log.info("executor_forsaken", device=executor.device, pid=executor.process.pid)
        await self.end(executor)

    async def end(self, executor: Executor) -> None:
        """End an executor, whatever it does; return when its process has ended."""
        executor.retired = True
        if not executor.gone.is_set():
            executor.process.kill()
            await executor.gone.wait()

    async def _run(self, place: Place, generation: int, task_status: Any) -> None:
        device = place.device
        try:
            ours, process = await _spawn(self.show_as)
        except OSError as error:
            reason = f"the executor of device {device} could not be started: {explain(error)}"
            if error.errno in EXHAUSTED:
                self.log.error("shared_memory_failed")
            self.log.error("executor_not_started", reason=reason)
            raise ExecutorError(Result.ERROR_OPERATING_SYSTEM, reason) from None
        channel = MessageChannel(trio.socket.from_stdlib_socket(ours), fds_allowed=2)
        executor = Executor(place, generation, process, channel)
        reports = self.on_memory is not None
        setup = said.ExecutorSetup(build_id(), device, generation, self.backend, self.devices[device], reports)
        channel.send(setup)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.run_sender)
                ready = await _await_ready(channel)
                self.log.info("executor_started", device=device, pid=process.pid)
                if ready.workers:
                    self.log.info("executor_workers", pid=process.pid, workers=ready.workers)
                if place.user not in (EVERYBODY, os.getuid()):
                    self.log.info("executor_user", pid=process.pid, uid=place.user)
                self._running[place] = executor
                task_status.started()
                nursery.start_soon(self._watch, executor)
                await self._listen(executor)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # A start that failed: whoever waits for it gets the plain error (an except* would wrap it again).
            failed = group.subgroup(ExecutorError)
            if failed is None:
                raise
            cause = _first(failed)
            reason = f"the executor of device {device} could not be started: {cause.reason}"
            self.log.error("executor_not_started", reason=reason)
            raise cause from None
        finally:
            self._running.pop(place, None)
            executor.end()
            self._tell_memory(place, {})
            channel.close()
            with trio.CancelScope(shield=True):
                status = await _reap(process)
                executor.gone.set()
        self.log.info("executor_ended", device=device, pid=process.pid, status=status)
        if not executor.retired:
            self.on_loss(place, f"the executor of device {device} ended with status {status}")

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
                    self._tell_memory(executor.place, message.clients)
                else:
                    executor.take(message, fds)
        except RemoteError:
            executor.process.kill()

    def _tell_memory(self, place: Place, held: dict[int, int]) -> None:
        """What clients hold at a place has changed: tell what those of the whole device hold."""
        self._held[place] = held
        if self.on_memory is not None:
            device = place.device
            all_of_them = (each for other, each in self._held.items() if other.device == device)
            self.on_memory(device, {client: count for each in all_of_them for client, count in each.items()})


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


async def _await_ready(channel: MessageChannel) -> said.ExecutorReady:
    with trio.move_on_after(START_SECONDS):
        try:
            received = await channel.receive_message()
        except RemoteError as error:
            raise ExecutorError(Result.ERROR_UNKNOWN, str(error)) from None
        message = received[0] if received else None
        if isinstance(message, said.ExecutorReady):
            return message
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
