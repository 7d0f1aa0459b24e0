"""Compute how to start a server as its user: only what differs from the daemon's own identity is changed.

Root of a user namespace with one user (podman without subordinate IDs, bubblewrap, ``unshare -Ur``) may not call
setgroups at all, not even with its present groups (user_namespaces(7)), and in some containers root lacks CAP_SETUID
and CAP_SETGID. A server of the daemon's own user does not need these calls. For another user, this module finds a
call that the kernel would deny, because subprocess reports the error number but not the call.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from pympsd.errors import FileError

CAP_SETGID: Final = 6
CAP_SETUID: Final = 7
_NAMES: Final = {CAP_SETGID: "CAP_SETGID", CAP_SETUID: "CAP_SETUID"}
NO_ONE: Final = -1
"""The value for a uid or gid whose real, effective and saved values differ."""


class Denied(FileError):
    """The kernel denies a call that the change needs; the message names the call and the reason."""


@frozen
class OwnIdentity:
    """The identity of a process, and the identities that its user namespace and capabilities allow it to take."""

    uid: int
    gid: int
    groups: frozenset[int]
    capabilities: int
    """The effective capabilities, one bit each (capabilities(7))."""
    uids: tuple[range, ...]
    """The uids that exist in the user namespace."""
    gids: tuple[range, ...]
    may_set_groups: bool = True
    """Whether the user namespace permits setgroups."""

    @classmethod
    def read(cls) -> OwnIdentity:
        """Return this process's identity; raise OSError if /proc cannot be read."""
        status = Path("/proc/self/status").read_bytes().partition(b"\nCapEff:")[2]
        return cls(
            uid=_common(os.getresuid()),
            gid=_common(os.getresgid()),
            groups=frozenset(os.getgroups()),
            capabilities=int(status.split(None, 1)[0], 16),
            uids=_ids("uid_map"),
            gids=_ids("gid_map"),
            may_set_groups=Path("/proc/self/setgroups").read_text().strip() != "deny",
        )


def change_of_identity(own: OwnIdentity, uid: int, gid: int, groups: Collection[int]) -> dict[str, Any]:
    """Return the options of subprocess.Popen that start a process as a user with a group and supplementary groups.

    A process of the daemon's own user keeps the daemon's groups if the groups cannot be changed. For another user,
    raise Denied if the kernel would deny a call.
    """
    options: dict[str, Any] = {}
    if uid != own.uid:
        _check_number("setuid", f"user {uid}", uid, own.uids, "uid_map")
        _check_capability("setuid", own, CAP_SETUID)
        options["user"] = uid
    try:
        if frozenset(groups) != own.groups:
            _check_set_groups(own, groups)
            options["extra_groups"] = tuple(groups)
        if gid != own.gid:
            _check_number("setgid", f"group {gid}", gid, own.gids, "gid_map")
            _check_capability("setgid", own, CAP_SETGID)
            options["group"] = gid
    except Denied:
        if uid != own.uid:
            raise
    return options


def _check_set_groups(own: OwnIdentity, groups: Collection[int]) -> None:
    if not own.may_set_groups:
        raise Denied(
            "setgroups is denied in the daemon's user namespace (/proc/self/setgroups), which can have servers of "
            f"user {own.uid} only; run a daemon as the other user, or give the namespace subordinate IDs "
            "(/etc/subuid, /etc/subgid)"
        )
    for gid in groups:
        _check_number("setgroups", f"group {gid}", gid, own.gids, "gid_map")
    _check_capability("setgroups", own, CAP_SETGID)


def _check_number(call: str, who: str, number: int, exist: Collection[range], table: str) -> None:
    if not any(number in ids for ids in exist):
        raise Denied(
            f"{call} is denied: {who} does not exist in the daemon's user namespace (/proc/self/{table}); run a "
            "daemon outside the namespace, or give the namespace subordinate IDs (/etc/subuid, /etc/subgid)"
        )


def _check_capability(call: str, own: OwnIdentity, capability: int) -> None:
    if not own.capabilities >> capability & 1:
        name = _NAMES[capability]
        raise Denied(f"{call} is denied: the daemon has no {name}; start it with {name}, or as the other user")


def _common(numbers: tuple[int, int, int]) -> int:
    return numbers[0] if len(set(numbers)) == 1 else NO_ONE


def _ids(table: str) -> tuple[range, ...]:
    """Return the IDs of a user namespace: the first and third columns of its table (user_namespaces(7))."""
    rows = [line.split() for line in Path(f"/proc/self/{table}").read_text().splitlines()]
    return tuple(range(int(first), int(first) + int(count)) for first, _, count in rows)
