"""quit: the end of the daemon and its servers."""

from __future__ import annotations

from pympsd.commands.answers import refusal
from pympsd.commands.arguments import after_option
from pympsd.commands.privileges import is_owner
from pympsd.commands.registry import Asker, Decision, command
from pympsd.mind.daemon_state import Daemon
from pympsd.mind.shutdown import begin_quit


@command("quit", timeout=after_option("-t"))
def quit_daemon(daemon: Daemon, asker: Asker, timeout: int | None) -> Decision:
    """Stop the servers when their clients have gone, then the daemon; with -t SECONDS by force after so long."""
    if not is_owner(daemon, asker):
        return Decision(refusal("Not enough privilege to execute quit command"))
    return Decision(None, tuple(begin_quit(daemon, asker.session, timeout)))
