"""The modules of the daemon itself: ``feature``, ``memacct``, ``context-share``, ``share``, ``trace`` and ``log``.

The modules ``share``, ``trace`` and ``log`` are in both protocols. A trace shows when the daemon, its servers, their
clients and the devices do what.
"""

from collections.abc import Sequence
from typing import Any, Final

from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.grammar.registry import BOTH, Decision, command
from pympsd.commands.grammar.syntax import CommandRefused, Option, Syntax
from pympsd.commands.v3 import view
from pympsd.commands.v3.options import FORMAT, UID
from pympsd.commands.v3.output import Format, Row, Shown, columns, confirm, listing
from pympsd.state_machine import cgroups, shares
from pympsd.state_machine.instructions import ReopenLogs, StartTrace, StopTrace
from pympsd.state_machine.partitions import NO_PARTITIONS
from pympsd.state_machine.registration import set_default_socket
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import NO_LIMITS
from pympsd.vocabulary.limits import PinnedMemory
from pympsd.vocabulary.shares import SharedResource
from pympsd.vocabulary.texts import LIFTED, BadText, memory_text, read_boolean, read_memory

FEATURE_COLUMNS: Final = columns("FEATURE", "STATE", "MODULE", "COVERS")
KEYS: Final = columns("KEY", "VALUE")
LIMITS: Final = columns("cgroup", "device", "soft-limit", "hard-limit", "used")
FEATURES: Final = ("memacct", "context-share")
PARTITIONS: Final = "static-partitions"
NO_GUARANTEE: Final = "none"
ALWAYS_SHARED: Final = "context-share cannot be disabled: every client of pympsd runs in a server."


def _read_guarantee(text: str) -> PinnedMemory | None:
    if text in LIFTED:  # words that only a hard limit may have: a guarantee cannot be unlimited
        raise BadText("a whole number above 0 and K, M or G, or 'none';", text)
    return None if text == NO_GUARANTEE else read_memory(text)


def _read_switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise BadText("on or off,", text)
    return text == "on"


@command(Syntax("feature enable", required=("name",)), owner_only=True)
def enable(daemon: Daemon, caller: Caller, name: str) -> Decision:
    """Enable a feature: memacct enforces the limits of cgroups; context-share is always enabled."""
    is_accounting = _find_feature(name) == "memacct"
    return Decision(confirm(), tuple(cgroups.set_accounting(daemon, True)) if is_accounting else ())


@command(Syntax("feature disable", required=("name",)), owner_only=True)
def disable(daemon: Daemon, caller: Caller, name: str) -> Decision:
    """Disable a feature: memacct; context-share cannot be disabled."""
    if _find_feature(name) == "context-share":
        raise CommandRefused(ALWAYS_SHARED)
    return Decision(confirm(), tuple(cgroups.set_accounting(daemon, False)))


@command(Syntax("feature describe", optional=("name",), options={"format": FORMAT}))
def describe(daemon: Daemon, caller: Caller, name: str | None = None, format: Format | None = None) -> Decision:
    """List the features and their states, and with the driver's own server that static SM partitions are not
    possible. JSON has the reason for each feature that is not possible.
    """
    own = daemon.options.has_own_servers
    accounts = "enabled" if daemon.process_limits.accounts_cgroups and own else "disabled"
    rows = {
        "memacct": (
            accounts + " (default)" * (daemon.process_limits.accounts_cgroups or not own),
            "memacct",
            cgroups.NO_CGROUPS,
        ),
        "context-share": ("enabled (default)", "context-share", ""),
    }
    if not own:
        rows[PARTITIONS] = "disabled (default)", "sm-partition", NO_PARTITIONS
    features = rows if name is None else (_find_feature(name, tuple(rows)),)
    table = []
    for feature in features:
        state, module, problem = rows[feature]
        reason = None if own else problem or None
        table.append(Row((feature, state, module, None), {"possible": reason is None, "reason": reason}))
    return listing(FEATURE_COLUMNS, table, format)


@command(
    Syntax("memacct set", options={"audit-log": Option(read_boolean, "true|false")}, needed=("audit-log",)),
    owner_only=True,
)
def set_audit_log(daemon: Daemon, caller: Caller, audit_log: bool) -> Decision:
    """Set whether servers log each allocation and release of more than 1 MiB by new clients."""
    return Decision(confirm(), tuple(cgroups.set_audit(daemon, audit_log)))


@command(Syntax("memacct describe", options={"format": FORMAT}))
def describe_accounting(daemon: Daemon, caller: Caller, format: Format | None = None) -> Decision:
    """List the settings of memory accounting."""
    return listing(KEYS, [Row(("audit_log", daemon.process_limits.audits_memory))], format)


