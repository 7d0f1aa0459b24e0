"""Drains: hold the new clients of a target, let its running clients finish, and end the rest after a time limit.

The problem: before a restart, an upgrade of the driver or the end of a job an operator needs a part of the machine to
become empty without losing work. Waiting alone never ends, because new clients come; shutting down loses work.

A *target* is a client process, a server, a namespace, a cgroup (with those below it), a user, a device, or all. A
drain of it has two halves:

- Held: as long as the drain is in force, new clients of the target wait (`holding`), or are refused with a sentence
  that names the drain (``--new-clients=refuse``). Clients that wait in the queue already are treated in the same way.
  A process that is a client already, and connects once more for another context, is not a new client.
- Ended: the running clients finish. When ``--timeout`` is over, those left are terminated, one after the other, in
  the order in which they came (``--then=terminate``), through `terminations`, and get no context any more; or nothing
  is terminated, and the drain has failed (``--then=fail``). Without ``--timeout`` they are waited for.

::

    drain --> draining --no clients remain-------------------------> drained ------+
                 |                                                     ^          +--> undrain
                 +--timeout--> terminating, one after the other -------+          |
                 |                  +--some cannot be terminated--> not drained --+
                 +--timeout, --then=fail--------------------------> not drained --+

All four states hold new clients; only `undrain` of the same target ends a drain. A drain of one client ends with it,
because there is nothing to hold any more.

`advance` is called after every event and derives what is to be done from the state alone, as `admission.serve_queue`
does: no handler contains code for drains.

- *Several drains.* A second drain of a target replaces the options of the first, and both operators get the same
  answer. Drains of other targets may overlap: a client is held while one of them covers it, and a client that one has
  terminated has ended for all. A part of a target cannot be undrained.
- *Devices.* A client runs on a device while it has a context there; a new client is held if it can see the device. A
  client that was connected before, and makes its first context there later, is not held: it is shown as running.
- *Release.* ``--all --release`` ends each server as soon as it has no clients left (by force, if its remaining
  clients are terminated or could not be), and starts none: nothing holds the driver's module, and it can be replaced.
- *Takeover.* Drains are a part of the state file, with their running clients. The next daemon, after kill -9 or
  ``--replace``, continues them; a time limit begins again, a termination under way is repeated. Servers that have not
  returned yet may have clients, so nothing is decided before. A daemon that quits leaves no drain behind.
- *Quit.* A quit refuses the held clients as it does all that wait. Drains continue during it, and end clients.
- *Operators.* An operator whose connection breaks gets no answer; the drain continues, and the same command joins it.

Invariants: an operator is answered once, when no clients remain (status 0), when the drain has failed or is undrained
(status 1: what is left is in the answer); each client's end is reported once; a drain has one termination at a time;
no client is in ``clients`` and ``terminated`` of a drain.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pympsd.state_machine import instructions as do
from pympsd.state_machine import queueing, terminations
from pympsd.state_machine.admission import serve_queue
from pympsd.state_machine.holding import find_drain
from pympsd.state_machine.shutdown import shut_down_server
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.drains import Drain, DrainTarget, RunningClient, TargetKind, Waiter
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.answers import Answer, AnswerPart
from pympsd.vocabulary.results import Result

MAX_LISTED: Final = 16
"""The maximum number of remaining clients that an answer in words lists; an answer in JSON lists all of them."""
_UNSEEN: Final = (
    "the client's PID is not visible here, and its server has other such clients: end the client's process where "
    "it runs"
)


def begin(
    daemon: Daemon,
    waiter: Waiter,
    target: DrainTarget,
    *,
    at: float,
    refuses: bool = False,
    timeout: float | None = None,
    terminates: bool = True,
    releases: bool = False,
    clients: Iterable[int] = (),
) -> Iterator[do.Instruction]:
    """Drain a target, or change the options of its drain.

    The waiter is answered when no clients remain, or when the drain has failed. ``at``: seconds since 1970.
    ``clients``: the ids of the target's clients, if the target is a client process. The other arguments are those of
    `Drain`.
    """
    drain = daemon.drains.by_target.get(target)
    if drain is None:
        drain = daemon.drains.by_target[target] = Drain(target, daemon.drains.ids.take(), since=at)
        drain.clients = dict.fromkeys(clients, RunningClient(0))
    drain.refuses, drain.timeout, drain.terminates, drain.releases = refuses, timeout, terminates, releases
    drain.is_over, drain.is_expired = False, timeout == 0
    drain.failures.clear()
    drain.waiters.append(waiter)
    yield do.Working(waiter.session)
    yield from _set_timer(drain)
    yield from _note_clients(daemon, drain)
    yield from _sort_queue(daemon)
    waiting = _count_held(daemon, drain)
    yield do.Log("drain_started", {"target": str(target), "clients": len(drain.clients), "waiting": waiting})
    running = _count(len(drain.clients), "client is running", "clients are running")
    text = f"Draining {target}: {running}, {_count(waiting, 'client is waiting', 'clients are waiting')}."
    yield from _notify(
        drain, text, {"event": "begun", "clients": [_record(client) for client in drain.clients.values()]}
    )
    yield from serve_queue(daemon)


def end(daemon: Daemon, drains: Iterable[Drain]) -> Iterator[do.Instruction]:
    """End drains: serve the clients that they hold, unless another one holds them."""
    for drain in drains:
        del daemon.drains.by_target[drain.target]
        yield do.CancelTimer(do.Timer(do.TimerKind.DRAIN, drain.id))
        yield do.Log("drain_ended", {"target": str(drain.target)})
        yield from _answer(daemon, drain, "was undrained before it was drained", is_refused=True)
    yield from _sort_queue(daemon)
    yield from serve_queue(daemon)


def expire(daemon: Daemon, drain_id: int) -> Iterator[do.Instruction]:
    """End the time limit of a drain."""
    for drain in daemon.drains:
        if drain.id == drain_id and not drain.is_over:
            drain.is_expired = True
            count = len(drain.clients)
            yield do.Log(
                "drain_expired", {"target": str(drain.target), "seconds": drain.timeout or 0, "count": count}
            )
            running = _count(count, "client is still running", "clients are still running")
            yield from _notify(drain, f"After {drain.timeout or 0:g} s {running}.", {"event": "timeout"})


def restore(daemon: Daemon, drains: Iterable[Drain]) -> Iterator[do.Instruction]:
    """Continue the drains of an earlier daemon; their time limits begin again."""
    for drain in drains:
        drain.id = daemon.drains.ids.take()
        daemon.drains.by_target[drain.target] = drain
        yield do.Log("drain_resumed", {"target": str(drain.target)})
        yield from _set_timer(drain)


def advance(daemon: Daemon) -> Iterator[do.Instruction]:
    """Continue all drains after an event: note whose clients have ended, terminate the next, answer operators."""
    for drain in daemon.drains:
        yield from _note_termination(daemon, drain)
    daemon.terminations.results.clear()
    for drain in daemon.drains:
        yield from _note_clients(daemon, drain)
        # A server that has not reported to this daemon yet may have clients.
        if not any(server.pending for server in daemon.servers.values()):
            yield from _advance(daemon, drain)


def find_running(daemon: Daemon, pid: int) -> list[tuple[Server, Client]]:
    """Return the clients with a PID, and their servers."""
    return [
        (server, client)
        for server in daemon.servers.values()
        for client in server.clients.values()
        if pid and client.pid == pid
    ]


def count_held(daemon: Daemon) -> dict[DrainTarget, int]:
    """Return the number of clients that each drain holds; a client that several hold counts for the first."""
    return {drain.target: _count_held(daemon, drain) for drain in daemon.drains}


def _advance(daemon: Daemon, drain: Drain) -> Iterator[do.Instruction]:
    if drain.releases:
        yield from _end_servers(daemon, drain)
    if not drain.is_over and not drain.clients and not (drain.releases and daemon.servers):
        yield do.Log("drain_done", {"target": str(drain.target)})
        yield from _finish(daemon, drain, "")
    if drain.is_over:
        if drain.target.kind is TargetKind.CLIENT and not (drain.clients or drain.terminated):
            del daemon.drains.by_target[drain.target]
            yield do.Log("drain_ended", {"target": str(drain.target)})
            yield from _sort_queue(daemon)
            yield from serve_queue(daemon)
    elif drain.is_expired and not drain.token:
        yield from _continue_after_timeout(daemon, drain)


def _continue_after_timeout(daemon: Daemon, drain: Drain) -> Iterator[do.Instruction]:
    """Terminate the next client, or finish the drain as failed if no client remains to be terminated."""
    busy = {client for other in daemon.drains for client in other.terminating}
    remaining = [client for client in drain.clients if client not in drain.failures]
    if drain.terminates and remaining:
        client = next((client for client in remaining if client not in busy), None)
        if client is not None:
            yield from _terminate(daemon, drain, client)
    elif not (drain.terminates and (drain.releases or busy & drain.clients.keys())):
        yield do.Log("drain_failed", {"target": str(drain.target), "count": len(drain.clients)})
        nothing = "" if drain.terminates else "; nothing was terminated"
        yield from _finish(daemon, drain, f"was not drained within {drain.timeout or 0:g} s{nothing}")


def _terminate(daemon: Daemon, drain: Drain, client: int) -> Iterator[do.Instruction]:
    """Terminate a client, and the other clients of its process on the same server."""
    server = daemon.servers[drain.clients[client].server_id]
    pid = server.clients[client].pid
    if not pid and sum(not other.pid for other in server.clients.values()) > 1:
        yield from _report_failure(drain, client, Result.ERROR_NOT_SUPPORTED, _UNSEEN)
        yield from _continue_after_timeout(daemon, drain)
        return
    together = tuple(id_ for id_ in drain.clients if id_ in server.clients and server.clients[id_].pid == pid)
    drain.terminating = together
    instructions = list(terminations.begin(daemon, 0, server, pid, evicted=together, is_drain=True))
    drain.token = next(request.token for request in instructions if isinstance(request, do.TerminateClient))
    yield from instructions


def _note_termination(daemon: Daemon, drain: Drain) -> Iterator[do.Instruction]:
    """Note the result of a drain's termination, if it has ended."""
    if not drain.token or drain.token in daemon.terminations.pending:
        return
    code = daemon.terminations.results.pop(drain.token, Result.ERROR_LAUNCH_TIMEOUT)
    clients, drain.token, drain.terminating = drain.terminating, 0, ()
    for client in clients:
        if code in terminations.OVER:
            for other in daemon.drains:
                if (running := other.clients.pop(client, None)) is not None:
                    other.terminated.add(client)
                    yield from _report_end(other, running, "terminated")
        elif client in drain.clients:
            why = terminations.CAUSES.get(code, f"CUresult {code}")
            yield from _report_failure(drain, client, code, why)


