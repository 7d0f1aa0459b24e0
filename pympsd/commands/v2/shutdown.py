"""quit and shutdown_server: the end of the daemon, or of one server."""

from __future__ import annotations

from collections.abc import Sequence

from pympsd.commands.arguments import flag, read_loose_pid
from pympsd.commands.numbers import leading_integer
from pympsd.commands.privileges import is_owner, may_change_settings
from pympsd.commands.registry import Caller, Decision, command
from pympsd.state_machine.admission import drop_start_request
from pympsd.state_machine.shutdown import begin_quit, shut_down_server
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, lines, refusal


def _timeout(words: Sequence[str]) -> int | Answer | None:
    """Read the seconds of ``-t SECONDS``; refuse all else, with which driver 580 quits: it cannot be undone."""
    if not words:
        return None
    seconds = leading_integer(words[1]) if len(words) == 2 and words[0] == "-t" and _is_number(words[1]) else None
    if seconds is None:
        given = " ".join(words)[:80]
        return refusal(
            diagnostic=f"quit: {given!r} is not understood, and the daemon goes on; quit waits for the clients, "
            "quit -t SECONDS uses force after a whole number of seconds"
        )
    return seconds


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal()


@command("quit", asks_servers=True, options=("-t",), timeout=_timeout)
def quit_daemon(daemon: Daemon, caller: Caller, timeout: int | None) -> Decision:
    """Stop the servers when their clients have gone, then the daemon; with -t SECONDS by force after that time."""
    if not is_owner(daemon, caller):
        return Decision(refusal("Not enough privilege to execute quit command"))
    return Decision(None, tuple(begin_quit(daemon, caller.session, timeout)))


@command("shutdown_server", asks_servers=True, options=("-f",), pid=read_loose_pid, forced=flag("-f"))
def shutdown_server(daemon: Daemon, caller: Caller, pid: int, forced: bool) -> Decision:
    """Stop the server PID when its clients have gone; with -f at once, their work lost."""
    if (denied := may_change_settings(daemon, caller)) is not None:
        return Decision(denied)
    server = daemon.server_by_pid(pid)
    if server is None:
        return Decision(refusal(f"Server {pid} not found"))
    drop_start_request(daemon, server)
    return Decision(lines(), tuple(shut_down_server(server, forced=forced)))
