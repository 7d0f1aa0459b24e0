"""The server's state at work: roster and phase of its mind, and every change told to the daemon and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field

from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd_server.mind import phases
from pympsd_server.mind.phases import Phase
from pympsd_server.mind.roster import Client, Context, Roster
from pympsd_server.service.daemon_link import DaemonLink

if TYPE_CHECKING:
    from pympsd_server.service.executors import Executors


@define
class Server:
    """One running server."""

    link: DaemonLink
    log: Any
    devices: tuple[DeviceFacts, ...]
    thread_percentage: ThreadPercentage
    memory_limits: dict[int, int]
    """Bytes by device ordinal: what each later client may hold there."""
    roster: Roster = field(factory=Roster)
    phase: Phase = Phase.INITIALIZING
    done: trio.Event = field(factory=trio.Event)
    _executors: Executors | None = None

    @property
    def executors(self) -> Executors:
        """The executors (set before the first client comes)."""
        assert self._executors is not None
        return self._executors

    @executors.setter
    def executors(self, executors: Executors) -> None:
        self._executors = executors

    @property
    def ending(self) -> bool:
        """Whether the server is on its way out at once: nothing needs to be freed one by one."""
        return self.phase is Phase.ENDED

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

    def met_client(self, client: Client) -> None:
        """A client process is here: it counts as its context 0 in the log."""
        self.log.info("client_requested", pid=client.pid, context=0)
        self.log.info("client_connected", pid=client.pid, context=0)
        self.log.info("client_worker", pid=client.pid, context=0)

    def refused_devices(self, client: Client) -> None:
        """A client's CUDA_VISIBLE_DEVICES leaves it no device."""
        entry = client.environment.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
        self.log.info("client_devices_invalid", pid=client.pid)
        self.log.info("client_devices_entry", pid=client.pid, entry=entry)
        self.log.info("client_devices_hint", pid=client.pid, count=len(self.devices))

    def made_context(self, client: Client, context: Context) -> None:
        """A context is there."""
        facts = self.devices[context.device]
        who = {"pid": client.pid, "context": context.number}
        for event in ("client_requested", "context_connected", "client_worker"):
            self.log.info(event, **who)
        self.log.info("context_device", name=facts.name, uuid=facts.uuid)
        self.log.info("context_active", **who)
        self.link.context_made(client.serial, context.serial, context.number, context.device)

    def refused_context(self, client: Client, context: Context, code: int, reason: str) -> None:
        """A context could not be made."""
        self.log.info("context_refused", pid=client.pid, context=context.number, status=code)
        self.log.info("context_refused_reason", reason=reason)

    def lost_context(self, client: Client, context: Context) -> None:
        """A context is gone (the roster has forgotten it)."""
        left = sum(len(other.contexts) for other in self.roster.clients.values())
        who = {"pid": client.pid, "context": context.number}
        self.log.info("client_receive_failed", **who)
        self.log.info("context_exit", **who, left=left)
        self.link.context_gone(client.serial, context.serial)

    def lost_client(self, client: Client) -> None:
        """A client is gone, and with it what contexts it had left, the latest first."""
        for serial in sorted(client.contexts, reverse=True):
            self.lost_context(client, self.roster.close_context(client, serial))
        self.roster.leave(client.serial)
        self.log.info("client_receive_failed", pid=client.pid, context=0)
        self.log.info("client_disconnected", pid=client.pid)
        self.link.client_gone(client.serial)
        self._leave_if_alone()

    def faulted(self, serial: int, code: int, reason: str) -> None:
        """An executor says that a context is ruined (one that was terminated is told elsewhere)."""
        if code == Result.ERROR_MPS_CLIENT_TERMINATED:
            return
        for client in self.roster.clients.values():
            if serial in client.contexts:
                number = client.contexts[serial].number
                self.log.error("context_faulted", pid=client.pid, context=number)
                self.log.error("context_faulted_reason", reason=f"{reason} ({code})")
                self.log.info("context_inactive", pid=client.pid, context=number)

    def leave(self, forced: bool) -> None:
        """Go: with the last client, or at once."""
        self.log.info("server_shutdown_notified")
        if self.phase is Phase.SERVING:
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
        if self.phase is Phase.SERVING:
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
