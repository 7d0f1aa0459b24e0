"""A client's session with the server: welcome it, open and close its contexts, and free everything at the end.

The daemon admits a client and passes its socket to the server; from then on the daemon does not take part. A session
is one task that reads the socket:

    AdmitClient ->  wait while executors are replaced (containment)
                    SessionWelcome: the devices that the client sees, with its limits    or Refused
    OpenContext ->  start or find the executor of the device; Attach to it;
                    ContextOpened: two descriptors, the command stream and shared memory or RequestRefused
    CloseContext -> Detach; ContextClosed

After ContextOpened the client sends its records directly to the executor: the server takes no part in launches and
copies.

A context has an id (`ContextRecord.id`, unique in the server), which names it in records and messages, and a number
in its process, from 1, which names it in the log. It takes its connections of the device before the executor creates
it, and returns them if that fails, so two clients never get the same last connection.

The session ends when the socket is closed or the client's process ends. The server watches the process by its pidfd,
because a forked child may hold copies of the sockets. At the end everything that the client had is freed, in a
shielded scope, in at most FREE_SECONDS: its executors drop the client concurrently; then the log, the daemon and the
observers are notified; last, executors that have no contexts left, but whose kernels still run, are ended.

Requests of one client are handled one after another, each after the previous answer was read, so a client that floods
the server fills only its own socket.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio
from attrs import define, field

from pympsd.channel.descriptors import explain, require_room
from pympsd.channel.message_channel import MessageChannel
from pympsd.devices.visible import DuplicateDevice, NoVisibleDevice, select_of
from pympsd.errors import RemoteError
from pympsd.process.version import API_VERSION
from pympsd.vocabulary.limit_table import ClientLimits
from pympsd.vocabulary.limits import BadLimit
from pympsd.vocabulary.results import Result
from pympsd.wire import messages
from pympsd.wire.executor_messages import Attach, Detach, DropClient
from pympsd.wire.link_messages import AdmitClient
from pympsd_server.service.containment import Containment
from pympsd_server.service.eviction import attach_with_room
from pympsd_server.service.executor import Answer, Executor, ExecutorError, ExecutorGone
from pympsd_server.service.server import Server
from pympsd_server.state_machine.client_limits import (
    AffinityRefused,
    PartitionRefused,
    combine_with_environment,
    count_requested_sms,
    is_lenient,
    limit_properties,
    limits_of,
    partition_on,
    problem_of_entries,
    quota_on,
    resolve_in_force,
)
from pympsd_server.state_machine.client_table import ClientRecord, ContextRecord, NoSuchContext
from pympsd_server.state_machine.connections import PoolExhausted, connection_slots
from pympsd_server.state_machine.executor_slots import ExecutorSlot

ROOM: Final = 8
"""The number of descriptors that must be free for a new client, for which an executor may have to be started."""
STREAM_FDS: Final = 2
FREE_SECONDS: Final = 5.0
"""The time limit for freeing a client's resources; a stopped executor frees them when it continues."""
LOGGED_LIMITS: Final = 8
"""The maximum number of a client's invalid memory limits to log, because clients share the log."""


