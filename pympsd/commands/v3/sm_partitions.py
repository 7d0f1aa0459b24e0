"""Static SM partitions: refused by name until they are there."""

from __future__ import annotations

from typing import Any, Final

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3.grammar import Option, Refused, Syntax
from pympsd.commands.v3.output import Format
from pympsd.commands.v3.registry import command
from pympsd.state_machine.daemon_state import Daemon

NOT_THERE: Final = (
    "Static SM partitions are not there yet; --active-thread-percentage of a namespace limits the SMs of its clients."
)
_SERVER: Final = Option(str, "<s>")
_DEVICE: Final = Option(str, "<device>")


@command(
    Syntax(
        "sm-partition create",
        required=("name",),
        options={"server": _SERVER, "device": _DEVICE, "chunks": Option(str, "<n>")},
        needed=("server", "device", "chunks"),
    )
)
def create(daemon: Daemon, caller: Caller, **arguments: Any) -> Decision:
    """Make a static SM partition; this daemon has none yet."""
    raise Refused(NOT_THERE)


@command(
    Syntax(
        "sm-partition delete",
        required=("name",),
        options={"server": _SERVER, "device": _DEVICE},
        needed=("server", "device"),
    )
)
def delete(daemon: Daemon, caller: Caller, **arguments: Any) -> Decision:
    """Delete a static SM partition; this daemon has none yet."""
    raise Refused(NOT_THERE)


@command(
    Syntax(
        "sm-partition list",
        options={"server": _SERVER, "device": _DEVICE, "format": Option(Format.parse, "<format>")},
        flags=("all",),
    )
)
def list_partitions(daemon: Daemon, caller: Caller, **arguments: Any) -> Decision:
    """List the static SM partitions; this daemon has none yet."""
    raise Refused(NOT_THERE)