def _note_clients(daemon: Daemon, drain: Drain) -> Iterator[do.Instruction]:
    """Note which clients of a drain's target are still running, and report those that have gone."""
    running = {
        client.id: RunningClient(client.pid, client.process.peer.uid, server.name, server.id)
        for server in daemon.servers.values()
        for client in server.clients.values()
        if _concerns(daemon, drain, server, client)
    }
    if not any(server.pending for server in daemon.servers.values()):
        drain.terminated &= running.keys()
        for client in [client for client in drain.clients if client not in running]:
            gone = drain.clients.pop(client)
            drain.failures.pop(client, None)
            yield from _report_end(drain, gone, "finished" if gone.server_id in daemon.servers else "server ended")
    # A client that an earlier drain has terminated counts as ended here too; otherwise this drain would wait for its
    # process.
    drain.terminated |= {client for client in running if daemon.drains.has_terminated(client)}
    for client in drain.terminated & drain.clients.keys():
        del drain.clients[client]
    drain.clients |= {client: record for client, record in running.items() if client not in drain.terminated}


def _concerns(daemon: Daemon, drain: Drain, server: Server, client: Client) -> bool:
    """Return whether a drain's target includes a client of a server."""
    is_known = client.id in drain.clients
    match drain.target.kind:
        case _ if client.id in drain.terminated:
            return True
        case TargetKind.CLIENT:
            return is_known
        case TargetKind.DEVICE:
            ordinals = {context.device for context in client.contexts.values()}
            uuids = {device.uuid for ordinal, device in enumerate(daemon.devices) if ordinal in ordinals}
            # The driver's server does not report the end of a context.
            return drain.target.name in uuids or (is_known and not daemon.options.has_own_servers)
        case _:
            # The cgroups of a client of an earlier daemon may be unknown to this one.
            return is_known or drain.target.has_process(client.process, server.name)


