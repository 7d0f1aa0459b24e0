"""Check the privileges of callers: the settings that they may change, and the state that they may see.

Every user may query the daemon. Root and the user who started the daemon may change its settings (recorded); in
protocol 3 a server's owner may also change that server. A query gets the state from `restrict_view`, without other
users' parts, so that commands do not have to handle tenants themselves.
"""

from typing import Any, Final

from attrs import evolve, frozen

from pympsd.commands.grammar.syntax import CommandRefused
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon, Defaults, Usage
from pympsd.state_machine.state.drains import Drain, DrainTarget, TargetKind
from pympsd.state_machine.state.named_server import NamedServer, Namespace
from pympsd.vocabulary.answers import refusal
from pympsd.vocabulary.identities import DEFAULT, NO_USER, server_of_user
from pympsd.vocabulary.limit_table import PERCENTAGE
from pympsd.vocabulary.limits import ClientPriority, ThreadPercentage
from pympsd.vocabulary.rules import Origin

_OWNERS: Final = "Control deamon settings can only be modified by the user who started it or by the root user."
INSUFFICIENT: Final = f"Insufficient privileges for UID {{uid}}. {_OWNERS}"
IN_CONTAINER: Final = f"Insufficient privileges in a container, whose users are not known here. {_OWNERS}"
ASK_FROM: Final = "Ask from the daemon's own PID and user namespace, or start it with --trust-containers."


@frozen
class Caller:
    """Who gave a command: the operator's session, and the uid that the kernel reports for its process.

    ``server`` and ``namespace`` name the socket that the caller used.
    """

    session: int
    uid: int
    at: float = 0.0
    """The time of the command, in seconds since 1970."""
    server: str = ""
    """The server to whose socket the caller connected; empty for the daemon's own."""
    namespace: str = ""
    process: Origin | None = None
    """The properties of the process that the line names; None if the line does not name an existing process."""


def is_owner(daemon: Daemon, caller: Caller) -> bool:
    """Return whether the caller is root or the user who started the daemon."""
    return caller.uid in (0, daemon.options.uid)


def check_settings_owner(daemon: Daemon, caller: Caller) -> None:
    """Check that the caller may change settings in protocol 2.

    Raises:
        CommandRefused: The caller is neither root nor the daemon's user. The text is the driver's (recorded).
    """
    if is_owner(daemon, caller):
        return
    if caller.uid == NO_USER:
        hint = ASK_FROM if daemon.options.protocol == 3 else ""
        raise CommandRefused(answer=refusal(IN_CONTAINER, diagnostic=hint))
    raise CommandRefused(answer=refusal(INSUFFICIENT.format(uid=caller.uid)))


def check_owner(caller: Caller, server: NamedServer, command: str) -> None:
    """Check that the caller may change a named server.

    Raises:
        CommandRefused: The caller is neither root nor the server's owner.
    """
    if caller.uid not in (0, server.uid):
        raise insufficient(caller, command, "server")


def check_daemon_owner(daemon: Daemon, caller: Caller, command: str) -> None:
    """Check that the caller may change the daemon.

    Raises:
        CommandRefused: The caller is neither root nor the user who started the daemon.
    """
    if not is_owner(daemon, caller):
        raise insufficient(caller, command, "daemon")


def insufficient(caller: Caller, command: str, owned: str) -> CommandRefused:
    """Return the refusal of a command whose caller does not own the changed server or daemon.

    Args:
        caller: Who gave the command.
        command: The command's name.
        owned: What the caller must own: ``server`` or ``daemon``.
    """
    if caller.uid != NO_USER:
        return CommandRefused(
            f"Insufficient privileges for UID {caller.uid}. '{command.upper()}' requires {owned} owner."
        )
    sentence = f"Insufficient privileges in a container. '{command.upper()}' requires {owned} owner."
    return CommandRefused(sentence, ASK_FROM)


def sees_all(daemon: Daemon, caller: Caller) -> bool:
    """Return whether a caller's queries show more than the namespace whose socket it used.

    The result is True at the daemon's own socket, for root, for the server's owner, and if the daemon allows open
    queries.
    """
    server = daemon.named_servers.get(caller.server)
    owns_server = caller.uid == 0 or (server is not None and caller.uid == server.uid)
    return daemon.options.open_queries or not caller.server or owns_server


