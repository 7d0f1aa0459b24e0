"""The commands ``drain``, ``undrain`` and ``get_drain_list``, in both protocols: pympsd's own, not the driver's.

The theory is in `pympsd.state_machine.drains`. This module reads targets and checks privileges. Root and the user who
started the daemon may drain every target. A server's user may also drain the server and its namespaces, and every
user may drain that user and the user's client processes.
"""

from collections.abc import Iterator
from typing import Any, Final

from pympsd.commands.grammar.privileges import Caller, insufficient, is_owner
from pympsd.commands.grammar.registry import BOTH, Decision, command
from pympsd.commands.grammar.syntax import Argument, CommandRefused, Option, Syntax
from pympsd.commands.v3 import view
from pympsd.commands.v3.options import UID, read_seconds_or_zero
from pympsd.state_machine import drains
from pympsd.state_machine.cgroups import cgroup_path
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.drains import Drain, DrainTarget, TargetKind, Waiter
from pympsd.vocabulary.answers import lines
from pympsd.vocabulary.identities import NO_USER, user_of_server
from pympsd.vocabulary.texts import BadText, moment

ACTIONS: Final = ("terminate", "fail")
TREATMENTS: Final = ("wait", "refuse")
CLIENT: Final = Argument("client", placeholder="PID")
TARGETS: Final = {
    "server": Option(str, "<server>"),
    "namespace": Option(str, "<server>/<namespace>"),
    "cgroup": Option(str, "<cgroup>"),
    "user": UID,
    "device": Option(str, "<device>"),
}
"""The options that name a target. --all is a flag instead, and a client process is named by its PID alone."""


def _read_action(text: str) -> bool:
    if text not in ACTIONS:
        raise BadText("terminate or fail,", text)
    return text == "terminate"


def _read_treatment(text: str) -> bool:
    if text not in TREATMENTS:
        raise BadText("wait or refuse,", text)
    return text == "refuse"


@command(
    Syntax(
        "drain",
        optional=(CLIENT,),
        options={
            **TARGETS,
            "timeout": Option(read_seconds_or_zero, "<seconds>"),
            "then": Option(_read_action, "|".join(ACTIONS)),
            "new-clients": Option(_read_treatment, "|".join(TREATMENTS)),
        },
        flags=("all", "release", "json"),
    ),
    protocols=BOTH,
    asks_servers=True,
    asks_origins=True,
    has_strict_words=True,
)
def drain(
    daemon: Daemon,
    caller: Caller,
    timeout: float | None = None,
    then: bool | None = None,
    new_clients: bool = False,
    release: bool = False,
    json: bool = False,
    **options: Any,
) -> Decision:
    """Let the running clients of a target finish, and hold its new clients until undrain: they wait, or are refused
    with --new-clients=refuse. The target is a client process (its PID), --server, --namespace, --cgroup (with those
    below it), --user, --device, or --all. After --timeout seconds the clients that are left are terminated, one after
    the other; with --then=fail the command fails, and nothing is terminated. --all --release ends all servers too and
    starts none, so that the driver can be replaced. Each client's end is reported, with --json as a line of JSON. The
    exit status is 0 if no clients remain. If the command is interrupted, the drain continues.
    """
    target, clients = _find_target(daemon, caller, "drain", options)
    if then is not None and timeout is None:
        raise CommandRefused("'drain' needs --timeout=<seconds> with --then.")
    if release and target.kind is not TargetKind.ALL:
        raise CommandRefused(
            "'drain' needs --all with --release: the driver is released when every server has ended."
        )
    instructions = drains.begin(
        daemon,
        Waiter(caller.session, json),
        target,
        at=caller.at,
        refuses=new_clients,
        timeout=timeout,
        terminates=then is not False,
        releases=release,
        clients=[client.id for client in clients],
    )
    return Decision(None, tuple(instructions))


@command(
    Syntax("undrain", optional=(CLIENT,), options=TARGETS, flags=("all",)), protocols=BOTH, has_strict_words=True
)
def undrain(daemon: Daemon, caller: Caller, **options: Any) -> Decision:
    """End the drain of a target, given as for drain, and serve the clients that it holds. Without a target, end all
    drains. Clients that a drain has terminated stay terminated. To undrain a part of a target is not possible.
    """
    if not options:
        drains_in_force = list(daemon.drains)
        for drain_in_force in drains_in_force:
            _check_may_drain(daemon, caller, "undrain", drain_in_force.target, [])
        return _end(daemon, drains_in_force)
    target = _find_target(daemon, caller, "undrain", options)[0]
    existing = daemon.drains.by_target.get(target)
    if existing is None:
        targets = ", ".join(str(drain.target) for drain in daemon.drains) or "none"
        raise CommandRefused(f"{target} is not being drained. Drains: {targets}.")
    return _end(daemon, [existing])


def _end(daemon: Daemon, ended: list[Drain]) -> Decision:
    before = len(daemon.queue.held)
    instructions = tuple(drains.end(daemon, ended))
    served = before - len(daemon.queue.held)
    texts = [f"No longer draining {existing.target}." for existing in ended] or ["Nothing is being drained."]
    if served:
        texts.append("1 held client is served now." if served == 1 else f"{served} held clients are served now.")
    return Decision(lines(*texts), instructions)


