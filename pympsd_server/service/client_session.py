"""One client of the server: its session from welcome to end, contexts opened and closed, everything freed after."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from typing import Any, Final

import trio
from attrs import define, field

from pympsd.channel.descriptors import explain, require_room
from pympsd.channel.message_channel import MessageChannel
from pympsd.devices import memory_limits
from pympsd.devices.machine import with_attributes
from pympsd.devices.visible import DuplicateDevice, NoVisibleDevice, select
from pympsd.version import CUDA_VERSION
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire import executor_messages as executor_says
from pympsd.wire import messages
from pympsd.wire.errors import RemoteError
from pympsd.wire.link_messages import AdmitClient
from pympsd_server.service.executors import Executor, ExecutorError, ExecutorGone
from pympsd_server.service.server import Server
from pympsd_server.state_machine.connections import PoolExhausted, slots_of
from pympsd_server.state_machine.executor_slots import Place
from pympsd_server.state_machine.quotas import (
    AffinityRefused,
    client_percentage,
    client_priority,
    context_share,
    memory_limit,
    process_share,
)
from pympsd_server.state_machine.roster import Client, Context, NotHere

ROOM: Final = 8
"""Descriptors that must be free when a client comes: an executor may have to be started for it."""
STREAM_FDS: Final = 2

FREE_SECONDS: Final = 5.0
"""An executor has so long to free what a client held; one that is stopped does it when it goes on."""
LOGGED_LIMITS: Final = 8
"""Of a client's memory limits that cannot be so many are logged: the log is everybody's."""


@define
class ClientSession:
    """The server's side of a session. ``pidfd`` is -1 where the client's process is not visible here."""

    server: Server
    client: Client
    channel: MessageChannel
    pidfd: int
    thread_percentage: ThreadPercentage
    memory_limits: dict[int, int]
    """Both as they were when the client came: later changes are for later clients. Lowered by its environment."""
    ordinals: tuple[int, ...] = ()
    """For each device the client sees, in its own numbering, the ordinal among the server's."""
    _streams: set[tuple[Place, int]] = field(factory=set, init=False)
    """(place, generation) of each executor this client has a stream to."""
    _refused: bool = field(default=False, init=False)
    """It came while a fault was at hand: it never was a client."""

    @classmethod
    def of(cls, server: Server, admitted: AdmitClient, fds: tuple[int, ...]) -> ClientSession:
        """Take in a client that the daemon hands over with its session and its pidfd."""
        server.default_priority(admitted.priority)
        priority = client_priority(admitted.priority, admitted.environment)
        client = server.roster.arrive(admitted.client, admitted.pid, priority, admitted.environment, admitted.uid)
        sock = trio.socket.from_stdlib_socket(socket.socket(fileno=fds[0]))
        pidfd = fds[1] if len(fds) > 1 else -1
        percentage = client_percentage(server.thread_percentage, admitted.environment)
        return cls(server, client, MessageChannel(sock), pidfd, percentage, server.memory_limits)

    async def run(self) -> None:
        """Serve the client until its session or its process ends, then free what it held."""
        self._refused = self.server.containment.refuses(self.client)
        if self._refused:
            self.server.refused_in_teardown(self.client)
        else:
            self.server.met_client(self.client)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.channel.run_sender)
                nursery.start_soon(self._leave_with_process, nursery.cancel_scope)
                await self._converse()
                nursery.cancel_scope.cancel()
        except Exception as error:
            # A defect of ours met by one client must not cost the others their server.
            self.server.log.error("server_defect", pid=self.client.pid, reason=repr(error))
        finally:
            self.channel.close()
            if self.pidfd >= 0:
                os.close(self.pidfd)
            if not self.server.ending:
                with trio.CancelScope(shield=True):
                    await self._free_everything()

    async def _leave_with_process(self, scope: trio.CancelScope) -> None:
        # A forked child may hold copies of the sockets: the process's end is what counts.
        if self.pidfd >= 0:
            await trio.lowlevel.wait_readable(self.pidfd)
            scope.cancel()

    async def _converse(self) -> None:
        if self._refused:
            reason = "the MPS server handles a fatal fault: try again when the clients it reached have gone"
            self.channel.send(messages.Refused(Result.ERROR_MPS_SERVER_NOT_READY, reason))
            await self.channel.drain()
            return
        if not self._welcome():
            # Its reason is with the client before the session ends.
            await self.channel.drain()
            return
        try:
            while (received := await self.channel.receive_message()) is not None:
                await self._take(received[0])
        except RemoteError as error:
            self.server.log.error("client_misbehaved", pid=self.client.pid, reason=str(error))

    def _welcome(self) -> bool:
        devices = self.server.devices
        try:
            require_room(ROOM)
        except OSError as error:
            reason = f"the MPS server is out of file descriptors: {explain(error)}"
            self.server.refused_client(self.client.pid, reason)
            self.channel.send(messages.Refused(Result.ERROR_OPERATING_SYSTEM, reason))
            return False
        try:
            self.ordinals = select(devices, self.client.environment.get("CUDA_VISIBLE_DEVICES"))
        except (NoVisibleDevice, DuplicateDevice) as error:
            self.server.refused_devices(self.client)
            self.channel.send(messages.Refused(Result.ERROR_NO_DEVICE, str(error)))
            return False
        refused = self._limit_memory()
        if refused:
            self.channel.send(messages.Refused(Result.ERROR_INVALID_VALUE, refused))
            return False
        seen = tuple(self._as_seen(devices[ordinal]) for ordinal in self.ordinals)
        self.channel.send(messages.SessionWelcome(os.getpid(), CUDA_VERSION, seen, self.ordinals))
        return True

    def _as_seen(self, device: DeviceFacts) -> DeviceFacts:
        """Return a device as this client sees it: with the SMs its percentage leaves (MPS documents, 2.3.5.2)."""
        return with_attributes(device, MULTIPROCESSOR_COUNT=process_share(self.thread_percentage, device))

    def _limit_memory(self) -> str:
        """Lower the memory limits by the client's environment; return why it is refused, or nothing.

        An index counts as the client does: among the devices it sees. Before Volta no limit is honoured.
        """
        visible = [self.server.devices[ordinal] for ordinal in self.ordinals]
        if not all(device.is_volta_or_newer for device in visible):
            self.memory_limits = {}
            return ""
        environment = self.client.environment
        limits, bad = memory_limits.read(visible, memory_limits.text_of(environment), "this process")
        own = {self.ordinals[number]: limit.value for number, limit in limits.items()}
        self.memory_limits = {
            ordinal: memory_limit(self.memory_limits.get(ordinal, 0), own.get(ordinal, 0))
            for ordinal in self.ordinals
        }
        lenient = environment.get("PYMPSD_LENIENT_LIMITS") == "1"
        for one in bad[:LOGGED_LIMITS]:
            self.server.bad_limit(self.client, one.entry, one.reason, lenient)
        if lenient or not bad:
            return ""
        others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return (
            f"{memory_limits.VARIABLES[0]}: {bad[0].entry!r}{others}: {bad[0].reason}. Mend it, or set "
            "PYMPSD_LENIENT_LIMITS=1 to have such entries ignored"
        )

    async def _take(self, message: object) -> None:
        match message:
            case messages.OpenContext():
                await self._answer(message.request, self._open(message))
            case messages.CloseContext(request, context):
                await self._answer(request, self._close(request, context))
            case _:
                raise RemoteError(f"{type(message).__name__} is not for the server")

    async def _answer(self, request: int, work: Any) -> None:
        try:
            await work
        except ExecutorError as error:
            self.channel.send(messages.RequestRefused(request, error.code, error.reason))
        except NotHere:
            reason = "this process has no such context"
            self.channel.send(messages.RequestRefused(request, Result.ERROR_INVALID_CONTEXT, reason))

    async def _open(self, asked: messages.OpenContext) -> None:
        if not 0 <= asked.device < len(self.ordinals):
            reason = f"there is no device {asked.device}: this client sees {len(self.ordinals)}"
            raise ExecutorError(Result.ERROR_INVALID_DEVICE, reason)
        device = self.ordinals[asked.device]
        share = self._share(device, asked)
        try:
            await self._open_on(device, share, asked.request)
        except ExecutorGone:
            # It ended just now: of a fault, which says itself what this client gets, or else the next one serves.
            await self._open_once_more(device, share, asked.request)

    async def _open_once_more(self, device: int, share: int, request: int) -> None:
        try:
            await self._open_on(device, share, request)
        except ExecutorGone as error:
            # Not its own code: that one says that this server has ended.
            raise ExecutorError(Result.ERROR_MPS_SERVER_NOT_READY, f"{error}, twice: try again") from None

    async def _open_on(self, device: int, share: int, request: int) -> None:
        self._heed_faults(device)
        executor = await self.server.executors.of(self.server.place_of(self.client, device))
        self._heed_faults(device)
        context = self._enter(executor)
        self.server.opening.add(context.serial)
        try:
            attached, fds = await self._attach(executor, context, share)
        except BaseException:
            # Refused, or the client has gone meanwhile: the context never was.
            self.server.roster.close_context(self.client, context.serial)
            self.server.containment.context_never_was(context)
            raise
        finally:
            self.server.opening.discard(context.serial)
        self.server.made_context(self.client, context)
        opened = messages.ContextOpened(
            request=request,
            context=context.serial,
            generation=executor.generation,
            multiprocessors=share,
            memory_bytes=attached.memory_bytes,
            stream_priorities=attached.stream_priorities,
            shared_bytes=attached.shared_bytes,
            ring_bytes=attached.ring_bytes,
        )
        self.channel.send(opened, fds)

    def _heed_faults(self, device: int) -> None:
        refusal = self.server.containment.refusal(self.client, device)
        if refusal is not None:
            raise ExecutorError(*refusal)

    def _share(self, device: int, asked: messages.OpenContext) -> int:
        """Return the SMs of a context that is asked for: the client can only lower what its process may use."""
        facts, environment = self.server.devices[device], self.client.environment
        try:
            return context_share(self.thread_percentage, environment, facts, asked.thread_percentage, asked.affinity)
        except AffinityRefused as error:
            raise ExecutorError(Result.ERROR_UNSUPPORTED_EXEC_AFFINITY, str(error)) from None

    def _enter(self, executor: Executor) -> Context:
        """Give a new context its number and its connections, before the executor is asked for it."""
        slots, place = slots_of(self.client.environment), executor.place
        try:
            return self.server.roster.open_context(self.client, place.device, executor.generation, slots, place.user)
        except PoolExhausted as error:
            self.server.log.info("connection_limit", most=error.size)
            raise ExecutorError(Result.ERROR_MPS_MAX_CLIENTS_REACHED, str(error)) from None

    async def _attach(self, executor: Executor, context: Context, share: int) -> tuple[Any, tuple[int, ...]]:
        where = (executor.place, executor.generation)
        new_stream = where not in self._streams
        # Noted before it is there: a client that dies during the request is dropped from the executor too.
        self._streams.add(where)
        attach = executor_says.Attach(
            request=self.server.executors.next_request(),
            client=self.client.serial,
            context=context.serial,
            new_stream=new_stream,
            multiprocessors=share,
            memory_bytes=self.memory_limits.get(context.device, 0),
            priority=self.client.priority,
        )
        try:
            if new_stream:
                return await self._ask_for_stream(executor, attach)
            return await executor.ask(attach.request, attach)
        except ExecutorError as error:
            if new_stream:
                self._streams.discard(where)
            self.server.refused_context(self.client, context, error.code, error.reason)
            raise

    async def _ask_for_stream(self, executor: Executor, attach: executor_says.Attach) -> tuple[Any, tuple[int, ...]]:
        """Have a context made and take its command stream along: two descriptors, for which there must be room."""
        try:
            require_room(STREAM_FDS)
            answer, fds = await executor.ask(attach.request, attach)
            if len(fds) == STREAM_FDS:
                return answer, fds
            # They were lost on the way: others have come meanwhile. The executor closes the stream's other end.
            number = self.server.executors.next_request()
            await executor.ask(number, executor_says.DropClient(number, self.client.serial))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError as error:
            reason = f"the MPS server is out of file descriptors: {explain(error)}"
            raise ExecutorError(Result.ERROR_OPERATING_SYSTEM, reason) from None

    async def _close(self, request: int, serial: int) -> None:
        executor = await self._detach(self.server.roster.context_of(self.client, serial))
        # Forgotten only now: its connections are free when its work has stopped.
        context = self.server.roster.close_context(self.client, serial)
        self.server.lost_context(self.client, context)
        if executor is not None:
            await self.server.executors.end_if_forsaken(executor)
        self.channel.send(messages.ContextClosed(request))

    async def _detach(self, context: Context) -> Executor | None:
        executor = self.server.executors.that_runs(context)
        if executor is not None:
            number = self.server.executors.next_request()
            # An executor that ends meanwhile has freed it too.
            with suppress(ExecutorError):
                await executor.free(executor_says.Detach(number, context.serial))
        return executor

    async def _free_everything(self) -> None:
        left = [executor for where in self._streams if (executor := self._still_there(*where)) is not None]
        async with trio.open_nursery() as nursery:
            # All at once: of several that are stopped each takes FREE_SECONDS.
            for executor in left:
                nursery.start_soon(self._drop_from, executor)
        self.server.lost_client(self.client, met=not self._refused)
        # Only now: of several that leave together the last one sees that nobody is there.
        for executor in left:
            await self.server.executors.end_if_forsaken(executor)

    def _still_there(self, place: Place, generation: int) -> Executor | None:
        executor = self.server.executors.running(place)
        return executor if executor is not None and executor.generation == generation else None

    async def _drop_from(self, executor: Executor) -> None:
        number = self.server.executors.next_request()
        with trio.move_on_after(FREE_SECONDS) as bound, suppress(ExecutorError):
            await executor.free(executor_says.DropClient(number, self.client.serial))
        if bound.cancelled_caught:
            # It is stopped, or stuck: for all that is known this client's kernels still run.
            executor.unfinished += 1
