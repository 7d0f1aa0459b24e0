"""The modules ``feature``, ``memacct`` and ``context-share``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3 import view
from pympsd.commands.v3.grammar import Option, Refused, Syntax
from pympsd.commands.v3.options import FORMAT
from pympsd.commands.v3.output import Column, Format, Row, Shown
from pympsd.commands.v3.registry import command, done, listing
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.v3.cgroups import (
    NO_CGROUPS,
    cgroup_path,
    clients_by_cgroup,
    set_accounting,
    set_audit,
    set_limits,
)
from pympsd.state_machine.v3.partitions import NO_PARTITIONS
from pympsd.state_machine.v3.routing import set_default_socket
from pympsd.vocabulary.answers import NO_LIMITS
from pympsd.vocabulary.limits import PinnedMemory
from pympsd.vocabulary.texts import LIFTED, BadText, memory_text, read_boolean, read_memory

COLUMNS: Final = tuple(Column(name, name) for name in ("FEATURE", "STATE", "MODULE", "COVERS"))
KEYS: Final = (Column("KEY", "KEY"), Column("VALUE", "VALUE"))
LIMITS: Final = tuple(Column(name, name.upper()) for name in ("cgroup", "device", "soft-limit", "hard-limit", "used"))
FEATURES: Final = ("memacct", "context-share")
PARTITIONS: Final = "static-partitions"
NO_GUARANTEE: Final = "none"
ALWAYS_SHARED: Final = "context-share cannot be disabled: every client of pympsd runs in a server."


def _read_guarantee(text: str) -> PinnedMemory | None:
    if text in LIFTED:  # of a hard limit; nothing is guaranteed without end
        raise BadText("a whole number above 0 and K, M or G, or 'none';", text)
    return None if text == NO_GUARANTEE else read_memory(text)


def _read_switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise BadText("on or off,", text)
    return text == "on"


@command(Syntax("feature enable", required=("name",)))
def enable(daemon: Daemon, caller: Caller, name: str) -> Decision:
    """Enable a feature: memacct, by which limits of cgroups hold; context-share always is."""
    is_accounting = _feature(daemon, caller, name, "feature enable") == "memacct"
    return Decision(done(), tuple(set_accounting(daemon, True)) if is_accounting else ())


@command(Syntax("feature disable", required=("name",)))
def disable(daemon: Daemon, caller: Caller, name: str) -> Decision:
    """Disable a feature; context-share cannot be."""
    if _feature(daemon, caller, name, "feature disable") == "context-share":
        raise Refused(ALWAYS_SHARED)
    return Decision(done(), tuple(set_accounting(daemon, False)))


@command(Syntax("feature describe", optional=("name",), options={"format": FORMAT}))
def describe(daemon: Daemon, caller: Caller, name: str | None = None, format: Format | None = None) -> Decision:
    """List the features and their states; on the driver's own server also that it has no static SM partitions. JSON
    says why what is not possible is not.
    """
    own = daemon.options.has_own_servers
    accounts = "enabled" if daemon.process_limits.accounts_cgroups and own else "disabled"
    rows = {
        "memacct": (
            accounts + " (default)" * (daemon.process_limits.accounts_cgroups or not own),
            "memacct",
            NO_CGROUPS,
        ),
        "context-share": ("enabled (default)", "context-share", ""),
    }
    if not own:
        rows[PARTITIONS] = "disabled (default)", "sm-partition", NO_PARTITIONS
    shown = rows if name is None else (_known(name, tuple(rows)),)
    found = []
    for feature in shown:
        state, module, problem = rows[feature]
        reason = None if own else problem or None
        found.append(Row((feature, state, module, None), {"possible": reason is None, "reason": reason}))
    return listing(COLUMNS, found, format)


@command(Syntax("memacct set", options={"audit-log": Option(read_boolean, "true|false")}, needed=("audit-log",)))
def set_audit_log(daemon: Daemon, caller: Caller, audit_log: bool) -> Decision:
    """Set whether each allocation and release of more than 1 MiB by a later client is logged by its server."""
    view.check_daemon_owner(daemon, caller, "memacct set")
    return Decision(done(), tuple(set_audit(daemon, audit_log)))


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
    )
)
def limit(daemon: Daemon, caller: Caller, cgroup: str, device: str | None = None, **said: Any) -> Decision:
    """Set the memory that the later clients of a cgroup, and of those below it, may hold together (--hard-limit=4G;
    unlimited), and what they are guaranteed (--soft-limit=1G; none), on a device or on each.
    """
    view.check_daemon_owner(daemon, caller, "memacct limit")
    path = cgroup_path(cgroup)
    ordinals = range(len(daemon.devices)) if device is None else [view.device_named(daemon, device)]
    if not said:
        raise Refused("memacct limit sets --hard-limit, --soft-limit, or both, and neither is given.")
    changed = {name.removesuffix("_limit"): value for name, value in said.items()}
    return Decision(done(), tuple(set_limits(daemon, path, ordinals, changed)))


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
    """List the limits of cgroups, and what their clients hold; on a device, or on each."""
    wanted = None if cgroup is None else cgroup_path(cgroup)
    if wanted is not None and wanted not in daemon.process_limits.cgroups:
        raise Refused(NO_LIMITS.format(wanted))
    only = None if device is None else view.device_named(daemon, device)
    rows, by_cgroup = [], clients_by_cgroup(daemon)
    for path, limits in sorted(daemon.process_limits.cgroups.items()):
        present = by_cgroup.get(path, [])
        for ordinal, limit in sorted(limits.items()):
            used = sum(client.memory.get(ordinal, 0) for client in present)
            pids = {"clients": sorted(client.pid for client in present)}
            if wanted in (None, path) and only in (None, ordinal):
                soft = None if limit.soft is None else Shown(memory_text(limit.soft), limit.soft.value)
                hard = Shown(memory_text(limit.hard), None if limit.hard is None else limit.hard.value)
                rows.append(Row((path, daemon.devices[ordinal].uuid, soft, hard, used), pids))
    return listing(LIMITS, rows, format)


@command(
    Syntax(
        "context-share set", options={"default-socket": Option(_read_switch, "on|off")}, needed=("default-socket",)
    )
)
def set_sharing(daemon: Daemon, caller: Caller, default_socket: bool) -> Decision:
    """Set whether clients of the daemon's own pipe directory are served; off: they are refused, and have to name the
    directory of a server or a namespace.
    """
    view.check_daemon_owner(daemon, caller, "context-share set")
    return Decision(done(), tuple(set_default_socket(daemon, default_socket)))


@command(Syntax("context-share describe", options={"format": FORMAT}))
def describe_sharing(daemon: Daemon, caller: Caller, format: Format | None = None) -> Decision:
    """List the settings of context sharing."""
    return listing(KEYS, [Row(("default_socket", "on" if daemon.named_servers.default_socket else "off"))], format)


def _feature(daemon: Daemon, caller: Caller, name: str, command_name: str) -> str:
    known = _known(name)
    view.check_daemon_owner(daemon, caller, command_name)
    return known


def _known(name: str, features: Sequence[str] = FEATURES) -> str:
    known = name.replace("_", "-")
    if known not in features:
        raise Refused(f"No feature '{name}'. Features: {', '.join(sorted(features))}.")
    return known
