"""The module ``share``, in both protocols: what each user may have of the daemon, and has."""

from __future__ import annotations

from typing import Final

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3.grammar import Syntax
from pympsd.commands.v3.options import FORMAT, UID
from pympsd.commands.v3.output import Column, Format, Row, Shown
from pympsd.commands.v3.registry import command, listing
from pympsd.state_machine import shares
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.shares import Resource

COLUMNS: Final = tuple(Column(name, name.upper()) for name in ("uid", "resource", "share", "used", "refused"))
NO_SHARE: Final = Shown("unlimited", None)
"""The share of root, and of the user who started the daemon."""


@command(Syntax("share list", options={"uid": UID, "format": FORMAT}), in_both=True)
def list_shares(daemon: Daemon, caller: Caller, uid: int | None = None, format: Format | None = None) -> Decision:
    """List what the users who have servers or connections, or were refused some, have of their shares of the daemon,
    and how often they were refused more since it started; or what one user has. --user-share of the daemon, and
    [shares] in its configuration file, set the shares.
    """
    shown = shares.list_users(daemon) if uid is None else [uid]
    return listing(
        COLUMNS, [_row(daemon, each, what) for each in shown for what in shares.resources_of(daemon)], format
    )


def _row(daemon: Daemon, uid: int, resource: Resource) -> Row:
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
        "total_of_users": daemon.usage.shares.for_users(resource) or None,
        "used_together": shares.count_used_together(daemon, resource, exempt=True),
    }
    return Row(cells, extra)
