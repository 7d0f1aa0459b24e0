"""The dispatcher: feeds events to the state machine and carries out its instructions in order, without waiting.

The protocols describe the sessions, which import this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio
from attrs import Factory, define, field

from pympsd.channel.descriptors import explain
from pympsd.channel.message_channel import MessageChannel
from pympsd.commands.operator_line import answer_line
from pympsd.journal.setup import Journal
from pympsd.service.rate_limit import UserRateLimits
from pympsd.state_machine import instructions as do
from pympsd.state_machine.daemon_state import Daemon
from pympsd.state_machine.decide import handle
from pympsd.state_machine.events import ClientConnected, ClientGonePushed, Event, OperatorLine, TimerEnded
from pympsd.state_machine.server_lifecycle import IllegalMove
from pympsd.state_machine.timers import Timer
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.identities import Peer, Serials
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.settings import Settings
from pympsd.wire import link_messages
from pympsd.wire.messages import GoWithoutMps, Refused

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

COMMAND_LINES: Final = frozenset({"command", "answer"})
"""Log lines that any user may cause with a command."""
CONNECT_LINES: Final = frozenset(
    {"client_server_exists", "client_pending", "turn_awaited", "debugger_waits", "debugger_let_go"}
)
"""Log lines that any user may cause by connecting as a client."""


class ConnectedOperator(Protocol):
    """An operator's session (sessions.operator)."""

    channel: MessageChannel

    def working(self) -> None: ...
    def answer(self, answer: Answer) -> None: ...


class RunningServer(Protocol):
    """A server's session (sessions.server)."""

    uid: int
    pid: int
    kill: Callable[[], None]

    @property
    def channel(self) -> MessageChannel: ...
    @property
    def takes_clients(self) -> bool: ...
    def send(self, message: object) -> None: ...
    def watch(self, dispatcher: Dispatcher, client: int, pidfd: int) -> None: ...
    def watch_by_pid(self, dispatcher: Dispatcher, client: int, pid: int) -> None: ...


class WaitingClient(Protocol):
    """The session of a client that is not admitted yet (sessions.client)."""

    @property
    def peer(self) -> Peer: ...
    def grant(self, server: RunningServer, priority: int) -> None: ...
    def dismiss(self, message: Refused | GoWithoutMps) -> None: ...


