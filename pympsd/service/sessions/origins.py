"""Read from /proc the properties of a process on which rules depend."""

import contextlib
import os
from pathlib import Path

from pympsd.service.processes.peers import KnownPeer
from pympsd.service.processes.status import has_ended, status_numbers
from pympsd.vocabulary.rules import Origin

_DELETED = " (deleted)"


def origin_of(known_peer: KnownPeer) -> Origin:
    """Return the known properties of a client's process. A user of another user namespace does not match any rule."""
    peer = known_peer.peer
    groups = () if peer.foreign else tuple(dict.fromkeys((peer.gid, *peer.groups)))
    return Origin(peer.operator, groups, *_read_process(peer.pid, known_peer.pidfd))


def origin_of_pid(pid: int) -> Origin | None:
    """Return the known properties of a process; None if no process has this PID."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    # The effective IDs, which the kernel also reports for a peer.
    uid, gid = (status_numbers(status, name)[1] for name in (b"Uid", b"Gid"))
    groups = tuple(dict.fromkeys((gid, *status_numbers(status, b"Groups"))))
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        return Origin(uid, groups, *_read_process(pid, pidfd))
    finally:
        os.close(pidfd)


def cgroups_in(text: bytes) -> tuple[str, ...]:
    """Return the paths in a /proc/PID/cgroup, each once; the path of cgroup v2 is last."""
    # Users choose the names of cgroups, so split at line feeds only, which the kernel does not allow in a name.
    lines = os.fsdecode(text).removesuffix("\n").split("\n") if text else []
    paths = [line.split(":", 2)[2].removesuffix(_DELETED) for line in lines]
    return tuple(dict.fromkeys(reversed(paths)))[::-1]


def _read_process(pid: int, pidfd: int) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the cgroups and the executable of a process; None for each that cannot be read."""
    if pid <= 0:
        return None, None
    cgroups: tuple[str, ...] | None = None
    executable: str | None = None
    with contextlib.suppress(OSError):
        cgroups = cgroups_in(Path(f"/proc/{pid}/cgroup").read_bytes())
    with contextlib.suppress(OSError):
        executable = os.readlink(f"/proc/{pid}/exe").removesuffix(_DELETED)
    # Another process may have the PID by now: the values are used only if this process has not ended.
    return (None, None) if pidfd < 0 or has_ended(pidfd) else (cgroups, executable)
