"""The modules ``feature``, ``memacct`` and ``context-share``."""

from __future__ import annotations

from typing import Final

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3 import view
from pympsd.commands.v3.grammar import Option, Refused, Syntax
from pympsd.commands.v3.options import FORMAT
from pympsd.commands.v3.output import Column, Format, Row
from pympsd.commands.v3.registry import command, done, listing
from pympsd.state_machine.daemon_state import Daemon
from pympsd.state_machine.v3.routing import set_default_socket
from pympsd.vocabulary.texts import BadText, read_boolean

COLUMNS: Final = tuple(Column(name, name) for name in ("FEATURE", "STATE", "MODULE", "COVERS"))
KEYS: Final = (Column("KEY", "KEY"), Column("VALUE", "VALUE"))
STATES: Final = {"memacct": "disabled", "context-share": "enabled (default)"}
NO_ACCOUNTING: Final = (
    "Memory accounting by cgroup is not there yet; --pinned-memory-limit of a namespace limits each of its clients."
)
ALWAYS_SHARED: Final = "context-share cannot be disabled: every client of pympsd runs in a server."


def _read_switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise BadText("on or off,", text)
    return text == "on"


@command(Syntax("feature enable", required=("name",)))
def enable(daemon: Daemon, caller: Caller, name: str) -> Decision:
    """Enable a feature; memacct is not there yet."""
    if _feature(daemon, caller, name, "feature enable") == "memacct":
        raise Refused(NO_ACCOUNTING)
    return Decision(done())


@command(Syntax("feature disable", required=("name",)))
def disable(daemon: Daemon, caller: Caller, name: str) -> Decision:
    """Disable a feature; context-share cannot be."""
    if _feature(daemon, caller, name, "feature disable") == "context-share":
        raise Refused(ALWAYS_SHARED)
    return Decision(done())


@command(Syntax("feature describe", optional=("name",), options={"format": FORMAT}))
def describe(daemon: Daemon, caller: Caller, name: str | None = None, format: Format | None = None) -> Decision:
    """List the features and their states."""
    shown = STATES if name is None else {_known(name): STATES[_known(name)]}
    return listing(COLUMNS, [Row((feature, state, feature, None)) for feature, state in shown.items()], format)


@command(Syntax("memacct set", options={"audit-log": Option(read_boolean, "true|false")}, needed=("audit-log",)))
def set_accounting(daemon: Daemon, caller: Caller, audit_log: bool) -> Decision:
    """Set whether allocations are logged; memory accounting is not there yet."""
    view.check_daemon_owner(daemon, caller, "memacct set")
    if audit_log:
        raise Refused(NO_ACCOUNTING)
    return Decision(done())


@command(Syntax("memacct describe", options={"format": FORMAT}))
def describe_accounting(daemon: Daemon, caller: Caller, format: Format | None = None) -> Decision:
    """List the settings of memory accounting."""
    return listing(KEYS, [Row(("audit_log", False))], format)


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
    return listing(KEYS, [Row(("default_socket", "on" if daemon.default_socket else "off"))], format)


def _feature(daemon: Daemon, caller: Caller, name: str, command_name: str) -> str:
    known = _known(name)
    view.check_daemon_owner(daemon, caller, command_name)
    return known


def _known(name: str) -> str:
    known = name.replace("_", "-")
    if known not in STATES:
        raise Refused(f"No feature '{name}'. Features: {', '.join(sorted(STATES))}.")
    return known
