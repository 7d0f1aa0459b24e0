"""The server's state at work: roster and phase of its mind, and every change told to the daemon and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field

from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.statuses import ServerStatus
from pympsd_server.service.daemon_link import DaemonLink
from pympsd_server.state_machine import phases
from pympsd_server.state_machine.executor_slots import Place, place_of
from pympsd_server.state_machine.phases import Phase
from pympsd_server.state_machine.roster import Client, Context, Roster

if TYPE_CHECKING:
    from pympsd_server.service.containment import Containment
    from pympsd_server.service.executors import Executors

FAULT_STATUS: Final = 1
"""The exit status of a server that a fatal fault ends."""


@define
class Server:
    """One running server."""

    link: DaemonLink
    log: Any
    devices: tuple[DeviceFacts, ...]
    thread_percentage: ThreadPercentage
    memory_limits: dict[int, int]
    """Bytes by device ordinal: what each later client may hold there."""
    client_priority: int = 0
    """The default level, as the daemon said last."""
    roster: Roster = field(init=False)
    phase: Phase = Phase.INITIALIZING
    done: trio.Event = field(factory=trio.Event)
    status: int = 0
    """The process's exit status."""
    opening: set[int] = field(factory=set, init=False)
    """Serials of contexts that their executors have not made yet."""
    _executors: Executors | None = None
    _containment: Containment | None = None
    _to_be_remade: list[int] = field(factory=list, init=False)
    """Devices that were dropped after a fault, until the next client comes."""

    @roster.default
    def _nobody_yet(self) -> Roster:
        return Roster.of(self.devices)

    @property
    def executors(self) -> Executors:
        """The executors (set before the first client comes)."""
        assert self._executors is not None
        return self._executors

    @executors.setter
    def executors(self, executors: Executors) -> None:
        self._executors = executors

    @property
    def containment(self) -> Containment:
        """What is done about fatal faults (set before the first client comes)."""
        assert self._containment is not None
        return self._containment

    @containment.setter
    def containment(self, containment: Containment) -> None:
        self._containment = containment

    @property
    def ending(self) -> bool:
        """Whether the server is on its way out at once: nothing needs to be freed one by one."""
        return self.phase is Phase.ENDED

    @property
    def leaving(self) -> bool:
        """Whether it is told to go, or has ended."""
        return self.phase in (Phase.LEAVING, Phase.ENDED)

    @property
    def is_volta_or_newer(self) -> bool:
        """Whether its devices take part in Volta MPS (they are all of one kind)."""
        return all(device.is_volta_or_newer for device in self.devices)

    def place_of(self, client: Client, device: int) -> Place:
        """Return where a client's contexts on a device run."""
        return place_of(client.uid, device, self.devices[device])

    def serving(self) -> None:
        """Initialisation is over."""
        self.phase = phases.move(self.phase, Phase.SERVING)

    def change_limits(self, thread_percentage: float, memory_limits: dict[int, int]) -> None:
        """Take new limits, for later clients."""
        self.thread_percentage = ThreadPercentage(thread_percentage)
        for ordinal, limit in memory_limits.items():
            if self.memory_limits.get(ordinal) != limit:
                self.log.info("server_memory_limit", device=ordinal, limit=limit)
        self.memory_limits = memory_limits

    def default_priority(self, level: int) -> None:
        """The default priority that a client comes with; a change is told once."""
        if level != self.client_priority:
            self.client_priority = level
            self.log.info("client_priority", priority=level)

    def met_client(self, client: Client) -> None:
        """A client process is here: it counts as its context 0 in the log."""
        self.log.info("client_requested", pid=client.pid, context=0)
        while self._to_be_remade:
            device = self._to_be_remade.pop(0)
            self.log.info("server_context_remade", device=device, name=self.devices[device].name)
        self.log.info("client_connected", pid=client.pid, context=0)
        self.log.info("client_worker", pid=client.pid, context=0)

    def refused_devices(self, client: Client) -> None:
        """A client's CUDA_VISIBLE_DEVICES leaves it no device."""
        entry = client.environment.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
        if entry.startswith("GPU-"):
            # As recorded: of a UUID it says no more.
            self.log.info("client_devices_none", pid=client.pid)
            return
        self.log.info("client_devices_invalid", pid=client.pid)
        self.log.info("client_devices_entry", pid=client.pid, entry=entry)
        self.log.info("client_devices_hint", pid=client.pid, count=len(self.devices))

    def bad_limit(self, client: Client, entry: str, reason: str, ignored: bool) -> None:
        """An entry of a client's memory limits cannot be: it is ignored, or the client refused."""
        event = "client_limit_ignored" if ignored else "client_limit_refused"
        self.log.warning(event, pid=client.pid, entry=entry, reason=reason)

    def made_context(self, client: Client, context: Context) -> None:
        """A context is there."""
        facts = self.devices[context.device]
        who = {"pid": client.pid, "context": context.number}
        for event in ("client_requested", "context_connected", "client_worker"):
            self.log.info(event, **who)
        self.log.info("context_device", name=facts.name, uuid=facts.uuid)
        self.log.info("context_active", **who)
        self.link.context_made(client.serial, context.serial, context.number, context.device)

    def refused_client(self, pid: int, reason: str) -> None:
        """A client could not be taken in, for lack of descriptors."""
        self.log.error("shared_memory_failed")
        self.log.error("client_refused", pid=pid, reason=reason)

    def refused_context(self, client: Client, context: Context, code: int, reason: str) -> None:
        """A context could not be made."""
        if code == Result.ERROR_OPERATING_SYSTEM:
            self.log.error("shared_memory_failed")
        self.log.info("context_refused", pid=client.pid, context=context.number, status=code)
        self.log.info("context_refused_reason", reason=reason)

    def lost_context(self, client: Client, context: Context) -> None:
        """A context is gone (the roster has forgotten it)."""
        # As recorded: of those on the same device.
        others = self.roster.clients.values()
        left = sum(each.device == context.device for other in others for each in other.contexts.values())
        who = {"pid": client.pid, "context": context.number}
        self.log.info("client_receive_failed", **who)
        self.log.info("context_exit", **who, left=left)
        self.link.context_gone(client.serial, context.serial)
        self.containment.context_left(context)

    def lost_client(self, client: Client, met: bool) -> None:
        """A client is gone, and with it what contexts it had left, the latest first; unless it never was met."""
        for serial in sorted(client.contexts, reverse=True):
            self.lost_context(client, self.roster.close_context(client, serial))
        self.roster.leave(client.serial)
        # First: whoever reads the line may ask the daemon.
        self.link.client_gone(client.serial)
        if met:
            self.log.info("client_receive_failed", pid=client.pid, context=0)
            self.log.info("client_disconnected", pid=client.pid)
        self.containment.client_left(client)
        self._leave_if_alone()

    def faulted(self, client: Client, context: Context, code: int, reason: str) -> None:
        """A context's own work has ruined it."""
        self.log.error("context_faulted", pid=client.pid, context=context.number)
        self.log.error("context_faulted_reason", reason=f"{reason} ({code})")

    def refused_in_teardown(self, client: Client) -> None:
        """A client came while a fault is at hand."""
        who = {"pid": client.pid, "context": 0}
        self.log.info("client_requested", **who)
        self.log.info("client_refused_in_teardown", **who)
        self.log.info("context_refused", **who, status=int(Result.ERROR_MPS_SERVER_NOT_READY))

    def begin_fault(self) -> None:
        """A fault is at hand: no new clients until those that it reached have gone."""
        if self.phase is Phase.SERVING:
            self.phase = phases.move(self.phase, Phase.FAULT)
            self.link.status(ServerStatus.FAULT)

    def dropped_device(self, device: int) -> None:
        """The last context of a device that is to be made anew has gone."""
        self.log.info("server_context_dropped", device=device, name=self.devices[device].name)
        self._to_be_remade.append(device)

    def end_fault(self) -> None:
        """All is well again."""
        if self.phase is Phase.FAULT:
            self.phase = phases.move(self.phase, Phase.SERVING)
            self.link.status(ServerStatus.ACTIVE)

    def end_by_fault(self) -> None:
        """Before Volta a fatal fault is the end of the server too."""
        self.log.error("fault_ends_server")
        self.status = FAULT_STATUS
        self._end()

    def leave(self, forced: bool) -> None:
        """Go: with the last client, or at once."""
        self.log.info("server_shutdown_notified")
        if self.phase in (Phase.SERVING, Phase.FAULT):
            self.phase = phases.move(self.phase, Phase.LEAVING)
        if self.roster.clients:
            self.log.info("server_shutdown_busy", workers=self.roster.workers)
        if forced and self.roster.clients:
            # Recorded: a server that is forced says no more.
            self._end()
        else:
            self._leave_if_alone()

    def orphaned(self) -> None:
        """The daemon is gone: go too, with the last client."""
        if self.phase in (Phase.SERVING, Phase.FAULT):
            self.phase = phases.move(self.phase, Phase.LEAVING)
        self._leave_if_alone()

    def _leave_if_alone(self) -> None:
        if self.phase is Phase.LEAVING and not self.roster.clients:
            self.log.info("server_waiting")
            self.log.info("server_exiting")
            self._end()

    def _end(self) -> None:
        if self.phase is not Phase.ENDED:
            self.phase = phases.move(self.phase, Phase.ENDED)
            self.done.set()
