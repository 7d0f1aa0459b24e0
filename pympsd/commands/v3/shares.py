"""The module ``share``, in both protocols: what each user may have of the daemon, and has."""

from __future__ import annotations

from typing import Final

from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.grammar.registry import BOTH, Decision, command
from pympsd.commands.grammar.syntax import Syntax
from pympsd.commands.v3.options import FORMAT, UID
from pympsd.commands.v3.output import Column, Format, Row, Shown, listing
from pympsd.state_machine import shares
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.shares import Resource

COLUMNS: Final = tuple(Column(name, name.upper()) for name in ("uid", "resource", "share", "used", "refused"))
NO_SHARE: Final = Shown("unlimited", None)
"""The share of root, and of the user who started the daemon."""


@command(Syntax("share list", options={"uid": UID, "format": FORMAT}), protocols=BOTH)
def list_shares(daemon: Daemon, caller: Caller, uid: int | None = None, format: Format | None = None) -> Decision:
    """List for each user with servers or connections, and each who was refused some, the shares of the daemon's
    resources, how much of each is in use, and how often more was refused since the daemon started; with --uid, for
    one user. The option --user-share and [shares] in the configuration file set the shares.
    """
    users = shares.list_users(daemon) if uid is None else [uid]
    return listing(
        COLUMNS, [_row(daemon, user, resource) for user in users for resource in shares.resources_of(daemon)], format
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
