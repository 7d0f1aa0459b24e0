"""Commands that list, start and stop servers, end the work of their clients, and end the daemon."""

from typing import Any

from pympsd.commands.grammar.privileges import INSUFFICIENT, Caller, is_owner
from pympsd.commands.grammar.recorded import OPTIONAL_PID, PID, read_leading_integer, read_pid, read_user_id
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import Argument, CommandRefused, Flag, Option, Syntax
from pympsd.commands.v2.records import find_server, server_record, target_text
from pympsd.state_machine import terminations
from pympsd.state_machine.admission import drop_start_request, request_server
from pympsd.state_machine.holding import find_drain, start_problem
from pympsd.state_machine.instructions import SpawnServer
from pympsd.state_machine.shutdown import begin_quit, shut_down_server
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.refusals import RefusedClient
from pympsd.vocabulary.answers import lines, refusal
from pympsd.vocabulary.identities import NO_USER
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.texts import moment


@command(Syntax("get_server_list"))
def get_server_list(daemon: Daemon, caller: Caller) -> Decision:
    """List the PIDs of all servers, one to a line."""
    servers = daemon.list_running_servers()
    return Decision(
        lines(*(str(server.pid) for server in servers)), data=[server_record(daemon, server) for server in servers]
    )


@command(Syntax("get_server_status", required=(OPTIONAL_PID,)), asks_servers=True)
def get_server_status(daemon: Daemon, caller: Caller, pid: int) -> Decision:
    """Print the status of the server PID: INITIALIZING, ACTIVE or FAULT."""
    server = find_server(daemon, pid)
    return Decision(lines(server.status), data=server_record(daemon, server))


@command(Syntax("get_waiting_list"))
def get_waiting_list(daemon: Daemon, caller: Caller) -> Decision:
    """List who waits for a server, first come first: the PID and the user of a client, or 0 and the user whose server
    an operator requested.
    """
    waiting = [] if caller.server else daemon.queue.all_entries
    holding = {entry.ticket: find_drain(daemon, entry) for entry in daemon.queue.held}
    data = [
        {
            "pid": entry.process.peer.pid if entry.process else 0,
            "uid": entry.uid,
            "server": entry.server,
            "command": entry.process.command if entry.process else "",
            "held_by": target_text(holding.get(entry.ticket)),
        }
        for entry in waiting
    ]
    return Decision(lines(*(f"{entry['pid']} {entry['uid']}" for entry in data)), data=data)


@command(Syntax("get_refusal_list", optional=(Argument("run", placeholder="RUN"),)))
def get_refusal_list(daemon: Daemon, caller: Caller, run: str) -> Decision:
    """List the last refusals of the caller's clients (root: of all), the oldest first: PID, user, the driver function
    that failed, its result and the reason. With RUN, an id that pympsd-run gives its programs, those of its programs.
    """

    def is_seen(refusal: RefusedClient) -> bool:
        # The user of a caller in a container is unknown. Only a run's user has its id, so the id is sufficient.
        is_own = is_owner(daemon, caller) or caller.uid == refusal.uid or (caller.uid == NO_USER and bool(run))
        return is_own and run in ("", refusal.run)

    data = [_refusal_record(refusal) for refusal in daemon.refusals if is_seen(refusal)]
    texts = ("{pid} {uid} {call}: {result}: {reason}".format(**record) for record in data)
    return Decision(lines(*texts), data=data)


def _refusal_record(refusal: RefusedClient) -> dict[str, Any]:
    return {
        "pid": refusal.pid,
        "uid": refusal.uid,
        "time": moment(refusal.at),
        "call": refusal.call,
        "result": f"CUDA_{Result(refusal.code).name}",
        "code": refusal.code,
        "reason": refusal.reason,
    }


@command(
    Syntax("start_server", options={"uid": Option(read_user_id, "UID", "-uid")}, needed=("uid",)),
    in_protocol_3="server create --uid={1}",
    owner_only=True,
)
def start_server(daemon: Daemon, caller: Caller, uid: int) -> Decision:
    """Start a server for the user UID, or queue the request until enough servers of other users have ended."""
    if daemon.options.uid not in (0, uid):
        # Recorded: nothing is printed for root.
        texts = () if caller.uid == 0 else (INSUFFICIENT.format(uid=caller.uid),)
        reason = f"start_server: this daemon is run by user {daemon.options.uid} and can serve only that user"
        raise CommandRefused(answer=refusal(*texts, diagnostic=reason))
    if daemon.quitting is not None:
        raise CommandRefused("start_server: the daemon is quitting")
    if problem := start_problem(daemon):
        raise CommandRefused(problem)
    instructions = tuple(request_server(daemon, uid))
    server_ids = [instruction.server for instruction in instructions if isinstance(instruction, SpawnServer)]
    if not server_ids:
        return Decision(lines(), instructions)
    # Answered when the process has started, because the next command is often get_server_list.
    daemon.servers[server_ids[0]].starters.append(caller.session)
    return Decision(None, instructions)


def _read_seconds(word: str) -> int:
    """Return a whole number of seconds. Driver 580 quits without waiting if the word is not a number."""
    seconds = read_leading_integer(word) if word.isascii() and word.isdecimal() else None
    if seconds is None:
        raise CommandRefused(f"{word!r} is not a whole number of seconds")
    return seconds


@command(
    Syntax("quit", options={"timeout": Option(_read_seconds, "SECONDS", "-t")}),
    asks_servers=True,
    refuses_unknown=True,
)
def quit_daemon(daemon: Daemon, caller: Caller, timeout: int | None) -> Decision:
    """End the servers when their clients have ended, then the daemon; with -t SECONDS, by force after that time."""
    if not is_owner(daemon, caller):
        return Decision(refusal("Not enough privilege to execute quit command"))
    return Decision(None, tuple(begin_quit(daemon, caller.session, timeout)))


@command(
    Syntax("shutdown_server", required=(PID,), flags=(Flag("forced", "-f"),)), asks_servers=True, owner_only=True
)
def shutdown_server(daemon: Daemon, caller: Caller, pid: int, forced: bool) -> Decision:
    """End the server PID when its clients have ended; with -f, immediately: the work of its clients is lost."""
    server = find_server(daemon, pid)
    drop_start_request(daemon, server)
    return Decision(lines(), tuple(shut_down_server(server, forced=forced)))


@command(
    Syntax(
        "terminate_client",
        required=(Argument("pid", read_pid, "SERVER-PID"), Argument("client", read_pid, "CLIENT-PID")),
    ),
    owner_only=True,
)
def terminate_client(daemon: Daemon, caller: Caller, pid: int, client: int) -> Decision:
    """End all contexts of the client process CLIENT-PID on the server SERVER-PID. Prints 0, or an error number: 702
    if a kernel still runs after 10 s and the device cannot stop it (see --terminate-by-reset).
    """
    server = daemon.server_by_pid(pid)
    if server is None:
        return Decision(refusal(f"Server {pid} not found", f"Server {pid} not found!", "1"))
    unseen = sum(not other.pid for other in server.clients.values())
    if unseen > 1 and not client:
        why = f"{unseen} clients have PIDs that are not visible here and are shown as 0: none can be ended alone"
        return Decision(refusal(f"{Result.ERROR_INVALID_CONTEXT}", diagnostic=f"terminate_client: {why}"))
    return Decision(None, tuple(terminations.begin(daemon, caller.session, server, client)))
