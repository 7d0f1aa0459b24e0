"""The module ``log``, in both protocols: the daemon's log files."""

from __future__ import annotations

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3 import view
from pympsd.commands.v3.grammar import Syntax
from pympsd.commands.v3.registry import command
from pympsd.state_machine.instructions import ReopenLogs
from pympsd.state_machine.state.daemon import Daemon


@command(Syntax("log reopen"), in_both=True)
def reopen(daemon: Daemon, caller: Caller) -> Decision:
    """Open control.log and server.log again by their names, after they were moved, as SIGHUP does. It is refused,
    with the reasons, if that fails of some of them; the others are opened.
    """
    view.check_daemon_owner(daemon, caller, "log reopen")
    return Decision(None, (ReopenLogs(caller.session),))
