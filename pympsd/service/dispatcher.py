"""Feed events to the state machine, and carry out its instructions in order, without waiting: the dispatcher.

This is the only place where the state changes. Sessions, timers and children call `Dispatcher.feed` with an event;
the state machine decides; the state is saved for the next daemon; then the dispatcher carries out each instruction:
it logs a line, answers an operator or spawns a process. Instructions never wait, so an event is handled completely
before the next one. An internal error is logged and reported to the operator, and the daemon continues. Only an
impossible status of a server raises an error, because the session that reported it has to end.

The protocols below describe the sessions, which import this module.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import trio
from attrs import Factory, define, field

from pympsd.channel.descriptors import explain
from pympsd.channel.trace_file import TraceFile
from pympsd.commands.grammar.line import parse
from pympsd.commands.operator_line import answer_line, servers_to_ask
from pympsd.journal.setup import Journal
from pympsd.service.files.cgroups import find_existing_cgroups
from pympsd.service.pacing import COMMAND_SECONDS
from pympsd.service.processes.client_memory import ClientMemory
from pympsd.service.processes.fd_quota import may_queue, may_watch
from pympsd.service.rate_limit import CONNECT_LINES, lines_to_limit
from pympsd.service.sessions.origins import origin_of_pid
from pympsd.service.tracing import Tracing
from pympsd.service.user_budgets import UserBudgets
from pympsd.state_machine import events
from pympsd.state_machine import instructions as do
from pympsd.state_machine.decide import handle
from pympsd.state_machine.instructions import Timer
from pympsd.state_machine.shares import exempt_users
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.refusals import MAX_REASON, RefusedClient
from pympsd.takeover.keeper.link import KeeperLink
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.identities import Ids, Peer
from pympsd.vocabulary.limit_table import ClientLimits
from pympsd.vocabulary.phases import IllegalMove
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.rules import Origin
from pympsd.vocabulary.settings import Settings

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class RunningServer(Protocol):
    """A server's session (sessions.server, sessions.driver.server).

    ``refresh`` requests the server's tables and returns whether the server answered in time.
    """

    uid: int
    pid: int
    kill: Callable[[], None]

    @property
    def queued_descriptors(self) -> int:
        """The number of descriptors that were sent to the server and that it has not received yet."""

    @property
    def watched_clients(self) -> int:
        """The number of clients whose processes the daemon watches by a pidfd."""

    @property
    def has_room(self) -> bool:
        """Whether the hello of another client may be queued for the server."""

    def shut_down(self, forced: bool, is_deletion: bool) -> None:
        """Ask the server to end: with its last client, or immediately if ``forced``.

        ``is_deletion``: clients get the reason that the server was deleted.
        """

    def set_limits(self, percentage: float, memory_limits: dict[int, int]) -> None:
        """Set the limits of the server's new clients: percent of SMs, and bytes by device ordinal."""

    def terminate(self, token: int, pid: int, by_reset: bool, evicted: tuple[int, ...]) -> None:
        """End the contexts of a client process; the clients in ``evicted`` cannot create new ones.

        The answer contains ``token``.
        """

    def watch(self, dispatcher: Dispatcher, client: int, pidfd: int) -> None:
        """Feed an event when the process of an admitted client ends; take over the client's pidfd."""

    def watch_by_pid(self, dispatcher: Dispatcher, client: int, pid: int) -> None:
        """Watch the process of a client that an earlier daemon admitted."""

    def note_waiting(self) -> None:
        """Begin to check whether the server's clients have gone, because a client or a command waits
        until they have.
        """

    def start_trace(self, trace: TraceFile) -> None:
        """Let the server write the work of its devices to a trace."""

    async def stop_trace(self) -> None:
        """Let the server end its part of the trace, and return when it has."""

    async def refresh(self) -> bool:
        """Request the server's tables; return whether the server answered in time."""


class WaitingClient(Protocol):
    """The session of a client that is not admitted yet (sessions.client, sessions.driver.client).

    Exactly one of ``grant``, ``refuse`` and ``go_without_mps`` is called, and only once. If ``grant`` raises OSError,
    ``refuse`` follows.
    """

    @property
    def peer(self) -> Peer:
        """The process at the other end of the connection, as the kernel reports it."""

    @property
    def run_id(self) -> str:
        """The id of the run that the client belongs to; empty if it has none."""

    def grant(self, server: RunningServer, priority: int, limits: ClientLimits | None) -> None:
        """Connect the client to a server. Raise OSError if that fails."""

    def refuse(self, code: int, reason: str) -> None:
        """Refuse the client with a CUresult and a reason, which the program sees."""

    def go_without_mps(self, reason: str) -> None:
        """Let the client use the device without MPS. The client may print the reason."""


