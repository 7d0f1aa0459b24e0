"""The state machine's entry point: turn an event into the instructions that follow from it.

The daemon is divided into an I/O layer (`pympsd.service`), which waits, opens and forks, and this state machine,
which decides. The machine is sans-I/O: `handle` changes the state by one event and returns a list of instructions;
it opens nothing, waits for nothing and reads no clock. So every sequence of events can be tested, in any order and
a thousand times per second, without processes (tests/support/daemon_machine.py draws them).

::

    session, timer, child --event--> handle(daemon, event) --instructions--> dispatcher --> socket, timer, child
                                          |
                                     daemon (state)

Rules that hold for every event:

- The dispatcher saves the state before it carries out the first instruction: what an operator or a client
  receives survives the daemon that sent it.
- Events about servers and clients that are gone are normal: they were in transit when the end was reported. The
  handlers in `OF_SERVERS` are not called without their server. An impossible move of a server's phase raises
  IllegalMove, and the server that caused it is killed.
- Instructions are carried out in their order, without waiting in between. Work that takes time comes back as an
  event.
- After each handler, drains continue, timers of entries that left the queue are cancelled, clients under a debugger
  are released if no other client is left, refusals and starts are counted, log lines get the server's name (protocol
  3), and the answers of parts are combined into those of compound commands.

Example: a client of user 500 connects, and no server is running. ClientConnected gives a Log line and SpawnServer;
the dispatcher forks, and ServerSpawned gives a START timer. The server reports that it is active (StatusPushed):
the queue is served, and AdmitClient makes the session between the client and the server.

A new kind of event: a record in `events`, its handler in `HANDLERS` or `OF_SERVERS`, and the module of its topic that
decides. A new timer: a kind, and its handler in `TIMED_OUT` or `TIMED_OUT_OF_SERVERS`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from attrs import evolve

from pympsd.state_machine import (
    admission,
    cgroups,
    debuggers,
    drains,
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
from pympsd.state_machine import instructions as do
from pympsd.state_machine.state.client import ReportedContext
from pympsd.state_machine.state.compound_commands import CompoundCommands
from pympsd.state_machine.state.daemon import Count, Daemon
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.answers import lines, refusal
from pympsd.vocabulary.results import ServerStatus

AnswerLine = Callable[[Daemon, events.OperatorLine], Iterator[do.Instruction]]
"""A function that carries out an operator's command line (pympsd.commands.operator_line)."""

Decision = Iterator[do.Instruction] | None
"""The instructions that follow from an event; None if the event only changes the state."""

ENDS = (events.ServerExited, events.ServerNotTakenOver)
"""The events that remove a server from the state."""


def handle(daemon: Daemon, event: events.Event, answer_line: AnswerLine) -> list[do.Instruction]:
    """Change the state by an event; return the resulting instructions, in order."""
    ended_server = daemon.servers.get(event.server) if isinstance(event, ENDS) else None
    if isinstance(event, events.ClientConnected):
        daemon.lifetime.now = event.process.since
    if isinstance(event, events.OperatorLine):
        daemon.lifetime.now = event.at
        gone_cgroups = () if event.cgroups is None else cgroups.drop_gone(daemon, event.cgroups)
        cgroups.note_origins(daemon, event.origins)
        decided = [*gone_cgroups, *answer_line(daemon, event)]
    else:
        decided = list(_decide(daemon, event) or ())
    decided += drains.advance(daemon)
    decided += [*queueing.cancel_stale_timers(daemon), *debuggers.release(daemon)]
    daemon.lifetime.counts[Count.REFUSED] += sum(isinstance(instruction, do.RefuseClient) for instruction in decided)
    daemon.lifetime.counts[Count.SERVERS] += sum(isinstance(instruction, do.SpawnServer) for instruction in decided)
    if daemon.options.policy.has_named_servers:
        decided = list(_name_servers(daemon, ended_server, decided))
    return list(combine_answers(daemon.compound_commands, decided))


def combine_answers(commands: CompoundCommands, decided: Iterable[do.Instruction]) -> Iterator[do.Instruction]:
    """Remove the answers of parts from instructions, and add those of the compound commands that are complete now."""
    for instruction in decided:
        if isinstance(instruction, do.Reply) and instruction.session < 0:
            commands.record(instruction.session, instruction.answer)
        elif isinstance(instruction, do.Working) and instruction.session < 0:
            yield from map(do.Working, commands.sessions_of(instruction.session))
        else:
            yield instruction
    for session, answer in commands.take_answers():
        yield from do.reply(session, answer)


def _name_servers(
    daemon: Daemon, ended_server: Server | None, decided: Iterable[do.Instruction]
) -> Iterator[do.Instruction]:
    """Add the server's name to each line that has a server's PID; `ended_server`: the server that this event
    removed.
    """
    for instruction in decided:
        if isinstance(instruction, do.Log) and "server" in instruction.fields and "place" not in instruction.fields:
            server = daemon.server_by_pid(int(instruction.fields["server"])) or ended_server
            place = {} if server is None else {"place": server.name}
            yield evolve(instruction, fields={**instruction.fields, **place})
        else:
            yield instruction


