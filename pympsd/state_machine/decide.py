"""The state machine's entry point: an event in, instructions out, in order.

The daemon is divided into an I/O layer (`pympsd.service`), which waits, opens and forks, and this state machine,
which decides. The machine is sans-I/O: `handle` changes the state by one event and returns a list of instructions;
it opens nothing, waits for nothing and reads no clock. So every sequence of events can be tested, in any order and
a thousand times a second, without processes (tests/support/daemon_machine.py draws them).

::

    session, timer, child --event--> handle(daemon, event) --instructions--> dispatcher --> socket, timer, child
                                          |
                                     daemon (state)

Rules that hold for every event:

- The dispatcher saves the state before it carries out the first instruction: what an operator or a client is told
  survives the daemon that told it.
- Events about servers and clients that are gone are normal: they were on their way when the end was reported. A
  handler looks its server up and does nothing if there is none. An impossible move of a server's phase raises
  IllegalMove, and the server that caused it is killed.
- Instructions are carried out in their order, without waiting in between. What takes time comes back as an event.
- After each handler, whatever it was: timers of entries that left the queue are cancelled, clients under a debugger
  whose others have left are released, refusals and starts are counted, log lines get the server's name (protocol 3),
  and answers of parts are combined to those of compound commands.

Example: a client of user 500 connects, and no server is running. ClientConnected gives a Log line and SpawnServer;
the dispatcher forks, and ServerSpawned gives a START timer. The server reports that it is active (StatusPushed):
the queue is served, and AdmitClient makes the session between the client and the server.

A new kind of event: a record in `events`, its handler here, and the module of its topic that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import singledispatch

from attrs import evolve

from pympsd.state_machine import (
    admission,
    cgroups,
    debuggers,
    events,
    failed_starts,
    named_servers,
    queueing,
    registration,
    shutdown,
    sockets,
    takeover,
    terminations,
)
from pympsd.state_machine.instructions import (
    Instruction,
    Log,
    RefuseClient,
    Reply,
    SetTimer,
    SpawnServer,
    Working,
    reply,
)
from pympsd.state_machine.state.client import Context
from pympsd.state_machine.state.compound_commands import CompoundCommands
from pympsd.state_machine.state.daemon import Count, Daemon
from pympsd.state_machine.state.server import Phase, Server
from pympsd.state_machine.timers import Timer, TimerKind
from pympsd.vocabulary.answers import lines, refusal
from pympsd.vocabulary.results import ServerStatus

AnswerLine = Callable[[Daemon, events.OperatorLine], Iterator[Instruction]]
"""Carries out an operator's command line (pympsd.commands.operator_line)."""

ENDS = (events.ServerExited, events.ServerNotTakenOver)
"""Events after which a server is known no more."""


def handle(daemon: Daemon, event: events.Event, answer_line: AnswerLine) -> list[Instruction]:
    """Change the state by an event; return the instructions that follow from it, in order."""
    gone = daemon.servers.get(event.server) if isinstance(event, ENDS) else None
    if isinstance(event, events.ClientConnected):
        daemon.lifetime.now = event.process.since
    if isinstance(event, events.OperatorLine):
        daemon.lifetime.now = event.at
        gone_cgroups = () if event.cgroups is None else cgroups.drop_gone(daemon, event.cgroups)
        decided = [*gone_cgroups, *answer_line(daemon, event)]
    else:
        decided = list(_decide(event, daemon))
    decided += [*queueing.cancel_stale_timers(daemon), *debuggers.release(daemon)]
    daemon.lifetime.counts[Count.REFUSED] += sum(isinstance(instruction, RefuseClient) for instruction in decided)
    daemon.lifetime.counts[Count.SERVERS] += sum(isinstance(instruction, SpawnServer) for instruction in decided)
    if daemon.options.policy.has_named_servers:
        decided = list(_name_servers(daemon, gone, decided))
    return list(combine_answers(daemon.compound_commands, decided))


def combine_answers(commands: CompoundCommands, decided: Iterable[Instruction]) -> Iterator[Instruction]:
    """Take the answers of parts out of instructions, and add those of the compound commands that are answered now."""
    for instruction in decided:
        if isinstance(instruction, Reply) and instruction.session < 0:
            commands.record(instruction.session, instruction.answer)
        elif isinstance(instruction, Working) and instruction.session < 0:
            yield from map(Working, commands.sessions_of(instruction.session))
        else:
            yield instruction
    for session, answer in commands.take_answers():
        yield from reply(session, answer)


