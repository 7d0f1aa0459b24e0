"""The feature memacct: limits of the memory that the clients of a cgroup hold together, and its log."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from attrs import evolve

from pympsd.state_machine.daemon_state import Client, Daemon
from pympsd.state_machine.instructions import Instruction, Log
from pympsd.state_machine.v3.servers import NotPossible
from pympsd.vocabulary.limits import CgroupLimit, CgroupLimits, PinnedMemory
from pympsd.vocabulary.rules import at_or_above

MOST_CGROUPS: Final = 4096
MOUNT: Final = "/sys/fs/cgroup"
_OF_PATTERNS: Final = frozenset("*?[")


def cgroup_path(text: str) -> str:
    """Return the path of a cgroup below the mount point, which may stand in front; raise NotPossible."""
    path = text if text.startswith("/") else ""
    if path == MOUNT or path.startswith(f"{MOUNT}/"):
        path = path.removeprefix(MOUNT) or "/"
    if path != posixpath.normpath(path) or path.startswith("//") or _OF_PATTERNS & set(path):
        raise NotPossible(f"A cgroup is named by its full path, such as {MOUNT}/batch or /batch, not '{text}'.")
    return path


def set_limits(
    daemon: Daemon, path: str, ordinals: Iterable[int], changed: Mapping[str, PinnedMemory | None]
) -> Iterator[Instruction]:
    """Set limits of a cgroup on devices, ``hard`` or ``soft`` or both; for clients that come later."""
    if not daemon.has_own_servers:
        raise NotPossible("Limits of cgroups are not possible with the driver's own server: it knows single clients.")
    limits = dict(daemon.cgroup_limits.get(path, {}))
    limits |= {ordinal: evolve(limits.get(ordinal, CgroupLimit()), **changed) for ordinal in ordinals}
    for limit in limits.values():
        if limit.soft is not None and limit.hard is not None and limit.soft > limit.hard:
            raise NotPossible(
                f"The soft limit of a cgroup is at most its hard limit, {limit.hard}; not {limit.soft}."
            )
    kept = {ordinal: limit for ordinal, limit in limits.items() if limit != CgroupLimit()}
    if kept and path not in daemon.cgroup_limits and len(daemon.cgroup_limits) >= MOST_CGROUPS:
        raise NotPossible(f"{MOST_CGROUPS} cgroups have limits, and no more are possible.")
    daemon.cgroup_limits.pop(path, None)
    if kept:
        daemon.cgroup_limits[path] = kept
    for ordinal in ordinals:
        limit = limits[ordinal]
        text = f"{limit.hard or 'unlimited'}" + (f", soft limit {limit.soft}" if limit.soft else "")
        yield Log("cgroup_limit_set", {"path": path, "device": ordinal, "limit": text})


def replace_limits(daemon: Daemon, limits: CgroupLimits) -> Iterator[Instruction]:
    """Set the limits of all cgroups; for clients that come later."""
    daemon.cgroup_limits = {path: each for path, each in limits.items() if each}
    yield Log("cgroup_limits_set", {"count": len(daemon.cgroup_limits)})


def limit_of(daemon: Daemon, client: Client, ordinal: int) -> CgroupLimit:
    """Return the least limits that a client's cgroups have on a device, if they hold."""
    of_all = [daemon.cgroup_limits.get(path, {}) for path in at_or_above(client.cgroups)]
    limits = [each[ordinal] for each in of_all if daemon.accounts_cgroups and ordinal in each]
    hard = (limit.hard for limit in limits if limit.hard is not None)
    soft = (limit.soft for limit in limits if limit.soft is not None)
    return CgroupLimit(min(hard, default=None), min(soft, default=None))


def set_accounting(daemon: Daemon, on: bool) -> Iterator[Instruction]:
    """Set whether limits of cgroups hold for clients that come later."""
    if on and not daemon.has_own_servers:
        raise NotPossible("Limits of cgroups are not possible with the driver's own server: it knows single clients.")
    daemon.accounts_cgroups = on
    yield Log("accounting_set", {"state": "enabled" if on else "disabled"})


def set_audit(daemon: Daemon, on: bool) -> Iterator[Instruction]:
    """Set whether servers log what clients that come later take and return."""
    if on and not daemon.has_own_servers:
        raise NotPossible("A log of allocations is not possible with the driver's own server: it tells of none.")
    daemon.audits_memory = on
    yield Log("audit_set", {"state": "logged" if on else "not logged"})


def clients_by_cgroup(daemon: Daemon) -> dict[str, list[Client]]:
    """Return the clients in each cgroup and those below, as far as their cgroups are known."""
    found: dict[str, list[Client]] = {}
    for server in daemon.servers.values():
        for client in server.clients.values():
            for path in at_or_above(client.cgroups):
                found.setdefault(path, []).append(client)
    return found