@define
class ClientSession:
    """The server's side of a session. ``pidfd`` is -1 if the client's process is not visible here."""

    server: Server
    containment: Containment
    client: ClientRecord
    channel: MessageChannel
    pidfd: int
    limits: ClientLimits
    """The client's limits, which are combined with its environment before the welcome."""
    ordinals: tuple[int, ...] = ()
    """The server's ordinal of each device that the client sees, in the client's numbering."""
    _streams: set[tuple[ExecutorSlot, int]] = field(factory=set, init=False)
    """The slot and generation of each executor to which this client has a command stream."""
    _connected: bool = field(default=False, init=False)
    """Whether the client was accepted; during a fault it is refused."""

    @classmethod
    def of(cls, containment: Containment, admitted: AdmitClient, fds: tuple[int, ...]) -> ClientSession:
        """Return the session of a client that the daemon hands over; ``fds``: its socket and its pidfd, if any."""
        server = containment.server
        client = server.client_admitted(admitted)
        sock = trio.socket.from_stdlib_socket(socket.socket(fileno=fds[0]))
        channel = MessageChannel(sock, allowance=server.buffers.allowance(admitted.uid))
        pidfd = fds[1] if len(fds) > 1 else -1
        return cls(server, containment, client, channel, pidfd, limits_of(admitted, server.limits))

    async def run(self) -> None:
        """Serve the client until the session or the client's process ends, then free the client's resources."""
        self.containment.pidfds[self.client.id] = self.pidfd
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.channel.run_sender)
                nursery.start_soon(self._end_with_process, nursery.cancel_scope)
                await self._serve()
                nursery.cancel_scope.cancel()
        except Exception as error:
            # A defect that one client triggers must not end the server for all clients.
            self.server.log.error("server_defect", pid=self.client.pid, reason=repr(error))
        finally:
            self.channel.close()
            if self.containment.pidfds.pop(self.client.id) >= 0:
                os.close(self.pidfd)
            if not self.server.ending:
                with trio.CancelScope(shield=True):
                    await self._free_everything()

    async def _end_with_process(self, scope: trio.CancelScope) -> None:
        # A forked child may hold copies of the sockets, so wait until the process itself ends.
        if self.pidfd >= 0:
            await trio.lowlevel.wait_readable(self.pidfd)
            scope.cancel()

    async def _serve(self) -> None:
        """Welcome the client, and answer its requests until it disconnects."""
        await self.containment.hold(self.client)
        if self.containment.refuses(self.client):
            self.server.client_refused_in_teardown(self.client)
            reason = "the MPS server handles a fatal fault: try again when the clients it reached have gone"
            self.channel.send(messages.Refused(Result.ERROR_MPS_SERVER_NOT_READY, reason))
            await self.channel.drain()
            return
        self._connected = True
        self.server.client_connected(self.client)
        if not self._welcome():
            # Deliver the reason before the session ends.
            await self.channel.drain()
            return
        try:
            while (received := await self.channel.receive_message()) is not None:
                message = received[0]
                match message:
                    case messages.OpenContext():
                        await self._answer(message.request, self._open(message))
                    case messages.CloseContext(request, context):
                        await self._answer(request, self._close(request, context))
                    case _:
                        raise RemoteError(f"{type(message).__name__} is not for the server")
                # Send each answer before reading the next request, so that a flood of requests stays in the sender's
                # own socket.
                await self.channel.drain()
            if self.channel.failure is not None:
                raise self.channel.failure
        except RemoteError as error:
            self.server.log.error("client_misbehaved", pid=self.client.pid, reason=str(error))

    def _welcome(self) -> bool:
        """Accept or refuse the client, and send the reply; return whether the client was accepted."""
        devices = self.server.devices
        try:
            require_room(ROOM)
        except OSError as error:
            reason = f"the MPS server is out of file descriptors: {explain(error)}"
            self.server.client_refused(self.client.pid, reason)
            self.channel.send(messages.Refused(Result.ERROR_OPERATING_SYSTEM, reason))
            return False
        try:
            self.ordinals = select_of(
                devices, self.limits.devices, self.client.environment.get("CUDA_VISIBLE_DEVICES")
            )
        except (NoVisibleDevice, DuplicateDevice) as error:
            self.server.devices_refused(self.client)
            self.channel.send(messages.Refused(Result.ERROR_NO_DEVICE, str(error)))
            return False
        refused = self._combine_limits()
        if refused:
            self.channel.send(messages.Refused(Result.ERROR_INVALID_VALUE, refused))
            return False
        visible_properties = tuple(
            limit_properties(self.limits, ordinal, devices[ordinal]) for ordinal in self.ordinals
        )
        self.server.client_joined(
            self.client, *resolve_in_force(self.limits, self.ordinals, visible_properties, self.client.environment)
        )
        self.channel.send(messages.SessionWelcome(os.getpid(), API_VERSION, visible_properties, self.ordinals))
        return True

    def _combine_limits(self) -> str:
        """Combine the limits with the client's environment; return why the client is refused, or an empty text."""
        visible = [self.server.devices[ordinal] for ordinal in self.ordinals]
        arguments = self.client.environment, self.ordinals, visible
        self.limits, bad = combine_with_environment(self.limits, *arguments)
        lenient = is_lenient(self.client.environment)
        for entry in bad[:LOGGED_LIMITS]:
            self.server.limit_rejected(self.client, entry, lenient)
        return "" if lenient or not bad else problem_of_entries(bad)

    async def _answer(self, request: int, work: Any) -> None:
        try:
            await work
        except ExecutorError as error:
            self.channel.send(messages.RequestRefused(request, error.code, error.reason))
        except NoSuchContext:
            reason = "this process has no such context"
            self.channel.send(messages.RequestRefused(request, Result.ERROR_INVALID_CONTEXT, reason))

    async def _open(self, message: messages.OpenContext) -> None:
        """Open a context; try once more with the next executor if the executor ends meanwhile.

        Raise ExecutorError.
        """
        if not 0 <= message.device < len(self.ordinals):
            reason = f"there is no device {message.device}: this client sees {len(self.ordinals)}"
            raise ExecutorError(Result.ERROR_INVALID_DEVICE, reason)
        device = self.ordinals[message.device]
        multiprocessors = self._multiprocessors(device, message)
        try:
            await self._open_on(device, multiprocessors, message.request)
        except ExecutorGone:
            # The executor has just ended. After a fault, containment has the client's error; otherwise try the next
            # executor.
            try:
                await self._open_on(device, multiprocessors, message.request)
            except ExecutorGone as error:
                # Do not use the error's own code, which means that this server has ended.
                raise ExecutorError(Result.ERROR_MPS_SERVER_NOT_READY, f"{error}, twice: try again") from None

    async def _open_on(self, device: int, multiprocessors: int, request: int) -> None:
        """Open a context on a device, start its executor if necessary, and send ContextOpened to the client."""
        executors, slot = self.containment.executors, self.server.slot_of(self.client, device)
        await executors.wait_until_ended(slot)  # after that it is known whether the end was a fault
        if self.containment.refusal(self.client, device) is not None:
            await self.containment.hold(self.client)
        self._check_faults(device)
        executor = await executors.get_or_start(slot)
        self._check_faults(device)
        context = self._number(executor)
        self.server.opening.add(context.id)
        try:
            attached, fds = await self._attach(executor, context, multiprocessors)
        except BaseException:
            # The executor refused, or the client has exited: the context was never opened.
            self.server.client_table.close_context(self.client, context.id)
            self.containment.context_not_opened(context)
            raise
        finally:
            self.server.opening.discard(context.id)
        self.server.context_opened(self.client, context)
        opened = messages.ContextOpened(
            request=request,
            context=context.id,
            generation=executor.generation,
            multiprocessors=multiprocessors,
            memory_bytes=attached.memory_bytes,
            stream_priorities=attached.stream_priorities,
            shared_bytes=attached.shared_bytes,
            ring_bytes=attached.ring_bytes,
        )
        self.channel.send(opened, fds)

    def _check_faults(self, device: int) -> None:
        refusal = self.containment.refusal(self.client, device)
        if refusal is not None:
            raise ExecutorError(*refusal)

    def _multiprocessors(self, device: int, message: messages.OpenContext) -> int:
        visible = [self.server.devices[ordinal] for ordinal in self.ordinals]
        try:
            return count_requested_sms(self.limits, device, visible, self.client.environment, message)
        except PartitionRefused as error:
            self.server.log.info("partition_refused", pid=self.client.pid, reason=str(error))
            reason = f"this process {error}"
            raise ExecutorError(Result.ERROR_INVALID_RESOURCE_CONFIGURATION, reason) from None
        except AffinityRefused as error:
            raise ExecutorError(Result.ERROR_UNSUPPORTED_EXEC_AFFINITY, str(error)) from None
        except BadLimit as error:
            raise ExecutorError(Result.ERROR_INVALID_VALUE, str(error)) from None

    def _number(self, executor: Executor) -> ContextRecord:
        """Give a new context its number and its connections, before the executor creates it."""
        slots, slot = connection_slots(self.client.environment), executor.slot
        isolated = self.server.devices[slot.device].isolates_address_spaces
        partition = partition_on(self.limits, slot.device).name if isolated else slot.partition
        numbered = self.client, slot.device, executor.generation, slots, slot.user, partition, bool(slot.partition)
        try:
            return self.server.client_table.open_context(*numbered)
        except PoolExhausted as error:
            self.server.log.info("connection_limit", most=error.size)
            self.server.log.info("context_refused_reason", reason=f"Client {self.client.pid}: {error}")
            raise ExecutorError(Result.ERROR_MPS_MAX_CLIENTS_REACHED, str(error)) from None

    async def _attach(self, executor: Executor, context: ContextRecord, multiprocessors: int) -> Answer:
        attach = partial(self._try_to_attach, executor, context, multiprocessors)
        try:
            return await attach_with_room(self.containment, context.device, self.client, attach)
        except ExecutorError as error:
            self.server.context_refused(self.client, context, error.code, error.reason)
            raise

    async def _try_to_attach(self, executor: Executor, context: ContextRecord, multiprocessors: int) -> Answer:
        """Request a context from an executor, and a command stream if the client has none there."""
        key = (executor.slot, executor.generation)
        new_stream = key not in self._streams
        # Add the key before the stream exists, so that a client that ends during the request is dropped from the
        # executor too.
        self._streams.add(key)
        attach = Attach(
            request=self.containment.executors.next_request(),
            client=self.client.id,
            context=context.id,
            new_stream=new_stream,
            quota=quota_on(self.limits, context.device, multiprocessors, self.client),
            pid=self.client.pid,
        )
        try:
            if new_stream:
                return await self._ask_for_stream(executor, attach)
            return await executor.ask(attach.request, attach)
        except ExecutorError:
            if new_stream:
                self._streams.discard(key)
            raise

    async def _ask_for_stream(self, executor: Executor, attach: Attach) -> Answer:
        """Request a context with a command stream.

        Raise ExecutorError if the stream's two descriptors are not available.
        """
        try:
            require_room(STREAM_FDS)
            answer, fds = await executor.ask(attach.request, attach)
            if len(fds) == STREAM_FDS:
                return answer, fds
            # The descriptors were lost because too few were free. Let the executor close the stream's other end.
            number = self.containment.executors.next_request()
            await executor.ask(number, DropClient(number, self.client.id))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError as error:
            reason = f"the MPS server is out of file descriptors: {explain(error)}"
            raise ExecutorError(Result.ERROR_OPERATING_SYSTEM, reason) from None

    async def _close(self, request: int, context_id: int) -> None:
        detached = self.server.client_table.context_of(self.client, context_id)
        if (executor := self.containment.executors.executor_of(detached)) is not None:
            number = self.containment.executors.next_request()
            # An executor that ends during the request has freed the context as well.
            with suppress(ExecutorError):
                await executor.free(Detach(number, detached.id))
        # Remove the context only now, because its connections are free when its work has stopped.
        context = self.server.client_table.close_context(self.client, context_id)
        self.server.context_closed(self.client, context)
        if executor is not None:
            await self.containment.executors.end_if_abandoned(executor)
        self.channel.send(messages.ContextClosed(request))

    async def _free_everything(self) -> None:
        executors = [executor for key in self._streams if (executor := self._find(*key)) is not None]
        async with trio.open_nursery() as nursery:
            # Concurrently, because a stopped executor takes FREE_SECONDS.
            for executor in executors:
                nursery.start_soon(self._drop_from, executor)
        self.server.client_left(self.client, connected=self._connected)
        # Only now, so that the last one of several clients that leave together finds the executor unused.
        for executor in executors:
            await self.containment.executors.end_if_abandoned(executor)

    def _find(self, slot: ExecutorSlot, generation: int) -> Executor | None:
        executor = self.containment.executors.find(slot)
        return executor if executor is not None and executor.generation == generation else None

    async def _drop_from(self, executor: Executor) -> None:
        number = self.containment.executors.next_request()
        with trio.move_on_after(FREE_SECONDS) as bound, suppress(ExecutorError):
            await executor.free(DropClient(number, self.client.id))
        if bound.cancelled_caught:
            # The executor is stopped or stuck, so this client's kernels may still run.
            executor.unfinished += 1
