"""The module ``rules``, in both protocols: list limits by rule, and examine which rule matches a process."""

from typing import Final

from pympsd.commands.grammar.privileges import Caller, insufficient, namespace_of
from pympsd.commands.grammar.registry import BOTH, Decision, command
from pympsd.commands.grammar.syntax import CommandRefused, Option, Syntax
from pympsd.commands.v3.options import FORMAT
from pympsd.commands.v3.output import Cell, Format, Row, Shown, columns, listing, render_heading
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.identities import DEFAULT, server_of_user
from pympsd.vocabulary.limit_table import VENDORS, LimitRow, Limits
from pympsd.vocabulary.rules import Origin, Rule, Unknown

COLUMNS: Final = columns(*("rule", "name", "conditions"), *(row.name for row in VENDORS), heading=render_heading)
TESTED: Final = columns("rule", "name", "fits", "reason")


@command(Syntax("rules list", options={"format": FORMAT}), protocols=BOTH)
def list_rules(daemon: Daemon, caller: Caller, format: Format | None = None) -> Decision:
    """List the limits by rule, in the order in which the daemon tries them. The first rule that matches a client's
    process lowers the limits of its namespace, or in protocol 2 of its server. Rules come from a configuration file.
    """
    return listing(COLUMNS, [_row(daemon, rule) for rule in daemon.process_limits.rules or ()], format)


@command(
    Syntax(
        "rules test",
        required=("pid",),
        options={"namespace": Option(str, "<server>/<namespace>"), "format": FORMAT},
    ),
    protocols=BOTH,
    asks_process=True,
)
def examine(
    daemon: Daemon, caller: Caller, pid: str, namespace: str | None = None, format: Format | None = None
) -> Decision:
    """Print for each rule, up to the first that matches, whether it matches a process, and why. The process need not
    be a client yet; --namespace names the namespace to assume instead of that of its user's server.
    """
    origin = caller.process
    if origin is None:
        raise CommandRefused(f"No process with PID {pid}.")
    if caller.uid not in (0, daemon.options.uid, origin.uid) or caller.server:
        raise insufficient(caller, "rules test", "the process's")
    place = namespace or _place(daemon, pid, origin)
    rows = []
    for rule in daemon.process_limits.rules or ():
        try:
            fits, reason = rule.examine(origin, place)
        except Unknown as error:
            raise CommandRefused(
                f"{str(error)[0].upper()}{str(error)[1:]}: as a client, this process would be refused."
            ) from None
        rows.append(Row((rule.number, rule.name or None, fits, reason)))
        if fits:
            break
    return listing(TESTED, rows, format)


def _place(daemon: Daemon, pid: str, origin: Origin) -> str:
    """Return the server and namespace of a client's process; for any other process, those that it would get by
    default.
    """
    for process in daemon.servers.values():
        for client in process.clients.values():
            if str(client.pid) == pid:
                return f"{process.name}/{namespace_of(client)}"
    return f"{server_of_user(daemon.options.find_serving_uid(origin.uid))}/{DEFAULT}"


def _row(daemon: Daemon, rule: Rule) -> Row:
    conditions = {condition.kind: condition.values for condition in rule.conditions}
    cells: tuple[Cell, ...] = (
        rule.number,
        rule.name or None,
        Shown(" ".join(map(str, rule.conditions)) or "-", conditions),
        *(_limit(daemon, row, rule.limits) for row in VENDORS),
    )
    return Row(cells)


def _limit(daemon: Daemon, row: LimitRow, limits: Limits) -> Cell:
    value, indices = row.of(limits), range(len(daemon.devices))
    if value is None:
        return None
    if not row.is_by_device or row.is_for_all:
        return Shown(row.text(limits, indices), row.json(limits, indices))
    return Shown(row.text(limits, indices), {str(index): row.number(entry) for index, entry in value.items()})