def _end_servers(daemon: Daemon, drain: Drain) -> Iterator[do.Instruction]:
    """End the servers that have no clients left to wait for."""
    may_force = drain.is_expired and drain.terminates and not drain.token
    for server in tuple(daemon.servers.values()):
        remaining = server.clients.keys() - drain.terminated
        if not remaining or (may_force and remaining <= drain.failures.keys()):
            yield from shut_down_server(server, forced=bool(server.clients))


def _sort_queue(daemon: Daemon) -> Iterator[do.Instruction]:
    """Hold the waiting entries that a drain covers, and return to the queue those that no drain covers any more."""
    held_tickets = {entry.ticket for entry in daemon.queue.held}
    drains = {entry.ticket: find_drain(daemon, entry) for entry in daemon.queue.all_entries}

    def is_changed(ticket: int) -> bool:
        drain = drains[ticket]
        return (drain is not None) != (ticket in held_tickets) or (drain is not None and drain.refuses)

    for entry in daemon.queue.take(lambda entry: is_changed(entry.ticket)):
        yield from queueing.join(daemon, entry)


def _set_timer(drain: Drain) -> Iterator[do.Instruction]:
    timer = do.Timer(do.TimerKind.DRAIN, drain.id)
    yield do.CancelTimer(timer)
    if drain.timeout and not drain.is_expired and not drain.is_over:
        yield do.SetTimer(timer, drain.timeout)