class ConnectedOperator(Protocol):
    """An operator's session (sessions.operator, sessions.driver.tool).

    ``answer`` is called once for each line; ``note`` and ``report_working`` only before it.
    """

    def report_working(self) -> None:
        """Report to the operator that the command takes some time."""

    def note(self, text: str, is_output: bool) -> None:
        """Send a line before the answer; ``is_output``: for standard output, not standard error."""

    def answer(self, answer: Answer) -> None:
        """Send the answer to the current line."""

    async def drain(self) -> None:
        """Wait until everything has been sent, or the operator has gone."""


class Sockets(Protocol):
    """The sockets of servers and namespaces (namespace_sockets)."""

    opened: list[events.NamespaceOpened]
    """The results of ``open``, to report to the state machine when all instructions of an event are carried out."""

    def open(self, server: str, namespace: str, uid: int) -> None:
        """Open the socket of a namespace for a user; add the result to ``opened``."""

    def close(self, server: str, namespace: str) -> None:
        """Close a namespace's socket and remove it."""

    def look(self) -> None:
        """Recreate sockets that were removed or could not be created."""


class SaveState(Protocol):
    """Saves the state for the next daemon."""

    def __call__(self, *, only_if_lost: bool = False) -> None:
        """Save the state; with ``only_if_lost``, only if the saved state was lost."""


@define
class Sessions:
    """The connected sessions, by id, and the function that begins a server's session."""

    spawn: Callable[[Dispatcher, do.SpawnServer], Any]
    client_memory: ClientMemory | None = None
    """The reader of the memory of the driver's clients; None if servers report the memory themselves."""
    operators: dict[int, ConnectedOperator] = field(factory=dict)
    clients: dict[int, WaitingClient] = field(factory=dict)
    servers: dict[int, RunningServer] = field(factory=dict)
    ids: Ids = field(factory=Ids)
    """The allocator of the ids of clients and operators."""


@define
class Ending:
    """The end of the daemon: whether it has begun, and what follows it."""

    done: trio.Event = field(factory=trio.Event)
    """The event that is set when the daemon is to end."""
    status: int = 0
    """The exit status."""
    handed_over: bool = False
    """Whether another daemon takes over; if so, this daemon leaves the state file for it."""
    changes_backend: bool = False
    """Whether the daemon ends and then starts again with the other backend."""


