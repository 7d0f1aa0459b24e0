"""The directories below a daemon's pipe directory: one for each server, and in it one for each namespace."""

from __future__ import annotations

import os
import stat

from pympsd.vocabulary import files


def misspelt(directory: str) -> str:
    """Return what a daemon has beside a directory that it has not; nothing if it is not in a daemon's."""
    parent, name = os.path.split(os.path.abspath(directory))
    if _has_socket(parent):
        beside = _inside(parent)
        if _has_lock(parent):
            return _no_server(name, beside)
        return f"no namespace '{name}' on server '{os.path.basename(parent)}'; there are: {beside}"
    top, server = os.path.split(parent)
    if _has_socket(top):
        return _no_server(server, _inside(top))
    return ""


def _no_server(name: str, there: str) -> str:
    # A server that could not be made has no socket either, and is still listed by the daemon.
    return f"no server '{name}', or one that has failed (server list says); there are: {there}"


def is_below_a_daemon(directory: str) -> bool:
    """Return whether a directory is one of a server or a namespace, whether or not its daemon lives.

    A daemon's own has a lock, which stays when it ends. One that has a socket only may be all that a container sees.
    """
    if _has_lock(directory):
        return False
    parent = os.path.dirname(os.path.abspath(directory))
    return _has_socket(directory) or _has_lock(parent) or _has_lock(os.path.dirname(parent))


def _has_lock(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, files.LOCK))


def _inside(directory: str) -> str:
    """Return the names of the directories with a socket in a directory."""
    try:
        names = sorted(name for name in os.listdir(directory) if _has_socket(os.path.join(directory, name)))
    except OSError as error:
        return f"unknown ({error.strerror})"
    return ", ".join(names) or "none"


def _has_socket(directory: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(os.path.join(directory, files.CONTROL)).st_mode)
    except OSError:
        return False
