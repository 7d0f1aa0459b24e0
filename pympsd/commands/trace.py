"""The module ``trace``, in both protocols: a file of what daemon, servers, clients and devices do, with times."""

from __future__ import annotations

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3 import view
from pympsd.commands.v3.grammar import Syntax
from pympsd.commands.v3.registry import command
from pympsd.state_machine.instructions import StartTrace, StopTrace
from pympsd.state_machine.state.daemon import Daemon


@command(Syntax("trace start", required=("file",), takes_rest=True), in_both=True)
def start(daemon: Daemon, caller: Caller, file: str) -> Decision:
    """Write a trace to a new file, in the JSON format that Chrome's about:tracing and Perfetto draw: when servers and
    clients come and go, who waits, and every kernel, copy and fill of pympsd's own servers. The rest of the
    line is the file.
    """
    view.check_daemon_owner(daemon, caller, "trace start")
    return Decision(None, (StartTrace(caller.session, file),))


@command(Syntax("trace stop"), in_both=True)
def stop(daemon: Daemon, caller: Caller) -> Decision:
    """Complete the trace. What other processes had not written within 5 s is missing."""
    view.check_daemon_owner(daemon, caller, "trace stop")
    return Decision(None, (StopTrace(caller.session),))
