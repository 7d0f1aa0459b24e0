"""Privileges: every user may query, root and the user who started the daemon may change settings (recorded)."""

from __future__ import annotations

from typing import Final

from pympsd.commands.registry import Caller
from pympsd.state_machine.daemon_state import Daemon
from pympsd.vocabulary.answers import Answer, refusal

INSUFFICIENT: Final = (
    "Insufficient privileges for UID {uid}. Control deamon settings can only be modified by the user who started it "
    "or by the root user."
)


def is_owner(daemon: Daemon, caller: Caller) -> bool:
    """Whether the caller is root or the user who started the daemon."""
    return caller.uid in (0, daemon.uid)


def may_change_settings(daemon: Daemon, caller: Caller) -> Answer | None:
    """Return the recorded refusal for another user (its misspelling is recorded too), or None."""
    if is_owner(daemon, caller):
        return None
    return refusal(INSUFFICIENT.format(uid=caller.uid))
