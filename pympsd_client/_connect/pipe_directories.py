"""The directories below a daemon's pipe directory: one for each server, and in it one for each namespace.

A program whose pipe directory does not exist runs without MPS, as documented for protocol 2. With a daemon of
protocol 3 the same path may be that of a namespace which is misspelt or has been deleted, and a program that runs
without MPS would have no limits. So it is refused below the directory of such a daemon, whether or not the daemon
runs. Such a directory has a file for this purpose (`files.NAMED_SERVERS`), or directories with sockets.
"""

from __future__ import annotations

import os
import stat

from pympsd.vocabulary import files

_NONE = "none"


def misspelt(directory: str) -> str:
    """Return what a daemon has next to a directory that it does not have; empty: the directory is not a daemon's."""
    parent, name = os.path.split(os.path.abspath(directory))
    if _has_socket(parent):
        if _has_lock(parent):
            return _no_server(name, _inside(parent)) if _has_named_servers(parent) else ""
        return f"no namespace '{name}' on server '{os.path.basename(parent)}'; there are: {_inside(parent)}"
    top, server = os.path.split(parent)
    if _has_socket(top) and _has_named_servers(top):
        return _no_server(server, _inside(top))
    return ""


def is_below_a_daemon(directory: str) -> bool:
    """Return whether a directory is one of a server or a namespace, whether or not its daemon runs.

    A daemon's own directory has a lock, which remains when the daemon ends. A directory that only has a socket may be
    all that a container sees.
    """
    if _has_lock(directory):
        return False
    parent = os.path.dirname(os.path.abspath(directory))
    return _has_socket(directory) or _has_named_servers(parent) or _has_named_servers(os.path.dirname(parent))


def _has_named_servers(directory: str) -> bool:
    """Return whether a directory is that of a daemon of protocol 3."""
    if os.path.lexists(os.path.join(directory, files.NAMED_SERVERS)):
        return True
    # Daemons of before leave no such file.
    return _has_lock(directory) and _inside(directory) != _NONE


def _no_server(name: str, there: str) -> str:
    # A server that could not be made has no socket either, and is still listed by the daemon.
    return f"no server '{name}', or one that has failed (server list says); there are: {there}"


def _has_lock(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, files.LOCK))


def _inside(directory: str) -> str:
    """Return the names of the directories with a socket in a directory."""
    try:
        names = sorted(name for name in os.listdir(directory) if _has_socket(os.path.join(directory, name)))
    except OSError as error:
        return f"unknown ({error.strerror})"
    return ", ".join(names) or _NONE


def _has_socket(directory: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(os.path.join(directory, files.CONTROL)).st_mode)
    except OSError:
        return False