@define
class Dispatcher:
    """The running daemon: its state and its connected sessions."""

    state: Daemon
    settings: Settings
    control_socket: str
    show_server_as: str
    journal: Journal
    log: FilteringBoundLogger
    nursery: trio.Nursery
    spawn: Callable[[Dispatcher, do.SpawnServer], Any]
    operators: dict[int, ConnectedOperator] = field(factory=dict)
    clients: dict[int, WaitingClient] = field(factory=dict)
    servers: dict[int, RunningServer] = field(factory=dict)
    timers: dict[Timer, trio.CancelScope] = field(factory=dict)
    """The latest of several equal timers."""
    serials: Serials = field(factory=Serials)
    status: int = 0
    done: trio.Event = field(factory=trio.Event)
    handed_over: bool = False
    """Another daemon takes over: the state file stays for it."""
    reconnect_socket: str = ""
    """The full path of the socket where servers look for the next daemon; empty: nowhere."""
    save: Callable[[], None] = lambda: None
    """Saves the state for the next daemon."""
    _rate_limits: UserRateLimits = field(
        default=Factory(lambda self: UserRateLimits(frozenset({0, self.state.uid})), takes_self=True), init=False
    )

    def may_log(self, uid: int, *texts: str) -> bool:
        """Return whether a user may cause a line (or one of each text); log first how many were dropped before."""
        if not self._rate_limits.take(uid, texts or ("",), trio.current_time()):
            return False
        dropped = self._rate_limits.take_dropped(uid)
        if dropped:
            self.log.info("user_lines_dropped", count=dropped, uid=uid)
        return True

    def feed(self, event: Event, *, quiet: bool = False) -> None:
        """Handle an event and carry out the instructions; ``quiet``: without the log lines of a client.

        Raise IllegalMove for a status that a server must not report. Log an internal error and continue.
        """
        try:
            instructions = handle(self.state, event, answer_line)
            # First: the next daemon has to know what is answered or begun below.
            self.save()
            omitted = CONNECT_LINES if quiet else self._lines_over_limit(event, instructions)
            for instruction in instructions:
                if not (isinstance(instruction, do.Log) and instruction.event in omitted):
                    self._carry_out(instruction)
        except IllegalMove:
            raise
        except Exception as error:
            self.log.error("daemon_defect", reason=repr(error))

    def _lines_over_limit(self, event: Event, instructions: list[do.Instruction]) -> frozenset[str]:
        """Return the log events to omit: those of a user over its rate limit."""
        if isinstance(event, OperatorLine):
            uid, lines = event.uid, COMMAND_LINES
        elif isinstance(event, ClientConnected):
            uid, lines = event.peer.uid, CONNECT_LINES
        else:
            return frozenset()
        logs = [one for one in instructions if isinstance(one, do.Log) and one.event in lines]
        texts = [" ".join(map(str, log.fields.values())) for log in logs]
        return frozenset() if not texts or self.may_log(uid, *texts) else lines

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.Log(event, fields):
                self.log.info(event, **fields)
            case do.Reply(session, answer):
                if session in self.operators:
                    self.operators[session].answer(answer)
            case do.Working(session):
                if session in self.operators:
                    self.operators[session].working()
            case do.SpawnServer():
                self.nursery.start_soon(self.spawn, self, instruction)
            case do.AdmitClient():
                self._admit(instruction)
            case do.RefuseClient(client, code, reason):
                self._refuse(client, code, reason)
            case do.ContinueWithoutMps(client, reason):
                if client in self.clients:
                    self.clients[client].dismiss(GoWithoutMps(reason))
            case do.ShutDownServer(server, forced):
                if server in self.servers:
                    self.servers[server].send(link_messages.ShutDown(forced))
            case do.UpdateServerLimits(server, percentage, limits):
                if server in self.servers:
                    self.servers[server].send(link_messages.LimitsChanged(percentage, limits))
            case do.TerminateClient(server, token, pid, by_reset):
                if server in self.servers:
                    self.servers[server].send(link_messages.TerminateClient(token, pid, by_reset))
            case do.WatchClient(client, server, pid):
                if server in self.servers:
                    self.servers[server].watch_by_pid(self, client, pid)
            case do.KillServer(server):
                if server in self.servers:
                    self.servers[server].kill()
            case do.SetTimer(timer, seconds):
                scope = self.timers[timer] = trio.CancelScope()
                self.nursery.start_soon(self._timer, timer, seconds, scope)
            case do.CancelTimer(timer):
                if timer in self.timers:
                    self.timers.pop(timer).cancel()
            case do.Exit(status):
                self.status = status
                self.done.set()

    def _admit(self, instruction: do.AdmitClient) -> None:
        client = self.clients.get(instruction.client)
        server = self.servers.get(instruction.server)
        if client is None or server is None:
            return
        try:
            client.grant(server, instruction.priority)
        except OSError as error:
            reason = f"no session can be made: {explain(error)}"
            self._refuse(instruction.client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
            self.feed(ClientGonePushed(instruction.server, instruction.client))

    def _refuse(self, client: int, code: int, reason: str) -> None:
        session = self.clients.get(client)
        if session is not None:
            if self.may_log(session.peer.uid, reason):
                self.log.info("client_refused", pid=session.peer.pid, uid=session.peer.uid, reason=reason)
            session.dismiss(Refused(code, reason))

    async def _timer(self, timer: Timer, seconds: float, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(seconds)
        if self.timers.get(timer) is scope:
            del self.timers[timer]
        if not scope.cancelled_caught:
            self.feed(TimerEnded(timer))