def _name_servers(daemon: Daemon, gone: Server | None, decided: Iterable[Instruction]) -> Iterator[Instruction]:
    """Add its server's name to each line that has a server's PID; ``gone``: the server that is known no more."""
    for instruction in decided:
        if isinstance(instruction, Log) and "server" in instruction.fields and "place" not in instruction.fields:
            server = daemon.server_by_pid(int(instruction.fields["server"])) or gone
            place = {} if server is None else {"place": server.name}
            yield evolve(instruction, fields={**instruction.fields, **place})
        else:
            yield instruction


@singledispatch
def _decide(event: object, daemon: Daemon) -> Iterator[Instruction]:
    raise TypeError(f"{type(event).__name__} is not an event of the daemon")


@_decide.register
def _(event: events.ClientConnected, daemon: Daemon) -> Iterator[Instruction]:
    cgroups.note_client(daemon, event)
    yield from admission.connect(daemon, event)


@_decide.register
def _(event: events.WaitingClientLeft, daemon: Daemon) -> Iterator[Instruction]:
    admission.leave_queue(daemon, event.client)
    yield from admission.serve_queue(daemon)


@_decide.register
def _(event: events.ServerSpawned, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers[event.server]
    server.pid = event.pid
    server.become(Phase.INITIALIZING)
    yield Log("server_starting", {"server": event.pid, "uid": server.uid})
    for session in server.starters:
        yield Reply(session, lines())
    server.starters.clear()
    yield SetTimer(Timer(TimerKind.START, server.id), admission.START_TIMEOUT)
    yield from named_servers.process_started(daemon, server)
    yield from shutdown.advance(daemon)


@_decide.register
def _(event: events.SpawnFailed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.pop(event.server)
    where = daemon.place_of(server.name)
    yield Log("server_spawn_failed", {"uid": server.uid, "reason": event.reason, **where})
    reason = f"{server.title} could not be started: {event.reason}"
    for session in server.starters:
        yield Reply(session, refusal(diagnostic=f"start_server: {reason}"))
    yield from failed_starts.refuse_waiting(daemon, server.name, reason, event.reason)
    yield from _next_after(daemon, server)


@_decide.register
def _(event: events.StatusPushed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is None:
        return
    phases = {ServerStatus.ACTIVE: Phase.ACTIVE, ServerStatus.FAULT: Phase.FAULT}
    target = phases.get(ServerStatus(event.status))
    if target is None or server.phase in (Phase.LEAVING, target):
        return
    if server.phase is Phase.INITIALIZING:
        yield Log("server_ready", {"server": server.pid})
        yield from failed_starts.begin_trial(server)
        yield from registration.became_ready(daemon, server.name)
    server.become(target)
    daemon.lifetime.counts[Count.FAULTS] += target is Phase.FAULT
    yield from admission.serve_queue(daemon)


@_decide.register
def _(event: events.ServerReported, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is not None:
        admission.update_contexts(daemon, server, event)
        yield from _decide(events.StatusPushed(event.server, event.status), daemon)


@_decide.register
def _(event: events.DevicesReported, daemon: Daemon) -> Iterator[Instruction]:
    daemon.devices = daemon.devices or event.devices
    yield from ()


@_decide.register
def _(event: events.ClientJoined, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    client = server.clients.get(event.client) if server else None
    if client is not None:
        client.limits = event.limits
    yield from ()


@_decide.register
def _(event: events.ContextPushed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    client = server.clients.get(event.client) if server else None
    if server is None or client is None:
        return
    client.contexts[event.context] = Context(event.context, event.number, event.device)
    cgroups.note_context(server, client, event.device)
    failed_starts.has_served(daemon, server)
    where = daemon.place_of(server.name, client.process.namespace)
    yield Log("client_server_exists", {"pid": client.pid, "uid": client.uid, **where})


@_decide.register
def _(event: events.ContextGonePushed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    client = server.clients.get(event.client) if server else None
    if client is not None:
        client.contexts.pop(event.context, None)
    yield from ()


@_decide.register
def _(event: events.MemoryPushed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is not None:
        server.launches[event.device] = event.launches
        for client in server.clients.values():
            client.memory[event.device] = event.clients.get(client.id, 0)
    yield from ()


@_decide.register
def _(event: events.ClientMemoryRead, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    for client in server.clients.values() if server is not None else ():
        client.memory = dict(event.clients.get(client.pid, {}))
    yield from ()


@_decide.register
def _(event: events.ClientGonePushed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is not None:
        gone = server.clients.get(event.client)
        yield from admission.remove_client(daemon, server, event.client)
        if gone is not None and gone.groups:
            cgroups.drop_groups(server, gone)


@_decide.register
def _(event: events.ClientEnded, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is not None:
        yield from admission.note_client_end(daemon, server, event.client)


@_decide.register
def _(event: events.TerminationAnswered, daemon: Daemon) -> Iterator[Instruction]:
    daemon.lifetime.counts[Count.TERMINATED] += event.code == 0
    yield from terminations.end_with_answer(daemon, event.server, event.token, event.code)


@_decide.register
def _(event: events.ServerExited, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.pop(event.server, None)
    if server is None:
        return
    if event.status is None:
        yield Log("server_ended", {"server": server.pid})
    else:
        yield Log("server_exited", {"server": server.pid, "status": event.status})
    yield from terminations.end_with_server(daemon, server)
    death = failed_starts.Death(event.status, event.last_stderr_line)
    if server.phase is Phase.INITIALIZING:
        yield from failed_starts.handle_death_in_start(daemon, server, death)
    else:
        yield from failed_starts.handle_death_unserved(daemon, server, death)
    server.become(Phase.GONE)
    yield from _next_after(daemon, server)


@_decide.register
def _(event: events.StartRefused, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is not None:
        server.start_refusal = event.reason
    yield from ()


@_decide.register
def _(event: events.PredecessorDied, daemon: Daemon) -> Iterator[Instruction]:
    yield from takeover.take_over(daemon, event)


@_decide.register
def _(event: events.ServerTakenOver, daemon: Daemon) -> Iterator[Instruction]:
    yield from takeover.adopt(daemon, event)
    if (server := daemon.servers.get(event.server)) is not None:
        yield from named_servers.process_started(daemon, server)


@_decide.register
def _(event: events.ServerNotTakenOver, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.pop(event.server, None)
    if server is not None:
        yield Log("server_left_alone", {"server": server.pid, "reason": event.reason})
        yield from terminations.end_with_server(daemon, server)
        yield from _next_after(daemon, server)


@_decide.register
def _(event: events.ServerEnds, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is not None:
        yield from admission.release_server(daemon, server, event.unaccepted)


@_decide.register
def _(event: events.ServerUnknown, daemon: Daemon) -> Iterator[Instruction]:
    yield from shutdown.server_unknown(daemon, event)


@_decide.register
def _(event: events.NamespaceOpened, daemon: Daemon) -> Iterator[Instruction]:
    yield from sockets.handle_opened(daemon, event)


@_decide.register
def _(event: events.NamespaceLost, daemon: Daemon) -> Iterator[Instruction]:
    yield from sockets.handle_lost(daemon, event)


@_decide.register
def _(event: events.TimerEnded, daemon: Daemon) -> Iterator[Instruction]:
    key = event.timer.key
    match event.timer.kind:
        case TimerKind.START:
            yield from admission.start_timed_out(daemon, key)
        case TimerKind.LEAVE:
            yield from admission.leave_timed_out(daemon, key)
        case TimerKind.SILENCE:
            yield from admission.silence_timed_out(daemon, key)
        case TimerKind.RETURN:
            yield from takeover.takeover_timed_out(daemon, key)
        case TimerKind.PLACES:
            yield from admission.forget_reservations(daemon)
        case TimerKind.RETRY:
            failed_starts.end_pause(daemon, key)
            yield from admission.serve_queue(daemon)
        case TimerKind.TRIAL:
            failed_starts.end_trial(daemon, key)
        case TimerKind.FAILURE_EXPIRY:
            failed_starts.expire_failure(daemon, key)
        case TimerKind.TURN:
            yield from admission.close_to_new_clients(daemon, key)
        case TimerKind.TERMINATION:
            yield from terminations.end_with_timeout(daemon, key)
        case TimerKind.FORCE:
            yield from shutdown.force(daemon)


@_decide.register
def _(event: events.StopSignal, daemon: Daemon) -> Iterator[Instruction]:
    yield from shutdown.stop_by_signal(daemon)


def _next_after(daemon: Daemon, gone: Server) -> Iterator[Instruction]:
    yield from named_servers.process_gone(daemon, gone.name)
    yield from admission.serve_queue(daemon)
    yield from shutdown.advance(daemon)
