"""The module ``rules``, in both protocols: limits by rule, and which rule a process falls under."""

from __future__ import annotations

from typing import Final

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3 import view
from pympsd.commands.v3.grammar import Option, Refused, Syntax
from pympsd.commands.v3.options import FORMAT
from pympsd.commands.v3.output import Cell, Column, Format, Row, Shown
from pympsd.commands.v3.registry import command, listing
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.limits import PinnedMemory
from pympsd.vocabulary.namespaces import DEFAULT, server_of_user
from pympsd.vocabulary.rules import Origin, Rule, Unknown
from pympsd.vocabulary.texts import memory_limits_text, percentage_text

COLUMNS: Final = tuple(
    Column(name, name.upper().replace("-", " "))
    for name in (
        *("rule", "name", "conditions"),
        *("pinned-memory-limit", "active-thread-percentage", "client-priority"),
    )
)
TESTED: Final = tuple(Column(name, name.upper()) for name in ("rule", "name", "fits", "reason"))


@command(Syntax("rules list", options={"format": FORMAT}), in_both=True)
def list_rules(daemon: Daemon, caller: Caller, format: Format | None = None) -> Decision:
    """List the limits by rule, in the order in which they are tried: the first rule that a client's process fits
    lowers the limits of its namespace, or of its server in protocol 2. They come from a configuration file.
    """
    return listing(COLUMNS, [_row(daemon, rule) for rule in daemon.process_limits.rules or ()], format)


@command(
    Syntax(
        "rules test",
        required=("pid",),
        options={"namespace": Option(str, "<server>/<namespace>"), "format": FORMAT},
    ),
    in_both=True,
    asks_process=True,
)
def examine(
    daemon: Daemon, caller: Caller, pid: str, namespace: str | None = None, format: Format | None = None
) -> Decision:
    """Say of each rule, up to the first that fits, whether a process fits it, and why. The process need be no
    client yet; --namespace says where it would come, if not to its user's server.
    """
    origin = caller.process
    if origin is None:
        raise Refused(f"No process with PID {pid}.")
    if caller.uid not in (0, daemon.options.uid, origin.uid) or caller.server:
        raise view.insufficient(caller, "rules test", "the process's")
    place = namespace or _place(daemon, pid, origin)
    rows = []
    for rule in daemon.process_limits.rules or ():
        try:
            fits, reason = rule.examine(origin, place)
        except Unknown as error:
            raise Refused(f"{str(error)[0].upper()}{str(error)[1:]}: as a client it is refused.") from None
        rows.append(Row((rule.number, rule.name or None, fits, reason)))
        if fits:
            break
    return listing(TESTED, rows, format)


def _place(daemon: Daemon, pid: str, origin: Origin) -> str:
    """Return where a process is a client, or would be one if it named no server."""
    for process in daemon.servers.values():
        for client in process.clients.values():
            if str(client.pid) == pid:
                return f"{process.name}/{view.namespace_of(client)}"
    return f"{server_of_user(daemon.options.serving_uid(origin.uid))}/{DEFAULT}"


def _row(daemon: Daemon, rule: Rule) -> Row:
    limits = rule.limits
    conditions = {condition.kind: condition.values for condition in rule.conditions}
    percentage, priority = limits.thread_percentage, limits.client_priority
    cells = (
        rule.number,
        rule.name or None,
        Shown(" ".join(map(str, rule.conditions)) or "-", conditions),
        _memory(daemon, limits.pinned_memory),
        None if percentage is None else Shown(percentage_text(percentage), percentage.value),
        None if priority is None else priority.level,
    )
    return Row(cells)


def _memory(daemon: Daemon, limits: dict[int, PinnedMemory] | None) -> Cell:
    if limits is None:
        return None
    values = {str(ordinal): limit.value for ordinal, limit in limits.items()}
    return Shown(memory_limits_text(limits, range(len(daemon.devices))), values)
