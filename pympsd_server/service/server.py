"""The running server's state: client table, limits and phase. Every change is reported to the daemon and in the log.

The methods of `Server` never wait. Sessions (`client_session`), containment and termination call them when something
has happened, and each method does the same three things: it changes the state, writes the log lines that the vendor's
server writes in this case, in the same order, and pushes the change to the daemon (`daemon_link`). Observers are
notified last, when the client table has the new state.

The phase (`state_machine.server_phase`) decides whether new clients are served and when the process ends: `done` is
set once the phase is ENDED, and the process exits with `status`.
"""

from collections.abc import Iterable
from typing import Any, Final, Protocol

import trio
from attrs import define, field

from pympsd.channel.allowance import BufferBudget
from pympsd.channel.message_channel import MessageChannel
from pympsd.devices.memory_limits import OF_CONTAINER, BadEntry
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import ALL_DEVICES, ClientPriority, LimitsInForce, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.phases import move
from pympsd.vocabulary.results import Result, ServerStatus
from pympsd.vocabulary.shares import BUFFERS
from pympsd.vocabulary.variables import MEMORY_LIMITS, PERCENTAGE, Reader, problems
from pympsd.wire.executor_messages import MemoryAudited
from pympsd.wire.link_messages import AdmitClient
from pympsd.wire.messages import RequestRefused
from pympsd_server.service.daemon_link import DaemonLink
from pympsd_server.state_machine.client_limits import limits_of, read_own_priority
from pympsd_server.state_machine.client_table import ClientRecord, ClientTable, ContextRecord
from pympsd_server.state_machine.executor_slots import ExecutorSlot, slot_of
from pympsd_server.state_machine.server_phase import MOVES, ServerPhase

DELETED: Final = RequestRefused(
    0, Result.ERROR_MPS_CLIENT_TERMINATED, "an operator ended the MPS server of this process, with its clients"
)
"""The last message to clients of a deleted server; it does not answer a request."""
FAULT_STATUS: Final = 1
"""The exit status of a server that ends because of a fatal fault."""
_LIMITS_OF_MEMORY: Final = (*MEMORY_LIMITS, OF_CONTAINER)
"""The settings whose invalid entries have separate log lines, which are written when the devices are known."""


class Observer(Protocol):
    """Notified when clients and contexts have left the client table."""

    def context_closed(self, context: ContextRecord) -> None:
        """Handle the end of a context."""

    def client_left(self, client: ClientRecord) -> None:
        """Handle the end of a client."""


