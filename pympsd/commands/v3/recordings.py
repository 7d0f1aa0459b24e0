"""The modules ``trace`` and ``log``, in both protocols: the trace of a running daemon, and its log files.

A trace has what the daemon, its servers, their clients and the devices do, with times.
"""

from __future__ import annotations

from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.grammar.registry import BOTH, Decision, command
from pympsd.commands.grammar.syntax import Syntax
from pympsd.state_machine.instructions import ReopenLogs, StartTrace, StopTrace
from pympsd.state_machine.state.daemon import Daemon


@command(Syntax("trace start", required=("file",), takes_rest=True), protocols=BOTH, owner_only=True)
def start(daemon: Daemon, caller: Caller, file: str) -> Decision:
    """Write a trace to a new file, in the JSON format that Chrome's about:tracing and Perfetto draw: when servers and
    clients start and end, who waits, and every kernel, copy and fill of pympsd's own servers. The rest of the line is
    the path of the file.
    """
    return Decision(None, (StartTrace(caller.session, file),))


@command(Syntax("trace stop"), protocols=BOTH, owner_only=True)
def stop(daemon: Daemon, caller: Caller) -> Decision:
    """Complete the trace. It lacks what other processes do not write within 5 s."""
    return Decision(None, (StopTrace(caller.session),))


@command(Syntax("log reopen"), protocols=BOTH, owner_only=True)
def reopen(daemon: Daemon, caller: Caller) -> Decision:
    """Open control.log and server.log again by their names after they were moved, as SIGHUP does. If a log cannot be
    opened, the command is refused with the reason, and the other logs are opened.
    """
    return Decision(None, (ReopenLogs(caller.session),))
