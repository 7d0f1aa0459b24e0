"""Define the module ``server``: create, delete, list and set servers and their limits."""

from typing import Any, Final

from pympsd.commands.grammar.privileges import Caller, check_owner, insufficient
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import CommandRefused, Option, Syntax
from pympsd.commands.v2.records import find_drain_of_server, target_text
from pympsd.commands.v3 import output, view
from pympsd.commands.v3.options import FORMAT, LIMITS, MAXIMA, UID
from pympsd.state_machine import shares
from pympsd.state_machine.named_servers import (
    check_share,
    clients,
    create_server,
    delete_server,
    server,
    set_user,
    status,
)
from pympsd.state_machine.named_servers import set_server as set_for_all
from pympsd.state_machine.namespaces import set_namespace
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer
from pympsd.vocabulary.identities import DEFAULT, NO_USER, server_of_user
from pympsd.vocabulary.limit_table import VENDORS, WITH_MAXIMUM, Limits
from pympsd.vocabulary.texts import CONTAINMENTS, moment, read_boolean, read_containment

COLUMNS: Final = output.columns(
    *("name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids"),
    heading=output.render_heading,
)
FIELDS: Final = tuple(column.name for column in COLUMNS)
NO_DOMAINS: Final = "Device {} ({}) has one locality domain: nothing to enable."
FOR_ALL: Final = {**MAXIMA, "contain": Option(read_containment, "|".join(CONTAINMENTS))}
LOCALITY: Final = {"locality-domains": Option(read_boolean, "true|false")}


@command(
    Syntax(
        "server create",
        optional=("name",),
        options={"uid": UID, "allowed-devices": Option(str, "<devices>"), **LOCALITY},
    )
)
def create(
    daemon: Daemon,
    caller: Caller,
    name: str | None = None,
    uid: int | None = None,
    allowed_devices: str | None = None,
    locality_domains: bool = False,
) -> Decision:
    """Create a server and start it. Without a name it is uid_<n>, the server for the clients of user n that connect
    to the daemon's own pipe directory. Without --uid the server is the caller's.
    """
    if name is None and uid is None:
        raise CommandRefused("'server create' needs <name> or --uid=<n>.")
    owner = caller.uid if uid is None else uid
    _check_may_be(daemon, caller, owner, "server create")
    devices = None
    if allowed_devices is not None:
        devices = tuple(view.device_named(daemon, word.strip()) for word in allowed_devices.split(","))
    if locality_domains:
        raise _refuse_domains(daemon, devices or (0,))
    server_name = server_of_user(owner) if name is None else name
    return Decision(
        None, tuple(create_server(daemon, server_name, owner, devices, session=caller.session, asker=caller.uid))
    )


@command(Syntax("server delete", required=("name",), flags=("force",)), asks_servers=True)
def delete(daemon: Daemon, caller: Caller, name: str, force: bool = False) -> Decision:
    """Delete a server. It is refused while the server has clients; --force terminates them."""
    check_owner(caller, server(daemon, name), "server delete")
    return Decision(None, tuple(delete_server(daemon, name, force, caller.session)))


@command(Syntax("server list", optional=("name",), options={"format": FORMAT}), asks_servers=True)
def list_servers(
    daemon: Daemon, caller: Caller, name: str | None = None, format: output.Format | None = None
) -> Decision:
    """List the servers, or one of them."""
    servers = view.servers(daemon) if name is None else [server(daemon, name)]
    return output.listing(COLUMNS, [_row(daemon, owned, format) for owned in servers], format)


@command(Syntax("server get", required=("name", "field")), asks_servers=True)
def get(daemon: Daemon, caller: Caller, name: str, field: str) -> Decision:
    """Print one field of a server, as server list shows it."""
    row = _row(daemon, server(daemon, name), None)
    return output.data(output.cell_text(row.cells[FIELDS.index(output.find_field("server", sorted(FIELDS), field))]))


