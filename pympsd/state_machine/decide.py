"""The one door of the mind: an event in, instructions out, in order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

import pympsd.commands.v2  # noqa: F401 - registers the commands
from pympsd.commands.answers import Answer, lines, refusal, termination_answer
from pympsd.commands.registry import Asker, answer_line
from pympsd.commands.v2.termination import TERMINATION_TIMER
from pympsd.state_machine import admission, adoption, debuggers, events, failed_starts, shutdown, turns
from pympsd.state_machine.daemon_state import Context, Daemon, Server, Termination
from pympsd.state_machine.instructions import CancelTimer, Instruction, Log, Reply, SetTimer
from pympsd.state_machine.server_lifecycle import Phase
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.statuses import ServerStatus


def handle(daemon: Daemon, event: events.Event) -> list[Instruction]:
    """Change the state by an event; return what is to be done, in order."""
    decided = list(_decide(event, daemon))
    return [*decided, *turns.forget_timers(daemon), *debuggers.let_go(daemon)]


@singledispatch
def _decide(event: object, daemon: Daemon) -> Iterator[Instruction]:
    raise TypeError(f"{type(event).__name__} is no event of the daemon")


@_decide.register
def _(event: events.OperatorLine, daemon: Daemon) -> Iterator[Instruction]:
    shown = event.line.partition(b"\0")[0].decode("utf-8", "surrogateescape").strip(" \t\r\n")
    # A line end inside would be a line of the log's own.
    yield Log("command", {"line": shown.replace("\r", " ").replace("\n", " ")})
    decision = answer_line(daemon, Asker(event.session, event.uid), event.line)
    if decision.answer is not None:
        yield from _answer(event.session, decision.answer)
    yield from decision.instructions


@_decide.register
def _(event: events.ClientKnocked, daemon: Daemon) -> Iterator[Instruction]:
    yield from admission.knock(daemon, event)


@_decide.register
def _(event: events.ClientLeftTheLine, daemon: Daemon) -> Iterator[Instruction]:
    admission.leave_the_line(daemon, event.client)
    yield from admission.take_turns(daemon)


@_decide.register
def _(event: events.ServerSpawned, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers[event.server]
    server.pid = event.pid
    server.become(Phase.INITIALIZING)
    yield Log("server_starting", {"server": event.pid, "uid": server.uid})
    for session in server.starters:
        yield Reply(session, lines())
    server.starters.clear()
    yield SetTimer(f"{admission.START_TIMER} {server.serial}", admission.START_PATIENCE)
    yield from shutdown.advance(daemon)


@_decide.register
def _(event: events.SpawnFailed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.pop(event.server)
    yield Log("server_spawn_failed", {"uid": server.uid, "reason": event.reason})
    reason = f"the MPS server of user {server.uid} could not be started: {event.reason}"
    for session in server.starters:
        yield Reply(session, refusal(diagnostic=f"start_server: {reason}"))
    yield from failed_starts.refuse_user(daemon, server.uid, reason)
    yield from _next_after(daemon)


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
        yield from failed_starts.begin_probation(server)
    server.become(target)
    yield from admission.take_turns(daemon)


@_decide.register
def _(event: events.ContextPushed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    client = server.clients.get(event.client) if server else None
    if server is None or client is None:
        return
    client.contexts[event.serial] = Context(event.serial, event.number, event.device)
    failed_starts.has_served(daemon, server)
    yield Log("client_server_exists", {"pid": client.pid, "uid": client.uid})


@_decide.register
def _(event: events.ContextGonePushed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    client = server.clients.get(event.client) if server else None
    if client is not None:
        client.contexts.pop(event.serial, None)
    yield from ()


@_decide.register
def _(event: events.ClientGonePushed, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is not None:
        yield from admission.client_left(daemon, server, event.client)


@_decide.register
def _(event: events.ClientEnded, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is not None:
        yield from admission.client_ended(daemon, server, event.client)


@_decide.register
def _(event: events.TerminationAnswered, daemon: Daemon) -> Iterator[Instruction]:
    asked = daemon.terminations.get(event.token)
    if asked is not None and asked.server == event.server:
        yield CancelTimer(f"{TERMINATION_TIMER} {event.token}")
        yield from _end_termination(daemon, event.token, termination_answer(event.code))


@_decide.register
def _(event: events.ServerExited, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.pop(event.server, None)
    if server is None:
        return
    if event.status is None:
        yield Log("server_ended", {"server": server.pid})
    else:
        yield Log("server_exited", {"server": server.pid, "status": event.status})
    yield from _end_terminations(daemon, server)
    death = failed_starts.Death(event.status, event.last_words)
    if server.phase is Phase.INITIALIZING:
        yield from failed_starts.died(daemon, server, death)
    else:
        yield from failed_starts.died_unserving(daemon, server, death)
    server.become(Phase.GONE)
    yield from _next_after(daemon)


@_decide.register
def _(event: events.StartRefused, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.get(event.server)
    if server is not None:
        server.start_refusal = event.reason
    yield from ()


@_decide.register
def _(event: events.PredecessorDied, daemon: Daemon) -> Iterator[Instruction]:
    yield from adoption.inherit(daemon, event)


@_decide.register
def _(event: events.ServerReturned, daemon: Daemon) -> Iterator[Instruction]:
    yield from adoption.returned(daemon, event)


@_decide.register
def _(event: events.ServerLeftAlone, daemon: Daemon) -> Iterator[Instruction]:
    server = daemon.servers.pop(event.server, None)
    if server is not None:
        yield Log("server_left_alone", {"server": server.pid, "reason": event.reason})
        yield from _end_terminations(daemon, server)
        yield from _next_after(daemon)


def _end_terminations(daemon: Daemon, server: Server) -> Iterator[Instruction]:
    """The server that worked on them is gone."""
    for token in [token for token, asked in daemon.terminations.items() if asked.server == server.serial]:
        yield CancelTimer(f"{TERMINATION_TIMER} {token}")
        yield from _end_termination(daemon, token, termination_answer(Result.ERROR_MPS_RPC_FAILURE))


def _end_termination(daemon: Daemon, token: int, answer: Answer) -> Iterator[Instruction]:
    asked = daemon.terminations.pop(token, None)
    if asked is not None:
        yield from _answer(asked.session, answer)


def _termination_overdue(asked: Termination) -> Answer:
    code = Result.ERROR_LAUNCH_TIMEOUT
    why = f"the server did not answer within {asked.patience:g} s; shutdown_server -f ends it with its clients"
    return refusal(f"{code}", diagnostic=f"terminate_client: {why}")


@_decide.register
def _(event: events.TimerEnded, daemon: Daemon) -> Iterator[Instruction]:
    timer, _, serial = event.token.partition(" ")
    if timer == shutdown.FORCE_TIMER:
        yield from shutdown.force(daemon)
    elif timer == turns.TURN_TIMER:
        yield from admission.lose_patience(daemon, int(serial))
    elif timer == admission.SILENCE_TIMER:
        yield from admission.silent_too_long(daemon, int(serial))
    elif timer == adoption.RETURN_TIMER:
        yield from adoption.overdue(daemon, int(serial))
    elif timer == failed_starts.RETRY_TIMER:
        failed_starts.pause_ended(daemon, int(serial))
        yield from admission.take_turns(daemon)
    elif timer == failed_starts.PROBATION_TIMER:
        failed_starts.probation_ended(daemon, int(serial))
    elif timer == failed_starts.MEMORY_TIMER:
        failed_starts.memory_ended(daemon, int(serial))
    elif timer == TERMINATION_TIMER:
        asked = daemon.terminations.get(int(serial))
        if asked is not None:
            yield from _end_termination(daemon, int(serial), _termination_overdue(asked))
    else:
        yield from admission.overdue(daemon, timer, int(serial))


@_decide.register
def _(event: events.StopSignal, daemon: Daemon) -> Iterator[Instruction]:
    yield from shutdown.stop_by_signal(daemon)


def _answer(session: int, answer: Answer) -> Iterator[Instruction]:
    for part in answer.parts:
        if part.logged:
            yield Log("answer", {"text": part.text})
    yield Reply(session, answer)


def _next_after(daemon: Daemon) -> Iterator[Instruction]:
    yield from admission.take_turns(daemon)
    yield from shutdown.advance(daemon)