def _decide(daemon: Daemon, event: Any) -> Decision:
    if (of_server := OF_SERVERS.get(type(event))) is not None:
        server = daemon.servers.get(event.server)
        return of_server(daemon, server, event) if server is not None else None
    if (handler := HANDLERS.get(type(event))) is None:
        raise TypeError(f"{type(event).__name__} is not an event of the daemon")
    return handler(daemon, event)


def _connect(daemon: Daemon, event: events.ClientConnected) -> Iterator[do.Instruction]:
    cgroups.note_client(daemon, event)
    return admission.connect(daemon, event)


def _leave_queue(daemon: Daemon, event: events.WaitingClientLeft) -> Iterator[do.Instruction]:
    daemon.queue.remove(event.client)
    return admission.serve_queue(daemon)


def _server_spawned(daemon: Daemon, server: Server, event: events.ServerSpawned) -> Iterator[do.Instruction]:
    server.pid = event.pid
    server.become(Phase.INITIALIZING)
    yield do.Log("server_starting", {"server": event.pid, "uid": server.uid})
    for session in server.starters:
        yield do.Reply(session, lines())
    server.starters.clear()
    yield do.SetTimer(do.Timer(do.TimerKind.START, server.id), admission.START_TIMEOUT)
    yield from named_servers.process_started(daemon, server)
    yield from shutdown.advance(daemon)


def _spawn_failed(daemon: Daemon, server: Server, event: events.SpawnFailed) -> Iterator[do.Instruction]:
    del daemon.servers[server.id]
    where = daemon.place_of(server.name)
    yield do.Log("server_spawn_failed", {"uid": server.uid, "reason": event.reason, **where})
    reason = f"{server.title} could not be started: {event.reason}"
    for session in server.starters:
        yield do.Reply(session, refusal(diagnostic=f"start_server: {reason}"))
    yield from failed_starts.refuse_waiting(daemon, server.name, reason, event.reason)
    yield from _next_after(daemon, server)


def _change_status(daemon: Daemon, server: Server, status: str) -> Iterator[do.Instruction]:
    phases = {ServerStatus.ACTIVE: Phase.ACTIVE, ServerStatus.FAULT: Phase.FAULT}
    target = phases.get(ServerStatus(status))
    if target is None or server.phase in (Phase.LEAVING, target):
        return
    if server.phase is Phase.INITIALIZING:
        yield do.Log("server_ready", {"server": server.pid})
        yield from failed_starts.begin_trial(server)
        yield from registration.note_ready(daemon, server.name)
    server.become(target)
    daemon.lifetime.counts[Count.FAULTS] += target is Phase.FAULT
    yield from admission.serve_queue(daemon)


def _server_reported(daemon: Daemon, server: Server, event: events.ServerReported) -> Iterator[do.Instruction]:
    admission.update_contexts(daemon, server, event)
    return _change_status(daemon, server, event.status)


def _devices_reported(daemon: Daemon, event: events.DevicesReported) -> None:
    daemon.devices = daemon.devices or event.devices


def _client_joined(daemon: Daemon, server: Server, event: events.ClientJoined) -> None:
    if (client := server.clients.get(event.client)) is not None:
        client.limits = event.limits


def _context_made(daemon: Daemon, server: Server, event: events.ContextPushed) -> Iterator[do.Instruction]:
    client = server.clients.get(event.client)
    if client is None:
        return
    client.contexts[event.context] = ReportedContext(event.context, event.number, event.device)
    client.terminated = False
    cgroups.note_context(server, client, event.device)
    failed_starts.note_served(daemon, server)
    where = daemon.place_of(server.name, client.process.namespace)
    yield do.Log("client_server_exists", {"pid": client.pid, "uid": client.uid, **where})


def _context_gone(daemon: Daemon, server: Server, event: events.ContextGonePushed) -> None:
    if (client := server.clients.get(event.client)) is not None:
        client.contexts.pop(event.context, None)


def _memory_reported(daemon: Daemon, server: Server, event: events.MemoryPushed) -> None:
    server.use[event.device] = event.use
    for client in server.clients.values():
        client.memory[event.device] = event.use.clients.get(client.id, 0)


def _memory_read(daemon: Daemon, server: Server, event: events.ClientMemoryRead) -> None:
    for client in server.clients.values():
        client.memory = dict(event.clients.get(client.pid, {}))


def _client_gone(daemon: Daemon, server: Server, event: events.ClientGonePushed) -> Iterator[do.Instruction]:
    client = server.clients.get(event.client)
    yield from admission.remove_client(daemon, server, event.client)
    if client is not None and client.groups:
        cgroups.drop_groups(server, client)


def _termination_answered(daemon: Daemon, event: events.TerminationAnswered) -> Iterator[do.Instruction]:
    daemon.lifetime.counts[Count.TERMINATED] += event.code == 0
    return terminations.end_with_answer(daemon, event.server, event.token, event.code)


