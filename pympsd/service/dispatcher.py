"""Where events meet the mind: feeds it, and has each instruction carried out, in order, without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import Factory, define, field

from pympsd.channel.descriptors import explain
from pympsd.commands.operator_line import answer_line
from pympsd.journal.setup import Journal
from pympsd.service.rate_limit import UserLines
from pympsd.state_machine import instructions as do
from pympsd.state_machine.daemon_state import Daemon as Mind
from pympsd.state_machine.decide import handle
from pympsd.state_machine.events import ClientConnected, ClientGonePushed, Event, OperatorLine, TimerEnded
from pympsd.state_machine.server_lifecycle import IllegalMove
from pympsd.state_machine.timers import Timer
from pympsd.vocabulary.identities import Serials
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.settings import Settings
from pympsd.wire import link_messages

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from pympsd.service.sessions.adoption import AwaitedServer
    from pympsd.service.sessions.client import ClientSession
    from pympsd.service.sessions.operator import OperatorSession
    from pympsd.service.sessions.server import ServerSession

COMMAND_LINES: Final = frozenset({"command", "answer"})
"""The lines of a command that anybody may give."""
KNOCK_LINES: Final = frozenset(
    {"client_server_exists", "client_pending", "turn_awaited", "debugger_waits", "debugger_let_go"}
)
"""The lines of a client that anybody may send."""


@define
class Hub:
    """The running daemon's one meeting point: its mind, and who is connected."""

    mind: Mind
    settings: Settings
    control_socket: str
    show_server_as: str
    journal: Journal
    log: FilteringBoundLogger
    nursery: trio.Nursery
    spawn: Callable[[Hub, do.SpawnServer], Any]
    operators: dict[int, OperatorSession] = field(factory=dict)
    clients: dict[int, ClientSession] = field(factory=dict)
    servers: dict[int, ServerSession] = field(factory=dict)
    timers: dict[Timer, trio.CancelScope] = field(factory=dict)
    """Of equal timers the last."""
    serials: Serials = field(factory=Serials)
    status: int = 0
    done: trio.Event = field(factory=trio.Event)
    handed_over: bool = False
    """Another daemon takes over: what is kept for it stays."""
    awaited: dict[int, AwaitedServer] = field(factory=dict)
    """The servers of the daemon before that have not returned yet, by PID."""
    door: str = ""
    """The full path of the socket that servers knock at when this daemon is gone; empty: they need not."""
    keep: Callable[[], None] = lambda: None
    """Keeps for another daemon what the mind knows now."""
    _user_lines: UserLines = field(
        default=Factory(lambda hub: UserLines(frozenset({0, hub.mind.uid})), takes_self=True), init=False
    )

    def may_log(self, uid: int, *texts: str) -> bool:
        """Whether a line (or one of each text) may be logged that a user causes; tells first what was dropped."""
        if not self._user_lines.take(uid, texts or ("",), trio.current_time()):
            return False
        dropped = self._user_lines.take_dropped(uid)
        if dropped:
            self.log.info("user_lines_dropped", count=dropped, uid=uid)
        return True

    def feed(self, event: Event, *, quiet: bool = False) -> None:
        """Let the mind decide an event and carry out what it asks for; ``quiet``: without the lines of a client.

        Raise IllegalMove for what a server must not say; a defect of ours is logged, and the daemon goes on.
        """
        try:
            instructions = handle(self.mind, event, answer_line)
            # First: what is answered or begun below must not be unknown to the next daemon.
            self.keep()
            unsaid = KNOCK_LINES if quiet else self._over_the_allowance(event, instructions)
            for instruction in instructions:
                if not (isinstance(instruction, do.Log) and instruction.event in unsaid):
                    self._carry_out(instruction)
        except IllegalMove:
            raise
        except Exception as error:
            self.log.error("daemon_defect", reason=repr(error))

    def _over_the_allowance(self, event: Event, instructions: list[do.Instruction]) -> frozenset[str]:
        """Return which lines are to be left out: those of an event that its user has caused too often."""
        if isinstance(event, OperatorLine):
            uid, lines = event.uid, COMMAND_LINES
        elif isinstance(event, ClientConnected):
            uid, lines = event.peer.uid, KNOCK_LINES
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
                    self.clients[client].let_go(reason)
            case do.ShutDownServer(server, forced):
                if server in self.servers:
                    self.servers[server].tell_to_leave(forced)
            case do.UpdateServerLimits(server, percentage, limits):
                if server in self.servers:
                    self.servers[server].tell(link_messages.LimitsChanged(percentage, limits))
            case do.TerminateClient(server, token, pid, by_reset):
                if server in self.servers:
                    self.servers[server].tell(link_messages.TerminateClient(token, pid, by_reset))
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
            self._refuse(client.client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
            self.feed(ClientGonePushed(server.serial, client.client))

    def _refuse(self, client: int, code: int, reason: str) -> None:
        session = self.clients.get(client)
        if session is not None:
            if self.may_log(session.peer.uid, reason):
                self.log.info("client_refused", pid=session.peer.pid, uid=session.peer.uid, reason=reason)
            session.refuse(code, reason)

    async def _timer(self, timer: Timer, seconds: float, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(seconds)
        if self.timers.get(timer) is scope:
            del self.timers[timer]
        if not scope.cancelled_caught:
            self.feed(TimerEnded(timer))
