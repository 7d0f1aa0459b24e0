"""Limit the memory that the clients of a cgroup hold together, and log their allocations: the feature memacct.

Theory of operation
===================

A scheduler puts the processes of a job into one cgroup. The feature gives that job one limit of device memory, which
all of its clients share, however many servers they have.

- The daemon keeps the limits by path and device (`set_limits`, `replace_limits`). A limit is hard, soft or both; in
  bytes, and the soft one is at most the hard one.
- A client that connects gets the limits of its own cgroup and of all above it. They come to its server as memory
  groups (`MemoryGroup`), whose names begin with ``OF_CGROUP``. A change affects only clients that come later, as with
  every other limit.
- An executor counts a group's memory over all clients of the group. If two clients came with different limits of the
  same group, the limits of the later client hold; `note_context` does the same here, so that lists and metrics show
  what the executor enforces.
- The hard limit refuses an allocation. A client above its soft limit is evicted only when the device is short of
  memory (pympsd_server/service/eviction.py).

A limit set by a command ends with its cgroup, because paths of jobs are used once: `drop_gone` removes it when the
cgroup has been seen and exists no longer. A limit from a configuration file stays until the file changes.

The driver's own server counts single clients only, so every function that sets a limit refuses it there.
"""

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from attrs import evolve

from pympsd.state_machine.events import ClientConnected
from pympsd.state_machine.instructions import Instruction, Log
from pympsd.state_machine.named_servers import NotPossible
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.queue import QueueEntry
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.limits import MAX_MEMORY, OF_CGROUP, CgroupLimit, CgroupLimits, MemoryGroup, PinnedMemory
from pympsd.vocabulary.rules import Origin, expand_cgroups

MAX_CGROUPS: Final = 4096
NO_CGROUPS: Final = (
    "Limits of cgroups are not possible with the driver's own server: it has limits of single clients only."
)
MOUNT: Final = "/sys/fs/cgroup"
_OF_PATTERNS: Final = frozenset("*?[")


def cgroup_path(text: str) -> str:
    """Return a cgroup's path below the mount point; ``text`` may include the mount point. Raise NotPossible.

    >>> cgroup_path("/sys/fs/cgroup/batch"), cgroup_path("/batch")
    ('/batch', '/batch')

    A relative path, one with "..", "//" or a trailing "/", and one with a character of file name patterns are
    refused.
    """
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
    if not daemon.options.has_own_servers:
        raise NotPossible(NO_CGROUPS)
    limits = dict(daemon.process_limits.cgroups.get(path, {}))
    limits |= {ordinal: evolve(limits.get(ordinal, CgroupLimit()), **changed) for ordinal in ordinals}
    for limit in limits.values():
        if limit.soft is not None and limit.hard is not None and limit.soft > limit.hard:
            raise NotPossible(
                f"The soft limit of a cgroup must be at most its hard limit, {limit.hard}; not {limit.soft}."
            )
    real_limits = {ordinal: limit for ordinal, limit in limits.items() if limit != CgroupLimit()}
    if (
        real_limits
        and path not in daemon.process_limits.cgroups
        and len(daemon.process_limits.cgroups) >= MAX_CGROUPS
    ):
        raise NotPossible(f"{MAX_CGROUPS} cgroups have limits, and no more are possible.")
    previous = daemon.process_limits.cgroups.pop(path, None)
    if real_limits:
        daemon.process_limits.cgroups[path] = real_limits
        if previous is None:
            daemon.process_limits.transient_cgroups[path] = False
    else:
        daemon.process_limits.transient_cgroups.pop(path, None)
    for ordinal in ordinals:
        limit = limits[ordinal]
        text = f"{limit.hard or 'unlimited'}" + (f", soft limit {limit.soft}" if limit.soft else "")
        yield Log("cgroup_limit_set", {"path": path, "device": ordinal, "limit": text})


def replace_limits(daemon: Daemon, limits: CgroupLimits) -> Iterator[Instruction]:
    """Set the limits of all cgroups; for clients that come later.

    Used when a configuration file is applied: ``limits`` are those of the file, by path and device ordinal. Limits
    that commands have set are gone.
    """
    daemon.process_limits.cgroups = {path: by_device for path, by_device in limits.items() if by_device}
    daemon.process_limits.transient_cgroups.clear()
    yield Log("cgroup_limits_set", {"count": len(daemon.process_limits.cgroups)})


def note_origins(daemon: Daemon, origins: Mapping[int, Origin]) -> None:
    """Note the properties, by PID, of clients' processes that were not known before."""
    if not origins:
        return
    waiting: list[Client | QueueEntry] = [*daemon.queue.all_entries]
    for owner in (*waiting, *(client for server in daemon.servers.values() for client in server.clients.values())):
        process = owner.process
        if process is not None and process.origin is None and (origin := origins.get(process.peer.pid)) is not None:
            owner.process = evolve(process, origin=origin)