def _finish(daemon: Daemon, drain: Drain, problem: str) -> Iterator[do.Instruction]:
    drain.is_over = True
    yield do.CancelTimer(do.Timer(do.TimerKind.DRAIN, drain.id))
    yield from _answer(daemon, drain, problem, is_refused=bool(problem))


def _answer(daemon: Daemon, drain: Drain, problem: str, *, is_refused: bool) -> Iterator[do.Instruction]:
    """Answer the operators who wait for a drain."""
    remaining = list(drain.clients.values())
    record = {"event": "done", "drained": not is_refused, "left": [_record(client) for client in remaining]}
    answers = []
    for waiter in drain.waiters:
        if waiter.is_json:
            answer = Answer((AnswerPart(_json(drain, record), logged=False),), refused=is_refused)
        elif is_refused:
            pids = ", ".join(str(client.pid) for client in remaining[:MAX_LISTED])
            more = f" and {len(remaining) - MAX_LISTED} more" if len(remaining) > MAX_LISTED else ""
            clients = f"; remaining clients: {pids}{more}" if remaining else ""
            treatment = "refused" if drain.refuses else "held"
            hint = f"new clients are {treatment} until 'undrain {drain.target}'" if drain.is_over else ""
            answer = Answer((AnswerPart(f"{drain.target} {problem}{clients}."),), hint, refused=True)
        else:
            answer = Answer((AnswerPart(f"Drained {drain.target}: no clients remain."),))
        answers.append(do.Reply(waiter.session, answer))
    drain.waiters.clear()
    if drain.releases and not is_refused:
        yield do.ReleaseDriver(tuple(answers))
        return
    for item in answers:
        yield from do.reply(item.session, item.answer)


def _report_end(drain: Drain, client: RunningClient, how: str) -> Iterator[do.Instruction]:
    yield do.Log(
        "drain_client_ended", {"target": str(drain.target), "pid": client.pid, "uid": client.uid, "how": how}
    )
    text = f"Client {client.pid} of user {client.uid} on server {client.server}: {how}."
    yield from _notify(drain, text, {"event": "ended", **_record(client), "how": how})


def _report_failure(drain: Drain, client: int, code: int, why: str) -> Iterator[do.Instruction]:
    drain.failures[client] = code
    running = drain.clients[client]
    how = f"not terminated: {why}"
    yield do.Log(
        "drain_client_ended", {"target": str(drain.target), "pid": running.pid, "uid": running.uid, "how": how}
    )
    text = f"Client {running.pid} of user {running.uid} on server {running.server}: {how}."
    record = {"event": "not terminated", **_record(running), "code": int(code), "reason": why}
    yield from _notify(drain, text, record)


def _notify(drain: Drain, text: str, record: Mapping[str, Any]) -> Iterator[do.Instruction]:
    for waiter in drain.waiters:
        yield do.Note(waiter.session, _json(drain, record) if waiter.is_json else text, is_output=True)


def _json(drain: Drain, record: Mapping[str, Any]) -> str:
    return json.dumps({"target": str(drain.target), **record})


def _record(client: RunningClient) -> dict[str, Any]:
    return {"pid": client.pid, "uid": client.uid, "server": client.server}


def _count_held(daemon: Daemon, drain: Drain) -> int:
    return sum(bool(entry.client) and find_drain(daemon, entry) is drain for entry in daemon.queue.held)


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number or 'no'} {singular if number == 1 else plural}"
