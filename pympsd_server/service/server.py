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

    def made_context(self, client: Client, context: Context) -> None:
        """A context is there."""
        facts = self.devices[context.device]
        self.log.info("context_device", name=facts.name, uuid=facts.uuid)
        self.log.info("context_active", pid=client.pid, context=context.number)
        self.link.context_made(client.serial, context.serial, context.number, context.device)

    def refused_context(self, client: Client, context: Context, code: int, reason: str) -> None:
        """A context could not be made."""
        status = Result(code) if code in set(Result) else Result.ERROR_UNKNOWN
        self.log.info(
            "context_refused", pid=client.pid, context=context.number, status=f"{status.value}", reason=reason
        )

    def lost_context(self, client: Client, context: Context) -> None:
        """A context is gone."""
        self.log.info("context_exit", pid=client.pid, context=context.number)
        self.link.context_gone(client.serial, context.serial)

    def lost_client(self, client: Client) -> None:
        """A client is gone, and with it what contexts it had left."""
        self.roster.leave(client.serial)
        for context in client.contexts.values():
            self.lost_context(client, context)
        self.log.info("client_disconnected", pid=client.pid)
        self.link.client_gone(client.serial)
        self._leave_if_alone()

    def faulted(self, serial: int, code: int, reason: str) -> None:
        """An executor says that a context is ruined."""
        for client in self.roster.clients.values():
            if serial in client.contexts:
                number = client.contexts[serial].number
                self.log.error("context_faulted", pid=client.pid, context=number, reason=f"{reason} ({code})")
                self.log.info("context_inactive", pid=client.pid, context=number)

    def leave(self, forced: bool) -> None:
        """Go: with the last client, or at once."""
        self.log.info("server_shutdown_notified")
        if self.phase is Phase.SERVING:
            self.phase = phases.move(self.phase, Phase.LEAVING)
        if forced:
            self._end()
        elif self.roster.clients:
            self.log.info("server_shutdown_busy", clients=len(self.roster.clients))
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
            self._end()

    def _end(self) -> None:
        if self.phase is not Phase.ENDED:
            self.phase = phases.move(self.phase, Phase.ENDED)
            self.log.info("server_exiting")
            self.done.set()
