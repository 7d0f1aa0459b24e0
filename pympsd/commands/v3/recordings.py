"""The modules ``trace`` and ``log``, in both protocols: a trace of what daemon, servers, clients and devices do, with
times; and the daemon's log files.
"""

from __future__ import annotations

from pympsd.commands.grammar.privileges import Caller, check_daemon_owner
from pympsd.commands.grammar.registry import BOTH, Decision, command
from pympsd.commands.grammar.syntax import Syntax
from pympsd.state_machine.instructions import ReopenLogs, StartTrace, StopTrace
from pympsd.state_machine.state.daemon import Daemon


@command(Syntax("trace start", required=("file",), takes_rest=True), protocols=BOTH)
def start(daemon: Daemon, caller: Caller, file: str) -> Decision:
    """Write a trace to a new file, in the JSON format that Chrome's about:tracing and Perfetto draw: when servers and
    clients come and go, who waits, and every kernel, copy and fill of pympsd's own servers. The rest of the
    line is the file.
    """
    check_daemon_owner(daemon, caller, "trace start")
    return Decision(None, (StartTrace(caller.session, file),))


@command(Syntax("trace stop"), protocols=BOTH)
def stop(daemon: Daemon, caller: Caller) -> Decision:
    """Complete the trace. What other processes had not written within 5 s is missing."""
    check_daemon_owner(daemon, caller, "trace stop")
    return Decision(None, (StopTrace(caller.session),))


@command(Syntax("log reopen"), protocols=BOTH)
def reopen(daemon: Daemon, caller: Caller) -> Decision:
    """Open control.log and server.log again by their names, after they were moved, as SIGHUP does. It is refused,
    with the reasons, if that fails of some of them; the others are opened.
    """
    check_daemon_owner(daemon, caller, "log reopen")
    return Decision(None, (ReopenLogs(caller.session),))