def note_client(daemon: Daemon, event: ClientConnected) -> None:
    """Note that the cgroups of a new client have been seen.

    The limits of such a cgroup are dropped when it is gone (`drop_gone`); those of a cgroup that nobody has seen yet
    stay, so that an administrator can set them in advance.
    """
    if daemon.process_limits.transient_cgroups:
        above = expand_cgroups(event.process.cgroups)
        daemon.process_limits.transient_cgroups |= {
            path: True for path in above if path in daemon.process_limits.transient_cgroups
        }


def drop_gone(daemon: Daemon, existing: Collection[str]) -> Iterator[Instruction]:
    """Drop the limits of cgroups that no longer exist and have no client.

    Only limits that a command has set are dropped. Those from a file stay, because the cgroup may be created again;
    those of a cgroup that has never been seen stay, too.
    """
    used = clients_by_cgroup(daemon)
    for path, is_seen in tuple(daemon.process_limits.transient_cgroups.items()):
        if path in existing or path in used:
            daemon.process_limits.transient_cgroups[path] = True
        elif is_seen:
            del daemon.process_limits.transient_cgroups[path], daemon.process_limits.cgroups[path]
            yield Log("cgroup_gone", {"path": path})


def note_context(server: Server, client: Client, ordinal: int) -> None:
    """Note that a client has a context on a device.

    The limits of its groups on that device then replace those of earlier clients of the groups, as in the executor.
    """
    for group in client.groups.get(ordinal, ()):
        if client.id >= server.groups.get((ordinal, group.name), (0, group))[0]:
            server.groups[ordinal, group.name] = client.id, group


def drop_groups(server: Server, gone: Client) -> None:
    """Drop the limits of groups whose last client has gone.

    ``gone`` is the client that left; it is not in ``server.clients`` any more.
    """
    there = {key for client in server.clients.values() for key in _keys(client)}
    for key in _keys(gone) - there:
        server.groups.pop(key, None)


def _keys(client: Client) -> set[tuple[int, str]]:
    return {(ordinal, group.name) for ordinal, groups in client.groups.items() for group in groups}


def limit_of(server: Server, client: Client, ordinal: int) -> CgroupLimit:
    """Return the lowest limits that a client's cgroups set for it on a device, in bytes.

    Hard and soft limit are chosen independently, each the lowest of all cgroups that the client is in or below. None:
    no limit.
    """
    limits = [group for group in _find_groups(server, client, ordinal) if group.name.startswith(OF_CGROUP)]
    hard = (PinnedMemory(limit.limit) for limit in limits if limit.limit < MAX_MEMORY)
    soft = (PinnedMemory(limit.soft) for limit in limits if limit.soft)
    return CgroupLimit(min(hard, default=None), min(soft, default=None))


def total_of(server: Server, client: Client, ordinal: int) -> int | None:
    """Return the bytes that all clients of a client's namespace may hold together on a device; None if unlimited."""
    own = (group for group in _find_groups(server, client, ordinal) if not group.name.startswith(OF_CGROUP))
    return min((group.limit for group in own if group.limit < MAX_MEMORY), default=None)


def _find_groups(server: Server, client: Client, ordinal: int) -> list[MemoryGroup]:
    """Return the limits of a client's groups on a device, in each case those that the group's latest client
    brought.
    """
    return [server.groups.get((ordinal, group.name), (0, group))[1] for group in client.groups.get(ordinal, ())]


def set_accounting(daemon: Daemon, on: bool) -> Iterator[Instruction]:
    """Set whether limits of cgroups hold for clients that come later.

    Raises NotPossible with the driver's own server, which has no such limits. Connected clients keep their limits.
    """
    if on and not daemon.options.has_own_servers:
        raise NotPossible(NO_CGROUPS)
    daemon.process_limits.accounts_cgroups = on
    yield Log("accounting_set", {"state": "enabled" if on else "disabled"})


def set_audit(daemon: Daemon, on: bool) -> Iterator[Instruction]:
    """Set whether servers log the allocations and frees of later clients.

    Raises NotPossible with the driver's own server, which does not report allocations.
    """
    if on and not daemon.options.has_own_servers:
        raise NotPossible("A log of allocations is not possible with the driver's own server: it reports none.")
    daemon.process_limits.audits_memory = on
    yield Log("audit_set", {"state": "logged" if on else "not logged"})


def clients_by_cgroup(daemon: Daemon) -> dict[str, list[Client]]:
    """Return the clients in each cgroup and those below, as far as their cgroups are known.

    A client is listed under its own cgroup and under every one above it, up to the root "/".
    """
    by_path: dict[str, list[Client]] = {}
    for server in daemon.servers.values():
        for client in server.clients.values():
            for path in expand_cgroups(client.process.cgroups):
                by_path.setdefault(path, []).append(client)
    return by_path
