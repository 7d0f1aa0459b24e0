"""Define the module ``namespace``: create, delete, list and set namespaces and their limits."""

from typing import Any, Final

from pympsd.commands.grammar.privileges import Caller, check_owner
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import CommandRefused, Syntax
from pympsd.commands.v3 import view
from pympsd.commands.v3.options import FORMAT, LIMITS, LIMITS_SHOWN, SERVER
from pympsd.commands.v3.output import (
    Cell,
    Format,
    Row,
    cell_text,
    columns,
    confirm,
    data,
    find_field,
    is_json,
    listing,
    render_heading,
)
from pympsd.state_machine.instructions import Reply
from pympsd.state_machine.named_servers import NotPossible, clients, status
from pympsd.state_machine.named_servers import server as server_named
from pympsd.state_machine.namespaces import create_namespace, delete_namespace
from pympsd.state_machine.namespaces import set_namespace as set_limits
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace
from pympsd.vocabulary.answers import refusal
from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.limit_table import OWN, VENDORS, WITH_MAXIMUM, Limits

COLUMNS: Final = columns(
    *("name", "server", "server-status", *(row.name for row in VENDORS), "pipe-directory"), heading=render_heading
)
FIELDS: Final = tuple(column.name for column in COLUMNS)


@command(
    Syntax(
        "namespace create",
        required=("name",),
        options={"server": SERVER, **LIMITS},
        needed=("server",),
        flags=("clients-only",),
    )
)
def create(
    daemon: Daemon, caller: Caller, name: str, server: str, clients_only: bool = False, **limits: Any
) -> Decision:
    """Create a namespace of a server, with its pipe directory. It does not inherit limits from another namespace.
    With --clients-only its socket takes no commands, so that a container that has the socket need not be trusted.
    """
    owner = server_named(daemon, server)
    check_owner(caller, owner, "namespace create")
    change = view.limits_given(daemon, owner, Limits(), limits)
    compound = daemon.compound_commands.begin(caller.session)
    part = daemon.compound_commands.add_part(compound)
    notes = (
        _note_uninherited(daemon, owner, name, change),
        view.note_missing_partition(owner, name, change.sm_partition),
    )
    compound.notes += filter(None, notes)
    try:
        instructions = create_namespace(daemon, server, name, change, part, clients_only, caller.uid)
        return Decision(None, tuple(instructions))
    except NotPossible as error:
        compound.notes.clear()
        return Decision(None, (Reply(part, refusal(str(error))),))


@command(
    Syntax("namespace delete", required=("name",), options={"server": SERVER}, needed=("server",), flags=("force",)),
    asks_servers=True,
)
def delete(daemon: Daemon, caller: Caller, name: str, server: str, force: bool = False) -> Decision:
    """Delete a namespace of a server. It is refused while the namespace has clients; --force terminates them."""
    check_owner(caller, server_named(daemon, server), "namespace delete")
    return Decision(None, tuple(delete_namespace(daemon, server, name, force, caller.session)))


@command(Syntax("namespace list", optional=("name",), options={"server": SERVER, "format": FORMAT}))
def list_namespaces(
    daemon: Daemon,
    caller: Caller,
    name: str | None = None,
    server: str | None = None,
    format: Format | None = None,
) -> Decision:
    """List the namespaces of all servers, or of one, with the limits of new clients."""
    servers = view.servers(daemon) if server is None else [server_named(daemon, server)]
    rows = [
        _row(daemon, owner, owner.namespaces[namespace], format)
        for owner in servers
        for namespace in sorted(owner.namespaces, key=lambda namespace: (namespace != DEFAULT, namespace))
        if name in (None, namespace)
    ]
    if name is not None and not rows:
        raise CommandRefused(f"No namespace named '{name}'" + (f" on server '{server}'." if server else "."))
    return listing(COLUMNS, rows, format)


@command(
    Syntax(
        "namespace get",
        required=("name", "server", "field"),
        options={"server": SERVER},
        instead={"server": "server"},
    )
)
def get(daemon: Daemon, caller: Caller, name: str, server: str, field: str) -> Decision:
    """Print one field of a namespace, as namespace list shows it, or one of its other limits."""
    owner = server_named(daemon, server)
    namespace = view.namespace_named(owner, name)
    fields = dict(zip(FIELDS, _row(daemon, owner, namespace, None).cells, strict=True))
    fields |= {row.name: view.limit_cell(daemon, owner, row, namespace.limits) for row in OWN}
    return data(cell_text(fields[find_field("namespace", sorted(fields), field)]))


@command(Syntax("namespace set", required=("name",), options={"server": SERVER, **LIMITS}, needed=("server",)))
def set_namespace(daemon: Daemon, caller: Caller, name: str, server: str, **limits: Any) -> Decision:
    """Set the limits of new clients of a namespace, for each client on each device: a percentage of the SMs from 1 to
    100 (50; 0=50,1=25), a priority, an amount of memory (4G; 0=4G,1=8G; unlimited). --total-memory-limit limits all
    its clients together. --sm-partition names the static SM partition that its clients get, whatever they request.
    """
    if not limits:
        raise CommandRefused(f"'namespace set' needs at least one of {LIMITS_SHOWN}.")
    owner = server_named(daemon, server)
    check_owner(caller, owner, "namespace set")
    change = view.limits_given(daemon, owner, view.namespace_named(owner, name).limits, limits)
    exception = view.note_kept_limits(len(clients(daemon, server, name)))
    missing = view.note_missing_partition(owner, name, change.sm_partition)
    return Decision(confirm(exception, missing), tuple(set_limits(daemon, server, name, change)))


def _note_uninherited(daemon: Daemon, server: NamedServer, name: str, limits: Limits) -> str:
    """Return a note on limits of the server's namespace ``default`` that a new namespace does not inherit."""
    default, indices = server.namespaces[DEFAULT].limits, server.ordinals(len(daemon.devices))
    is_capped = any(row.differs(default, Limits(), indices) for row in WITH_MAXIMUM)
    if not is_capped or limits != Limits():
        return ""
    has = "100.00 % and unlimited memory until namespace set"
    return f"'{name}' does not inherit the limits of '{DEFAULT}': it has {has}."


def _row(daemon: Daemon, server: NamedServer, namespace: Namespace, format: Format | None) -> Row:
    cells: tuple[Cell, ...] = (
        namespace.name,
        server.name,
        str(status(daemon, server)),
        *(view.limit_cell(daemon, server, row, namespace.limits) for row in VENDORS),
        f"{daemon.options.pipe_directory}/{server.name}/{namespace.name}",
    )
    if not is_json(format):
        return Row(cells)
    limits = view.limit_values(daemon, server, OWN, namespace.limits)
    return Row(cells, {"clients_only": namespace.clients_only, "reason": namespace.unopened or None, **limits})