@command(Syntax("get_drain_list"), asks_servers=True)
def get_drain_list(daemon: Daemon, caller: Caller) -> Decision:
    """List what is being drained: the target, its state (draining, terminating, drained, not drained), the number of
    clients that still run, and of new clients that it holds.
    """
    held_counts = drains.count_held(daemon)
    data = [_record(existing, held_counts[existing.target]) for existing in daemon.drains]
    texts = (f"{row['target']} {row['state']}: {len(row['clients'])} running, {row['held']} held" for row in data)
    return Decision(lines(*texts), data=data)


def _record(existing: Drain, held_count: int) -> dict[str, Any]:
    return {
        "target": str(existing.target),
        "state": existing.state,
        "clients": [client.pid for client in existing.clients.values()],
        "held": held_count,
        "new_clients": TREATMENTS[existing.refuses],
        "timeout": existing.timeout,
        "then": ACTIONS[not existing.terminates],
        "release": existing.releases,
        "since": moment(existing.since),
    }


def _find_target(
    daemon: Daemon, caller: Caller, name: str, options: dict[str, Any]
) -> tuple[DrainTarget, list[Client]]:
    """Return the target that the words name, and the clients of a client process. Raise CommandRefused."""
    if options.keys() == {"server", "namespace"} and "/" not in options["namespace"]:
        options = {"namespace": f"{options['server']}/{options['namespace']}"}
    if len(options) != 1:
        allowed = ", ".join(("PID", *(f"--{option}" for option in TARGETS), "--all"))
        raise CommandRefused(f"'{name}' takes one target, not {len(options)}: {allowed}.")
    ((kind, text),) = options.items()
    clients: list[Client] = []
    target = DrainTarget(TargetKind(kind), "" if kind == "all" else str(text))
    match target.kind:
        case TargetKind.CLIENT:
            clients = _find_clients(daemon, name, target)
        case TargetKind.SERVER:
            target = DrainTarget(TargetKind.SERVER, _find_server(daemon, target.name))
        case TargetKind.NAMESPACE:
            target = _find_namespace(daemon, target.name)
        case TargetKind.CGROUP:
            target = DrainTarget(TargetKind.CGROUP, cgroup_path(target.name))
        case TargetKind.DEVICE:
            target = DrainTarget(TargetKind.DEVICE, daemon.devices[view.device_named(daemon, target.name)].uuid)
    _check_may_drain(daemon, caller, name, target, clients)
    return target, clients


def _find_clients(daemon: Daemon, name: str, target: DrainTarget) -> list[Client]:
    """Return the clients with a PID. Raise CommandRefused if there are none, except for ``undrain``."""
    pid = _parse_pid(target.name)
    clients = [client for _, client in drains.find_running(daemon, pid)]
    if not pid or (name == "drain" and not clients):
        raise CommandRefused(f"No client with PID {target.name}.")
    return clients


def _parse_pid(text: str) -> int:
    """Return a PID; 0, which is not a process's, if the text is not a PID."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else 0


def _find_server(daemon: Daemon, name: str) -> str:
    """Return the name of the server that a name or a PID names; raise CommandRefused."""
    if name in daemon.named_servers or daemon.server_named(name) is not None or user_of_server(name) is not None:
        return name
    process = daemon.server_by_pid(_parse_pid(name))
    if process is None:
        raise CommandRefused(f"No server named '{name}', nor with this PID.")
    return process.name


def _find_namespace(daemon: Daemon, name: str) -> DrainTarget:
    server, _, namespace = name.partition("/")
    if not daemon.options.policy.has_named_servers:
        raise CommandRefused("'--namespace' needs a daemon of protocol 3: protocol 2 has no namespaces.")
    named_server = daemon.named_servers.get(server)
    if not namespace or named_server is None or namespace not in named_server.namespaces:
        raise CommandRefused(f"No namespace '{name}': --namespace=<server>/<namespace>.")
    return DrainTarget(TargetKind.NAMESPACE, name)


def _check_may_drain(daemon: Daemon, caller: Caller, name: str, target: DrainTarget, clients: list[Client]) -> None:
    """Raise CommandRefused unless a caller may drain a target."""
    if is_owner(daemon, caller):
        return
    owners = set(_owners(daemon, target, clients))
    if owners != {caller.uid} or caller.uid == NO_USER:
        raise insufficient(caller, name, "daemon" if not owners else f"{target.kind}'s")


def _owners(daemon: Daemon, target: DrainTarget, clients: list[Client]) -> Iterator[int]:
    """Yield the users who may drain a target, except root and the daemon's user."""
    match target.kind:
        case TargetKind.USER:
            yield int(target.name)
        case TargetKind.CLIENT:
            existing = daemon.drains.by_target.get(target)
            yield from (client.process.peer.operator for client in clients)
            yield from (client.uid for client in existing.clients.values()) if existing is not None else ()
        case TargetKind.SERVER | TargetKind.NAMESPACE:
            server = target.name.partition("/")[0]
            named_server, process = daemon.named_servers.get(server), daemon.server_named(server)
            if named_server is not None or process is not None:
                yield (named_server or process).uid  # type: ignore[union-attr]
            elif (uid := user_of_server(server)) is not None:
                yield uid