def restrict_view(daemon: Daemon, caller: Caller) -> Daemon:
    """Return the state as a caller may see it.

    A caller at the socket of a namespace who is neither root nor the server's owner sees only that namespace: a
    tenant in a container must not see the limits and programs of others.
    """
    if sees_all(daemon, caller):
        return daemon
    server = daemon.named_servers.get(caller.server)
    # Tenants must not see the text of the file or its differences.
    hidden: dict[str, Any] = {
        "process_limits": evolve(daemon.process_limits, rules=None, cgroups={}),
        "usage": Usage(daemon.usage.shares),
        "configuration": evolve(daemon.configuration, text=None, plan=None),
        "drains": evolve(daemon.drains, by_target=_drains_of(daemon, caller)),
    }
    if server is None:
        return evolve(daemon, named_servers=evolve(daemon.named_servers, by_name={}), servers={}, **hidden)
    name = caller.namespace or DEFAULT
    own = {key: namespace for key, namespace in server.namespaces.items() if key == name}
    process = daemon.server_named(server.name)
    processes = {}
    if process is not None:
        clients = {id_: client for id_, client in process.clients.items() if namespace_of(client) == name}
        processes[process.id] = evolve(process, clients=clients)
    servers = evolve(daemon.named_servers, by_name={server.name: evolve(server, namespaces=own)})
    return evolve(daemon, named_servers=servers, servers=processes, **hidden)


def _drains_of(daemon: Daemon, caller: Caller) -> dict[DrainTarget, Drain]:
    """Return the drains of everything, and of the server and the namespace to whose socket a caller connected."""
    own = {
        DrainTarget(TargetKind.ALL),
        DrainTarget(TargetKind.SERVER, caller.server),
        DrainTarget(TargetKind.NAMESPACE, f"{caller.server}/{caller.namespace or DEFAULT}"),
    }
    return {drain.target: evolve(drain, clients={}) for drain in daemon.drains if drain.target in own}


def limits_seen_by(daemon: Daemon, caller: Caller) -> Daemon:
    """Return the state as a caller may see it, with limits where the queries of protocol 2 read them.

    A server gets the limits of its namespace ``default``. The daemon's defaults become the limits of the user's own
    server, if that server exists. A server whose namespace ``default`` the caller may not see is left out.
    """
    if daemon.options.protocol != 3:
        return daemon
    daemon = restrict_view(daemon, caller)
    servers = {}
    for server_id, server in daemon.servers.items():
        default = _default(daemon, server.name)
        if default is not None:
            memory, percentage = dict(default.limits.pinned_memory or {}), min(_percentages(daemon, server.name))
            servers[server_id] = evolve(server, thread_percentage=percentage, memory_limits=memory)
    name = server_of_user(daemon.options.find_serving_uid(caller.uid))
    default = _default(daemon, name)
    if default is None:
        return evolve(daemon, servers=servers)
    priority, memory = default.limits.client_priority or ClientPriority(), dict(default.limits.pinned_memory or {})
    return evolve(daemon, servers=servers, defaults=Defaults(min(_percentages(daemon, name)), priority, memory))


def check_one_percentage(daemon: Daemon, server: str, command: str) -> None:
    """Check that the same percentage applies to the next clients of a server on all its devices.

    Raises:
        CommandRefused: The server's devices have different percentages, which protocol 2 cannot print.
    """
    if len(_percentages(daemon, server)) > 1:
        question = f"namespace get {DEFAULT} {server} {PERCENTAGE.name}"
        raise CommandRefused(
            f"'{command}' prints one percentage, and the devices of server '{server}' differ: {question}"
        )


def _percentages(daemon: Daemon, server: str) -> set[ThreadPercentage]:
    """Return the percentages of a server's devices in its namespace ``default``: a single one if they do
    not differ.
    """
    named_server, default = daemon.named_servers.get(server), _default(daemon, server)
    if named_server is None or default is None:
        return set()
    return set(PERCENTAGE.entries(default.limits, named_server.ordinals(len(daemon.devices))))


def namespace_of(client: Client) -> str:
    """Return the name of a client's namespace; ``default`` if the client named none."""
    return client.process.namespace or DEFAULT


def _default(daemon: Daemon, server: str) -> Namespace | None:
    """Return the namespace ``default`` of a server, if both exist and may be seen."""
    named_server = daemon.named_servers.get(server)
    return named_server.namespaces.get(DEFAULT) if named_server is not None else None
