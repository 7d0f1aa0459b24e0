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
        if os.path.exists(os.path.join(parent, files.LOCK)):
            return _no_server(name, beside)
        return f"no namespace '{name}' on server '{os.path.basename(parent)}'; there are: {beside}"
    top, server = os.path.split(parent)
    if _has_socket(top):
        return _no_server(server, _inside(top))
    return ""


def _no_server(name: str, there: str) -> str:
    # A server that could not be made has no socket either, and is still listed by the daemon.
    return f"no server '{name}', or one that has failed (server list says); there are: {there}"


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