def _server_exited(daemon: Daemon, server: Server, event: events.ServerExited) -> Iterator[do.Instruction]:
    del daemon.servers[server.id]
    if event.status is None:
        yield do.Log("server_ended", {"server": server.pid})
    else:
        yield do.Log("server_exited", {"server": server.pid, "status": event.status})
    yield from terminations.end_with_server(daemon, server)
    death = failed_starts.Death(event.status, event.last_stderr_line)
    if server.phase is Phase.INITIALIZING:
        yield from failed_starts.handle_death_in_start(daemon, server, death)
    else:
        yield from failed_starts.handle_death_unserved(daemon, server, death)
    server.become(Phase.GONE)
    yield from _next_after(daemon, server)


def _start_refused(daemon: Daemon, server: Server, event: events.StartRefused) -> None:
    server.start_refusal = event.reason


def _server_taken_over(daemon: Daemon, server: Server, event: events.ServerTakenOver) -> Iterator[do.Instruction]:
    yield from takeover.adopt(daemon, server, event)
    if server.id in daemon.servers:
        yield from named_servers.process_started(daemon, server)


def _server_not_taken_over(
    daemon: Daemon, server: Server, event: events.ServerNotTakenOver
) -> Iterator[do.Instruction]:
    del daemon.servers[server.id]
    yield do.Log("server_not_taken_over", {"server": server.pid, "reason": event.reason})
    yield from terminations.end_with_server(daemon, server)
    yield from _next_after(daemon, server)


def _next_after(daemon: Daemon, gone: Server) -> Iterator[do.Instruction]:
    yield from named_servers.process_gone(daemon, gone.name)
    yield from admission.serve_queue(daemon)
    yield from shutdown.advance(daemon)


def _timer_ended(daemon: Daemon, event: events.TimerEnded) -> Decision:
    kind, key = event.timer.kind, event.timer.key
    if (of_server := TIMED_OUT_OF_SERVERS.get(kind)) is not None:
        server = daemon.servers.get(key)
        return of_server(daemon, server) if server is not None else None
    return TIMED_OUT[kind](daemon, key)


def _retry(daemon: Daemon, server_id: int) -> Iterator[do.Instruction]:
    failed_starts.end_pause(daemon, server_id)
    return admission.serve_queue(daemon)


OF_SERVERS: Final[dict[type, Callable[[Daemon, Server, Any], Decision]]] = {
    events.ServerSpawned: _server_spawned,
    events.SpawnFailed: _spawn_failed,
    events.StatusPushed: lambda daemon, server, event: _change_status(daemon, server, event.status),
    events.ServerReported: _server_reported,
    events.ClientJoined: _client_joined,
    events.ContextPushed: _context_made,
    events.ContextGonePushed: _context_gone,
    events.MemoryPushed: _memory_reported,
    events.ClientMemoryRead: _memory_read,
    events.ClientGonePushed: _client_gone,
    events.ClientEnded: lambda daemon, server, event: admission.note_client_end(daemon, server, event.client),
    events.ServerExited: _server_exited,
    events.StartRefused: _start_refused,
    events.ServerTakenOver: _server_taken_over,
    events.ServerNotTakenOver: _server_not_taken_over,
    events.ServerEnds: lambda daemon, server, event: admission.release_server(daemon, server, event.unaccepted),
}
"""The handlers of events about a server, which are ignored if the server is gone."""
HANDLERS: Final[dict[type, Callable[[Daemon, Any], Decision]]] = {
    events.ClientConnected: _connect,
    events.WaitingClientLeft: _leave_queue,
    events.DevicesReported: _devices_reported,
    events.TerminationAnswered: _termination_answered,
    events.PredecessorDied: takeover.take_over,
    events.ServerUnknown: shutdown.server_unknown,
    events.NamespaceOpened: sockets.handle_opened,
    events.NamespaceLost: sockets.handle_lost,
    events.TimerEnded: _timer_ended,
    events.StopSignal: lambda daemon, _: shutdown.stop_by_signal(daemon),
}
"""The handlers of all other events, except operators' lines."""
TIMED_OUT_OF_SERVERS: Final[dict[do.TimerKind, Callable[[Daemon, Server], Decision]]] = {
    do.TimerKind.START: admission.start_timed_out,
    do.TimerKind.LEAVE: admission.leave_timed_out,
    do.TimerKind.SILENCE: admission.silence_timed_out,
    do.TimerKind.RETURN: takeover.takeover_timed_out,
    do.TimerKind.TRIAL: failed_starts.end_trial,
}
"""The handlers of servers' timers, which are ignored if the server is gone."""
TIMED_OUT: Final[dict[do.TimerKind, Callable[[Daemon, int], Decision]]] = {
    do.TimerKind.PLACES: lambda daemon, _: admission.forget_reservations(daemon),
    do.TimerKind.RETRY: _retry,
    do.TimerKind.FAILURE_EXPIRY: failed_starts.expire_failure,
    do.TimerKind.TURN: admission.close_to_new_clients,
    do.TimerKind.TERMINATION: terminations.end_with_timeout,
    do.TimerKind.DRAIN: drains.expire,
    do.TimerKind.FORCE: lambda daemon, _: shutdown.force(daemon),
}
"""The handlers of all other timers; each gets the timer's key."""