@define
class Server:
    """One running server."""

    link: DaemonLink
    log: Any
    devices: tuple[DeviceProperties, ...]
    thread_percentage: ThreadPercentage
    memory_limits: dict[int, int]
    """The maximum number of bytes that each new client may hold, by device ordinal."""
    client_priority: int = 0
    """The default priority level, as last received from the daemon."""
    client_table: ClientTable = field(init=False)
    phase: ServerPhase = ServerPhase.INITIALIZING
    done: trio.Event = field(factory=trio.Event)
    status: int = 0
    """The exit status of the process."""
    ends_if_alone: bool = False
    """Whether the keeper has requested the end with the last client, because no daemon has come for a long time."""
    opening: set[int] = field(factory=set, init=False)
    """The ids of contexts that their executors have not created yet."""
    observers: list[Observer] = field(factory=list, init=False)
    channels: dict[int, MessageChannel] = field(factory=dict, init=False)
    """The channels of the clients' sessions, by client id."""
    buffers: BufferBudget = field(init=False)
    """The budget for buffers of clients' sessions; each user has the daemon's default share."""
    _dropped_devices: list[int] = field(factory=list, init=False)
    """The devices whose contexts were dropped after a fault, until the next client connects."""

    @client_table.default
    def _empty_client_table(self) -> ClientTable:
        return ClientTable.of(self.devices)

    @buffers.default
    def _empty_buffers(self) -> BufferBudget:
        def problem(uid: int, count: int) -> str:
            has, share = budget.held[uid], BUFFERS.share
            return f"user {uid} has {has} of at most {share} {BUFFERS.unit} here" if has + count > share else ""

        budget = BufferBudget(problem)
        return budget

    @property
    def ending(self) -> bool:
        """Whether the process is about to exit, so that nothing needs to be freed individually."""
        return self.phase is ServerPhase.ENDED

    @property
    def is_leaving(self) -> bool:
        """Whether the server ends with its last client, or has ended."""
        return self.phase in (ServerPhase.LEAVING, ServerPhase.ENDED)

    @property
    def is_volta_or_newer(self) -> bool:
        """Whether the server's devices support Volta MPS: either all of them do, or none."""
        return all(device.is_volta_or_newer for device in self.devices)

    def slot_of(self, client: ClientRecord, device: int) -> ExecutorSlot:
        """Return the slot of a client's contexts on a device."""
        return slot_of(client.uid, device, self.devices[device], client.partitions.get(device, ""))

    def groups_of(self, client: int, device: int) -> Iterable[str]:
        """Return the groups whose memory limits on a device apply to a client, which is given by its id."""
        entry = self.client_table.clients.get(client)
        return [group.name for group in entry.groups.get(device, ())] if entry is not None else ()

    def start_serving(self) -> None:
        """End the initialisation, and accept clients."""
        self.phase = move(MOVES, self.phase, ServerPhase.SERVING)

    def change_limits(self, thread_percentage: float, memory_limits: dict[int, int]) -> None:
        """Set the limits of new clients."""
        self.thread_percentage = ThreadPercentage(thread_percentage)
        for ordinal, limit in memory_limits.items():
            if self.memory_limits.get(ordinal) != limit:
                self.log.info("server_memory_limit", device=ordinal, limit=limit)
        self.memory_limits = memory_limits

    @property
    def limits(self) -> Limits:
        """The limits of the server's new clients (protocol 2 only)."""
        memory = {ordinal: PinnedMemory(limit) for ordinal, limit in self.memory_limits.items()}
        return Limits({ALL_DEVICES: self.thread_percentage}, memory)

    def client_admitted(self, admitted: AdmitClient) -> ClientRecord:
        """Add a client that the daemon hands over to the client table."""
        if admitted.priority != self.client_priority and not admitted.mps_namespace:
            self.client_priority = admitted.priority
            self.log.info("client_priority", priority=admitted.priority)
        requested = Limits(client_priority=read_own_priority(admitted.environment))
        priority = (limits_of(admitted, self.limits).combine(requested).client_priority or ClientPriority()).level
        client = self.client_table.add_client(
            admitted.client, admitted.pid, priority, admitted.environment, admitted.uid
        )
        client.groups, client.audited, client.namespace = admitted.groups, admitted.audited, admitted.mps_namespace
        client.partitions = {
            device: partition.name for device, partition in admitted.partitions.items() if partition.has_executor
        }
        return client

    def client_connected(self, client: ClientRecord) -> None:
        """Log a new client process (the log calls it context 0) and its invalid settings."""
        self.log.info("client_requested", pid=client.pid, context=0)
        by_device = (*_LIMITS_OF_MEMORY, *([PERCENTAGE] if "=" in client.environment.get(PERCENTAGE, "") else []))
        for problem in problems(client.environment, Reader.CLIENT, but_for=by_device).values():
            self.log.warning("client_setting_wrong", pid=client.pid, problem=problem)
        while self._dropped_devices:
            device = self._dropped_devices.pop(0)
            self.log.info("server_context_remade", device=device, name=self.devices[device].name)
        self.log.info("client_connected", pid=client.pid, context=0)
        self.log.info("client_worker", pid=client.pid, context=0)

    def client_joined(self, client: ClientRecord, limits: LimitsInForce, partitions: dict[int, str]) -> None:
        """Report the limits that apply to an accepted client; log the client if it connected to a namespace."""
        self.link.client_joined(client.id, limits)
        if client.namespace:
            by_device = (f"{device}={percentage:.2f}" for device, percentage in limits.device_percentages.items())
            text = f"{','.join(by_device) or f'{limits.thread_percentage:.2f}'} %, priority {limits.priority}"
            for device, count in limits.multiprocessors.items():
                memory = limits.memory.get(device)
                text += f"; device {device}: {count} SMs"
                text += f" of SM partition '{partitions[device]}'" if partitions.get(device) else ""
                text += f", memory {PinnedMemory(memory)}" if memory else ""
            self.log.info("client_limits", pid=client.pid, uid=client.uid, limits=text)

    def devices_refused(self, client: ClientRecord) -> None:
        """Log that a client's CUDA_VISIBLE_DEVICES leaves it no device."""
        entry = client.environment.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
        if entry.startswith("GPU-"):
            # As recorded: nothing more is logged about a UUID.
            self.log.info("client_devices_none", pid=client.pid)
            return
        self.log.info("client_devices_invalid", pid=client.pid)
        self.log.info("client_devices_entry", pid=client.pid, entry=entry)
        self.log.info("client_devices_hint", pid=client.pid, count=len(self.devices))

    def limit_rejected(self, client: ClientRecord, bad: BadEntry, ignored: bool) -> None:
        """Log an invalid entry of a client's memory limits; ``ignored``: the client is served nevertheless."""
        event = "client_limit_ignored" if ignored else "client_limit_refused"
        fields = {"variable": bad.variable, "entry": bad.entry, "reason": bad.reason}
        self.log.warning(event, pid=client.pid, **fields)

    def context_opened(self, client: ClientRecord, context: ContextRecord) -> None:
        """Report a new context."""
        properties = self.devices[context.device]
        names = {"pid": client.pid, "context": context.number}
        for event in ("client_requested", "context_connected", "client_worker"):
            self.log.info(event, **names)
        self.log.info("context_device", pid=client.pid, name=properties.name, uuid=properties.uuid)
        self.log.info("context_active", **names)
        self.link.context_opened(client.id, context.id, context.number, context.device)

    def client_refused(self, pid: int, reason: str) -> None:
        """Log a client that was refused for lack of descriptors."""
        self.log.error("shared_memory_failed")
        self.log.error("client_refused", pid=pid, reason=reason)

    def context_refused(self, client: ClientRecord, context: ContextRecord, code: int, reason: str) -> None:
        """Log a context that could not be opened."""
        if code == Result.ERROR_OPERATING_SYSTEM:
            self.log.error("shared_memory_failed")
        self.log.info("context_refused", pid=client.pid, context=context.number, status=code)
        self.log.info("context_refused_reason", pid=client.pid, reason=reason)

    def context_closed(self, client: ClientRecord, context: ContextRecord) -> None:
        """Report the end of a context that was removed from the client table."""
        # As recorded: the count is of contexts on the same device.
        clients = self.client_table.clients.values()
        remaining = sum(
            other_context.device == context.device
            for client_entry in clients
            for other_context in client_entry.contexts.values()
        )
        names = {"pid": client.pid, "context": context.number}
        self.log.info("client_receive_failed", **names)
        self.log.info("context_exit", **names, left=remaining)
        self.link.context_closed(client.id, context.id)
        for observer in self.observers:
            observer.context_closed(context)

    def log_audited(self, device: int, audited: MemoryAudited) -> None:
        """Log memory that an audited client has allocated or freed; do nothing if the client has left."""
        client = self.client_table.clients.get(audited.client)
        if client is not None:
            uuid, namespace = self.devices[device].uuid, client.namespace or DEFAULT
            change = {"change": f"{audited.change:+}", "used": audited.used, "limit": audited.limit}
            self.log.info("memory_audited", pid=client.pid, namespace=namespace, uuid=uuid, **change)

    def client_left(self, client: ClientRecord, connected: bool) -> None:
        """Report the end of a client and its remaining contexts, latest first; ``connected``: it was not refused."""
        for context_id in sorted(client.contexts, reverse=True):
            self.context_closed(client, self.client_table.close_context(client, context_id))
        self.client_table.remove_client(client.id)
        self.channels.pop(client.id, None)
        # Report this before the log line, because a reader of the line may query the daemon.
        self.link.client_left(client.id)
        if connected:
            self.log.info("client_receive_failed", pid=client.pid, context=0)
            self.log.info("client_disconnected", pid=client.pid)
        for observer in self.observers:
            observer.client_left(client)
        if self.ends_if_alone:
            self.end_if_alone()
        else:
            self._leave_if_alone()

    def context_faulted(self, client: ClientRecord, context: ContextRecord, code: int, reason: str) -> None:
        """Log a context that has faulted because of its own work."""
        self.log.error("context_faulted", pid=client.pid, context=context.number)
        self.log.error("context_faulted_reason", pid=client.pid, reason=f"{reason} ({code})")

    def client_refused_in_teardown(self, client: ClientRecord) -> None:
        """Log a client that was refused during a fault."""
        names = {"pid": client.pid, "context": 0}
        self.log.info("client_requested", **names)
        self.log.info("client_refused_in_teardown", **names)
        self.log.info("context_refused", **names, status=int(Result.ERROR_MPS_SERVER_NOT_READY))

    def begin_fault(self) -> None:
        """Refuse new clients until the clients that a fault has affected have gone."""
        if self.phase is ServerPhase.SERVING:
            self.phase = move(MOVES, self.phase, ServerPhase.FAULT)
            self.link.status(ServerStatus.FAULT)

    def device_dropped(self, device: int) -> None:
        """Log the end of the last context on a device whose executor must be replaced."""
        self.log.info("server_context_dropped", device=device, name=self.devices[device].name)
        self._dropped_devices.append(device)

    def end_fault(self) -> None:
        """Serve new clients again."""
        if self.phase is ServerPhase.FAULT:
            self.phase = move(MOVES, self.phase, ServerPhase.SERVING)
            self.link.status(ServerStatus.ACTIVE)

    def end_by_fault(self, codes: dict[int, int], reason: str) -> None:
        """End the server because of a fatal fault (before Volta), with the sticky error of each client, by id."""
        self.log.error("fault_ends_server")
        for client_id, channel in self.channels.items():
            channel.send(RequestRefused(0, codes[client_id], reason))
        self.status = FAULT_STATUS
        self._end()

    def leave(self, forced: bool, is_deletion: bool = False) -> None:
        """End with the last client, or immediately if ``forced``; ``is_deletion``: send clients the reason."""
        self.log.info("server_shutdown_notified")
        if self.phase in (ServerPhase.SERVING, ServerPhase.FAULT):
            self.phase = move(MOVES, self.phase, ServerPhase.LEAVING)
        if self.client_table.clients:
            self.log.info("server_shutdown_busy", workers=self.client_table.workers)
        if forced and self.client_table.clients:
            if is_deletion:
                for channel in self.channels.values():
                    channel.send(DELETED)
            # As recorded: a server that is forced to end stops logging.
            self._end()
        else:
            self._leave_if_alone()

    def end_if_alone(self) -> None:
        """End with the last client, or now if there is none, unless a daemon comes earlier."""
        self.ends_if_alone = True
        if not self.client_table.clients:
            self.leave(forced=False)

    def end_without_daemon(self) -> None:
        """End immediately, as after a forced shutdown, because neither a daemon nor a keeper has the link."""
        self.log.info("server_orphaned", count=len(self.client_table.clients))
        self._end()

    def leave_without_daemon(self, reason: str) -> None:
        """End with the last client, because a new daemon does not adopt this server, for the daemon's ``reason``."""
        self.log.info("server_dismissed", reason=reason or "the daemon gave no reason")
        self.link.disconnect()
        if self.phase in (ServerPhase.SERVING, ServerPhase.FAULT):
            self.phase = move(MOVES, self.phase, ServerPhase.LEAVING)
        self._leave_if_alone()

    def _leave_if_alone(self) -> None:
        if self.phase is ServerPhase.LEAVING and not self.client_table.clients:
            self.log.info("server_waiting")
            self.log.info("server_exiting")
            self._end()

    def _end(self) -> None:
        if self.phase is not ServerPhase.ENDED:
            self.phase = move(MOVES, self.phase, ServerPhase.ENDED)
            # Clients must see that the server ends before its executors end, which would be a fatal fault for them.
            for channel in self.channels.values():
                channel.hang_up()
            self.done.set()
