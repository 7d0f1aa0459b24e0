"""Who may do what: anyone may ask, the user who started the daemon and root may change things (recorded)."""

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
    """Return the recorded refusal for another user (its spelling is the recorded one), or None."""
    if is_owner(daemon, caller):
        return None
    return refusal(INSUFFICIENT.format(uid=caller.uid))