@define
class Dispatcher:
    """The running daemon: its state and its connected sessions."""

    state: Daemon
    settings: Settings
    journal: Journal
    log: FilteringBoundLogger
    nursery: trio.Nursery
    keeper: KeeperLink
    """The keeper, which holds descriptors for the next daemon in case this one is killed."""
    sessions: Sessions
    timers: dict[Timer, trio.CancelScope] = field(factory=dict)
    """The scopes of the running timers; a new timer replaces an equal one."""
    ending: Ending = field(factory=Ending)
    sockets: Sockets | None = None
    save: SaveState = lambda *, only_if_lost=False: None
    tracing: Tracing = field(factory=Tracing)
    changed: trio.Event = field(factory=trio.Event)
    """The event that is set when the state may have changed."""
    budgets: UserBudgets = field(
        default=Factory(lambda self: UserBudgets(self.state, self.log), takes_self=True), init=False
    )

    def feed(self, event: events.Event, *, quiet: bool = False) -> None:
        """Handle an event and carry out the instructions; ``quiet``: omit the log lines about a client.

        Raise IllegalMove for a status that a server must not report. Log an internal error and continue.
        """
        uid, _ = lines_to_limit(event, self.state)
        with self.budgets.pacing.charge(uid):
            # Only before these events, which are not frequent, because this checks all sockets.
            if self.sockets is not None and isinstance(
                event, events.OperatorLine | events.ClientConnected | events.ServerExited
            ):
                self.sockets.look()
            self._handle(event, quiet)
            # In a loop, because a configuration may open more sockets than calls can be nested.
            while self.sockets is not None and self.sockets.opened:
                self._handle(self.sockets.opened.pop(0), quiet=False)

    def _handle(self, event: events.Event, quiet: bool) -> None:
        """Let the state machine handle one event, save the state, and carry out the instructions."""
        is_answered = False
        try:
            instructions = handle(self.state, event, answer_line)
            # Save first, because the next daemon needs a record of everything that is answered or begun below.
            is_query = isinstance(event, events.OperatorLine) and event.line.is_query
            self.save(only_if_lost=is_query)
            omitted = CONNECT_LINES if quiet else self._lines_over_limit(event, instructions)
            for instruction in instructions:
                if not (isinstance(instruction, do.Log) and instruction.event in omitted):
                    self._carry_out(instruction)
                is_answered = is_answered or isinstance(instruction, do.Reply)
            self.tracing.observe(self.state)
            self.changed.set()
            if self.state.queue:
                for server in self.sessions.servers.values():
                    server.note_waiting()
        except IllegalMove:
            raise
        except Exception as error:
            self.log.error("daemon_defect", reason=repr(error))
            if isinstance(event, events.OperatorLine) and not is_answered:
                reason = f"the daemon met an internal error: {error!r}; control.log has it too"
                self._carry_out(do.Reply(event.session, refusal(diagnostic=reason)))

    async def feed_line(
        self, session: int, uid: int, line: bytes, file: bytes | None = None, place: tuple[str, str] = ("", "")
    ) -> None:
        """Handle an operator's line; first refresh the servers' tables if the answer depends on them.

        ``file``: the text of the file that the line names; ``place``: the server and namespace of the operator's
        socket.
        """
        await self.budgets.pacing.wait(uid, COMMAND_SECONDS)
        silent: list[int] = []

        async def refresh(server: RunningServer) -> None:
            if not await server.refresh():
                silent.append(server.pid)

        parsed = parse(line, self.state.options.protocol)
        if servers := servers_to_ask(self.state, parsed):
            async with trio.open_nursery() as nursery:
                for server in servers:
                    if server.id in self.sessions.servers:
                        nursery.start_soon(refresh, self.sessions.servers[server.id])
        process = None if parsed.process is None else origin_of_pid(parsed.process)
        passing = self.state.process_limits.transient_cgroups
        cgroups = find_existing_cgroups(passing) if passing and parsed.asks_cgroups else None
        origins = self._find_unknown_origins() if parsed.asks_origins else {}
        at = time.time()
        self.feed(
            events.OperatorLine(session, uid, parsed, tuple(silent), file, at, *place, process, cgroups, origins)
        )

    def _find_unknown_origins(self) -> dict[int, Origin]:
        """Read the properties of the clients' processes whose properties are not known yet; return them by PID."""
        servers = self.state.servers.values()
        processes = [client.process for server in servers for client in server.clients.values()]
        processes += [entry.process for entry in self.state.queue.all_entries if entry.process is not None]
        pids = {process.peer.pid for process in processes if process.origin is None}
        return {pid: origin for pid in pids if pid and (origin := origin_of_pid(pid)) is not None}

    def _lines_over_limit(self, event: events.Event, instructions: list[do.Instruction]) -> frozenset[str]:
        """Return the log events to omit because a user is over its rate limit."""
        uid, lines = lines_to_limit(event, self.state)
        logs = (instruction for instruction in instructions if isinstance(instruction, do.Log))
        texts = [" ".join(map(str, log.fields.values())) for log in logs if log.event in lines]
        return frozenset() if not texts or self.budgets.may_log(uid, *texts) else lines

    def _carry_out(self, instruction: do.Instruction) -> None:
        """Carry out one instruction. Do nothing if the session that it is for has ended."""
        match instruction:
            case do.Log(event, fields):
                self.log.info(event, **fields)
            case do.Reply(session, answer) if session in self.sessions.operators:
                self.sessions.operators[session].answer(answer)
            case do.Working(session) if session in self.sessions.operators:
                self.sessions.operators[session].report_working()
            case do.Note(session, text, is_output) if session in self.sessions.operators:
                self.sessions.operators[session].note(text, is_output)
            case do.SpawnServer():
                self.nursery.start_soon(self.sessions.spawn, self, instruction)
            case do.AdmitClient():
                self._admit(instruction)
            case do.RefuseClient(client, code, reason):
                self._refuse(client, code, reason)
            case do.ContinueWithoutMps(client, reason) if client in self.sessions.clients:
                self.sessions.clients[client].go_without_mps(reason)
            case do.ShutDownServer(server, forced, is_deletion) if server in self.sessions.servers:
                self.sessions.servers[server].shut_down(forced, is_deletion)
            case do.UpdateServerLimits(server, percentage, limits) if server in self.sessions.servers:
                self.sessions.servers[server].set_limits(percentage, limits)
            case do.TerminateClient(server, token, pid, by_reset, evicted) if server in self.sessions.servers:
                self.sessions.servers[server].terminate(token, pid, by_reset, evicted)
            case do.WatchClient(client, server, pid) if server in self.sessions.servers:
                self.sessions.servers[server].watch_by_pid(self, client, pid)
            case do.KillServer(server) if server in self.sessions.servers:
                self.sessions.servers[server].kill()
            case do.OpenNamespace(server, namespace, uid) if self.sockets:
                self.sockets.open(server, namespace, uid)
            case do.CloseNamespace(server, namespace) if self.sockets:
                self.sockets.close(server, namespace)
            case do.StartTrace(session, file):
                servers, times_devices = self.sessions.servers.values(), self.settings.backend != "vendor"
                self._reply(session, self.tracing.start(file, self.state, servers, times_devices))
                self.save()
            case do.StopTrace(session):
                self.nursery.start_soon(self._stop_trace, session)
            case do.ReopenLogs(session):
                failed = self.journal.reopen()
                self._reply(session, refusal(*failed) if failed else Answer())
            case do.ReleaseDriver(answers):
                self.nursery.start_soon(self._release_driver, answers)
            case do.SetTimer(timer, seconds):
                scope = self.timers[timer] = trio.CancelScope()
                self.nursery.start_soon(self._timer, timer, seconds, scope)
            case do.CancelTimer(timer) if timer in self.timers:
                self.timers.pop(timer).cancel()
            case do.Exit(status):
                self.tracing.end()
                self.ending.status = status
                self.ending.done.set()
            case do.ChangeBackend():
                self.ending.changes_backend = True
                self.ending.done.set()

    async def _stop_trace(self, session: int) -> None:
        self._reply(session, await self.tracing.stop(self.state, tuple(self.sessions.servers.values())))
        self.save()

    async def _release_driver(self, answers: tuple[do.Reply, ...]) -> None:
        if self.sessions.client_memory is not None:
            await self.sessions.client_memory.close()
        for reply in answers:
            self._reply(reply.session, reply.answer)

    def _reply(self, session: int, answer: Answer) -> None:
        for instruction in do.reply(session, answer):
            self._carry_out(instruction)

    def _admit(self, instruction: do.AdmitClient) -> None:
        client = self.sessions.clients.get(instruction.client)
        server = self.sessions.servers.get(instruction.server)
        if client is None or server is None:
            return
        try:
            if not (server.has_room and may_queue(server, self.sessions.servers.values(), exempt_users(self.state))):
                stuck = f"the server of user {server.uid} accepts no clients: it is stopped or stuck"
                raise OSError(errno.EBUSY, stuck)
            client.grant(server, instruction.priority, instruction.limits)
        except OSError as error:
            self.refuse_after_admission(instruction.client, instruction.server, error)

    def may_watch(self, server: RunningServer) -> bool:
        """Return whether the process of another client of a server may be watched."""
        return may_watch(server, self.sessions.servers.values(), exempt_users(self.state))

    def refuse_after_admission(self, client: int, server: int, error: OSError) -> None:
        """Refuse an admitted client, because its session with the server could not be made.

        ``error``: why the socket pair could not be made or sent. The client is removed from the server's table.
        """
        reason = f"no session can be made: {explain(error)}"
        self._refuse(client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
        self.feed(events.ClientGonePushed(server, client))

    def _refuse(self, client: int, code: int, reason: str) -> None:
        session = self.sessions.clients.get(client)
        if session is not None:
            self.budgets.log_refused(session.peer, reason)
            # The driver's wire has the same answer to all refusals: the end of the connection.
            shown_code = code if self.state.options.has_own_servers else Result.ERROR_MPS_CONNECTION_FAILED
            self.note_refusal(session.peer, shown_code, reason, session.run_id)
            session.refuse(code, reason)

    def note_refusal(self, peer: Peer, code: int, reason: str, run_id: str = "", call: str = "cuInit") -> None:
        """Keep a refusal, so that its user can query it. ``code``: the result of the program's ``call``, see
        `RefusedClient`.
        """
        refusal = RefusedClient(peer.pid, peer.uid, time.time(), call, code, reason[:MAX_REASON], run_id)
        self.state.refusals.add(refusal)

    async def _timer(self, timer: Timer, seconds: float, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(seconds)
        if self.timers.get(timer) is scope:
            del self.timers[timer]
        if not scope.cancelled_caught:
            self.feed(events.TimerEnded(timer))
