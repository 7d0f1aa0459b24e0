"""Whose a directory is: that of a server or a namespace belongs to the daemon above, which has a socket there.

A daemon that started there would take that socket, and the clients would be without the namespace's limits.
"""

from __future__ import annotations

import os
from typing import Final

from pympsd.service.files.lock_holders import Holder, listener_of
from pympsd.takeover.state_file import directories_left
from pympsd.vocabulary import files

_REMEDY: Final = "commands reach it there; choose another CUDA_MPS_PIPE_DIRECTORY for another daemon"


def daemon_above(folder: str) -> str:
    """Return, in words, of which daemon's server or namespace a directory is; nothing if it is of none.

    A daemon that was killed counts while its state or its keeper is there: the next one goes on with its namespaces.
    """
    folder = os.path.realpath(folder)
    server, namespace = os.path.split(folder)
    # The outer one first: it listens in the directory of the server, too.
    above = [(os.path.dirname(server), (os.path.basename(server), namespace)), (server, (namespace,))]
    for top, names in above:
        if names in directories_left(top):
            return _said(folder, top, names)
    # The state of another user's daemon cannot be read, and from a container the daemon's directory is not seen.
    if _has(folder, files.LOCK, *files.OF_A_RUNNING_DAEMON):
        return ""  # it is a daemon's own, which is not asked: that would be in its log
    control = os.path.join(folder, files.CONTROL)
    listener = listener_of(control)
    if listener is None:
        return ""
    for top, names in above:
        if listener_of(os.path.join(top, files.CONTROL)) == listener:
            return _said(folder, top, names)
    return f"{Holder(*listener[:2])} listens at {control}: {_REMEDY}"


def _said(folder: str, top: str, names: tuple[str, ...]) -> str:
    namespace = f"namespace '{names[1]}' of " if names[1:] else ""
    return f"{folder} is the directory of {namespace}server '{names[0]}' of the daemon at {top}: {_REMEDY}"


def _has(folder: str, *names: str) -> bool:
    return any(os.path.lexists(os.path.join(folder, name)) for name in names)
