"""Commands that list servers, show their status and start one."""

from __future__ import annotations

from pympsd.commands.arguments import A_PID, required_pid, user_id
from pympsd.commands.privileges import INSUFFICIENT, may_change_settings
from pympsd.commands.registry import Caller, Decision, command
from pympsd.commands.v2.records import server_record
from pympsd.state_machine.admission import request_server
from pympsd.state_machine.instructions import SpawnServer
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import lines, refusal


@command("get_server_list", takes="")
def get_server_list(daemon: Daemon, caller: Caller) -> Decision:
    """List the PIDs of all server instances, one a line."""
    servers = daemon.running_servers()
    return Decision(lines(*(str(each.pid) for each in servers)), data=[server_record(each) for each in servers])


@command("get_server_status", asks_servers=True, takes=A_PID, pid=required_pid)
def get_server_status(daemon: Daemon, caller: Caller, pid: int) -> Decision:
    """Print the status of the server PID: INITIALIZING, ACTIVE or FAULT."""
    server = daemon.server_by_pid(pid)
    if server is None:
        return Decision(refusal(f"Server {pid} not found"))
    return Decision(lines(server.status), data=server_record(server))


@command("get_waiting_list", takes="")
def get_waiting_list(daemon: Daemon, caller: Caller) -> Decision:
    """List who waits for a server, in their order: a client's PID and its user, or 0 and the user whose server an
    operator asked for.
    """
    waiting = [] if caller.server else daemon.queue.entries
    data = [
        {"pid": each.peer.pid if each.peer else 0, "uid": each.uid, "server": each.server, "command": each.command}
        for each in waiting
    ]
    return Decision(lines(*(f"{each['pid']} {each['uid']}" for each in data)), data=data)


@command("start_server", options=("-uid",), uid=user_id)
def start_server(daemon: Daemon, caller: Caller, uid: int) -> Decision:
    """Start a server for the user UID (start_server -uid UID), or queue that while others' leave no room."""
    refused = may_change_settings(daemon, caller)
    if refused is None and daemon.options.uid not in (0, uid):
        # Recorded: root gets no line.
        texts = () if caller.uid == 0 else (INSUFFICIENT.format(uid=caller.uid),)
        refused = refusal(
            *texts,
            diagnostic=f"start_server: this daemon is run by user {daemon.options.uid} and can serve only that user",
        )
    if refused is None and daemon.quitting is not None:
        refused = refusal(diagnostic="start_server: the daemon is quitting")
    if refused is not None:
        return Decision(refused)
    instructions = tuple(request_server(daemon, uid))
    started = [each.server for each in instructions if isinstance(each, SpawnServer)]
    if not started:
        return Decision(lines(), instructions)
    # Answered when the process has started: the next command is often get_server_list.
    daemon.servers[started[0]].starters.append(caller.session)
    return Decision(None, instructions)
