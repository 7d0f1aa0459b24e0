"""Privileges: every user may query, root and the user who started the daemon may change settings (recorded)."""

from __future__ import annotations

from typing import Final

from pympsd.commands.registry import Caller
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.identities import NO_USER

_OWNERS: Final = "Control deamon settings can only be modified by the user who started it or by the root user."
INSUFFICIENT: Final = f"Insufficient privileges for UID {{uid}}. {_OWNERS}"
IN_CONTAINER: Final = f"Insufficient privileges in a container, whose users are not known here. {_OWNERS}"
ASK_FROM: Final = "Ask from the daemon's own PID and user namespace, or start it with --trust-containers."


def is_owner(daemon: Daemon, caller: Caller) -> bool:
    """Whether the caller is root or the user who started the daemon."""
    return caller.uid in (0, daemon.options.uid)


def may_change_settings(daemon: Daemon, caller: Caller) -> Answer | None:
    """Return the recorded refusal for another user (its misspelling is recorded too), or None."""
    if is_owner(daemon, caller):
        return None
    if caller.uid == NO_USER:
        return refusal(IN_CONTAINER, diagnostic=ASK_FROM if daemon.options.protocol == 3 else "")
    return refusal(INSUFFICIENT.format(uid=caller.uid))