@command(
    Syntax(
        "memacct limit",
        required=("cgroup",),
        options={
            "device": Option(str, "<device>"),
            "hard-limit": Option(read_memory, "<limit>"),
            "soft-limit": Option(_read_guarantee, "<limit>"),
        },
    ),
    owner_only=True,
)
def limit(daemon: Daemon, caller: Caller, cgroup: str, device: str | None = None, **limits: Any) -> Decision:
    """Set how much memory the new clients of a cgroup, and of the cgroups below it, may hold together
    (--hard-limit=4G, unlimited), and how much they are guaranteed (--soft-limit=1G, none); on one device or on each.
    """
    path = cgroups.cgroup_path(cgroup)
    ordinals = range(len(daemon.devices)) if device is None else [view.device_named(daemon, device)]
    if not limits:
        raise CommandRefused("'memacct limit' needs --hard-limit, --soft-limit, or both.")
    changed = {name.removesuffix("_limit"): value for name, value in limits.items()}
    return Decision(confirm(), tuple(cgroups.set_limits(daemon, path, ordinals, changed)))


@command(
    Syntax("memacct list", optional=("cgroup",), options={"device": Option(str, "<device>"), "format": FORMAT}),
    asks_servers=True,
)
def list_limits(
    daemon: Daemon,
    caller: Caller,
    cgroup: str | None = None,
    device: str | None = None,
    format: Format | None = None,
) -> Decision:
    """List the limits of cgroups and how much memory their clients hold, on one device or on each."""
    only_cgroup = None if cgroup is None else cgroups.cgroup_path(cgroup)
    if only_cgroup is not None and only_cgroup not in daemon.process_limits.cgroups:
        raise CommandRefused(NO_LIMITS.format(only_cgroup))
    only_device = None if device is None else view.device_named(daemon, device)
    rows, by_cgroup = [], cgroups.clients_by_cgroup(daemon)
    for path, limits in sorted(daemon.process_limits.cgroups.items()):
        present = by_cgroup.get(path, [])
        for ordinal, limit in sorted(limits.items()):
            used = sum(client.memory.get(ordinal, 0) for client in present)
            pids = {"clients": sorted(client.pid for client in present)}
            if only_cgroup in (None, path) and only_device in (None, ordinal):
                soft = None if limit.soft is None else Shown(memory_text(limit.soft), limit.soft.value)
                hard = Shown(memory_text(limit.hard), None if limit.hard is None else limit.hard.value)
                rows.append(Row((path, daemon.devices[ordinal].uuid, soft, hard, used), pids))
    return listing(LIMITS, rows, format)


@command(
    Syntax(
        "context-share set", options={"default-socket": Option(_read_switch, "on|off")}, needed=("default-socket",)
    ),
    owner_only=True,
)
def set_sharing(daemon: Daemon, caller: Caller, default_socket: bool) -> Decision:
    """Set whether the daemon's own pipe directory serves clients. If it is off, they are refused, and have to use the
    directory of a server or a namespace.
    """
    return Decision(confirm(), tuple(set_default_socket(daemon, default_socket)))


@command(Syntax("context-share describe", options={"format": FORMAT}))
def describe_sharing(daemon: Daemon, caller: Caller, format: Format | None = None) -> Decision:
    """List the settings of context sharing."""
    return listing(KEYS, [Row(("default_socket", "on" if daemon.named_servers.default_socket else "off"))], format)


def _find_feature(name: str, features: Sequence[str] = FEATURES) -> str:
    """Return the feature with a name, in which ``_`` may stand for ``-``."""
    feature = name.replace("_", "-")
    if feature not in features:
        raise CommandRefused(f"No feature '{name}'. Features: {', '.join(sorted(features))}.")
    return feature


# --- shares of users

SHARE_COLUMNS: Final = columns("uid", "resource", "share", "used", "refused")
NO_SHARE: Final = Shown("unlimited", None)
"""The share of root, and of the user who started the daemon."""


@command(Syntax("share list", options={"uid": UID, "format": FORMAT}), protocols=BOTH)
def list_shares(daemon: Daemon, caller: Caller, uid: int | None = None, format: Format | None = None) -> Decision:
    """List each user's shares of the daemon's resources, how much of each share is in use, and how often more was
    refused since the daemon started. The users are those with servers or connections, and those to whom some were
    refused; with --uid, only one user. The option --user-share and [shares] in the configuration file set the shares.
    """
    users = shares.list_users(daemon) if uid is None else [uid]
    return listing(
        SHARE_COLUMNS,
        [_share_row(daemon, user, resource) for user in users for resource in shares.resources_of(daemon)],
        format,
    )


def _share_row(daemon: Daemon, uid: int, resource: SharedResource) -> Row:
    """Return the row of one user's share of one resource."""
    share = NO_SHARE if shares.is_exempt(daemon, uid) else daemon.usage.shares.share(resource)
    cells = (
        uid,
        resource.name,
        share,
        shares.count_used(daemon, resource, uid),
        daemon.usage.refusals[uid, resource.name],
    )
    extra = {
        "unit": resource.unit,
        "total": daemon.usage.shares.total(resource) or None,
        "total_of_users": daemon.usage.shares.count_for_users(resource) or None,
        "used_together": shares.count_used_together(daemon, resource, exempt=True),
    }
    return Row(cells, extra)


# --- traces and logs


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