@command(Syntax("server set", required=("name",), options={"uid": UID, **LIMITS, **FOR_ALL, **LOCALITY}))
def set_server(daemon: Daemon, caller: Caller, name: str, **settings: Any) -> Decision:
    """Set the limits of a server's namespace default, as namespace set does; its other namespaces do not get them.
    The --max- options limit new clients of all its namespaces. With --contain=partition a fault affects only its
    static SM partition on a GPU too, and the partitions take turns there. --uid changes the user that the server runs
    as; it is refused while the server has clients, and restarts the server.
    """
    if not settings:
        options = ", ".join(f"--{option}" for option in sorted(("uid", *LIMITS, *FOR_ALL, *LOCALITY)))
        raise CommandRefused(f"'server set' needs at least one of {options}.")
    owner = server(daemon, name)
    check_owner(caller, owner, "server set")
    if settings.pop("locality_domains", False):
        raise _refuse_domains(daemon, owner.ordinals(len(daemon.devices)))
    uid = settings.pop("uid", owner.uid)
    if uid != owner.uid:
        _check_may_be(daemon, caller, uid, "server set")
    contains = settings.pop("contain", None)
    if contains and not daemon.options.has_own_servers:
        raise CommandRefused("--contain=partition is not possible with the driver's own server of this release.")
    if contains and not owner.contains_partitions:
        check_share(shares.problem(daemon, caller.uid, shares.cost_of_containment(len(owner.partitions))))
    maximum = view.limits_given(daemon, owner, owner.maximum, settings, "max_")
    change = view.limits_given(daemon, owner, owner.namespaces[DEFAULT].limits, settings)
    count = len(clients(daemon, name, None if maximum != Limits() else DEFAULT))
    exception = view.note_kept_limits(count) if settings else ""
    missing = view.note_missing_partition(owner, DEFAULT, change.sm_partition)
    restart = tuple(set_user(daemon, name, uid, caller.session)) if uid != owner.uid else ()
    limits_set = *set_namespace(daemon, name, DEFAULT, change), *set_for_all(daemon, name, maximum, contains)
    return Decision(None if restart else output.confirm(exception, missing), (*limits_set, *restart))


def _refuse_domains(daemon: Daemon, ordinals: tuple[int, ...]) -> CommandRefused:
    """Return the refusal of locality domains for a server of some devices."""
    return CommandRefused(NO_DOMAINS.format(ordinals[0], daemon.devices[ordinals[0]].name))


def _check_may_be(daemon: Daemon, caller: Caller, uid: int, command_name: str) -> None:
    """Raise CommandRefused unless a caller may have a server of a user."""
    if caller.uid == NO_USER or caller.uid not in (0, daemon.options.uid, uid):
        raise insufficient(caller, command_name, "server")


def _row(daemon: Daemon, owner: NamedServer, format: output.Format | None) -> output.Row:
    """Return the row of a server."""
    process = daemon.server_named(owner.name)
    present = clients(daemon, owner.name)
    contexts = sorted(context.id for client in present for context in client.contexts.values())
    cells = (
        owner.name,
        owner.uid,
        (process and process.pid) or None,
        str(status(daemon, owner)),
        f"{daemon.options.pipe_directory}/{owner.name}",
        tuple(daemon.devices[ordinal].uuid for ordinal in owner.ordinals(len(daemon.devices))),
        " ".join(map(str, contexts)) or None,
    )
    if not output.is_json(format):
        return output.Row(cells)
    default = owner.namespaces.get(DEFAULT)
    extra = {
        "default_limits": default
        and {row.name: view.limit_cell(daemon, owner, row, default.limits).value for row in VENDORS},
        **view.limit_values(daemon, owner, WITH_MAXIMUM, owner.maximum, "max_"),
        "contain": CONTAINMENTS[owner.contains_partitions],
        "clients": len(present),
        "reason": owner.unreachable or owner.failed or None,
        "locality_domains": False,
        "created": moment(owner.created),
        "source": str(owner.source),
        "draining": target_text(find_drain_of_server(daemon, owner.name)),
    }
    return output.Row(cells, extra)
