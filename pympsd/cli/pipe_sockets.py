"""Where a command finds its daemon: the sockets in the pipe directory.

Imports almost nothing, so that commands start fast.
"""

import posix

from pympsd.vocabulary import files


def control(folder: bytes = b"") -> bytes:
    """Return the path of the socket that takes commands; ``folder``: the pipe directory, if it is another one."""
    folder = folder or pipe_directory()
    path = folder + b"/" + files.CONTROL.encode()
    privileged = folder + b"/" + files.CONTROL_PRIVILEGED.encode()
    try:
        clients_only = posix.stat(path).st_mode & 0o777 == files.CLIENTS_ONLY_MODES[files.CONTROL]
    except OSError:
        return path
    return privileged if clients_only and posix.access(privileged, posix.W_OK) else path


def own(folder: bytes = b"") -> bytes:
    """Return the path of the socket where pympsd's own protocol is spoken beside the driver's server."""
    return (folder or pipe_directory()) + b"/" + files.OWN_CONTROL.encode()


def pipe_directory() -> bytes:
    """Return the pipe directory that the environment names, or the default."""
    # The environment as posix has it, in bytes: os would make 1 ms of text of it.
    return posix.environ.get(b"CUDA_MPS_PIPE_DIRECTORY") or _default_directory().encode()


def _default_directory() -> str:
    """Return where root's daemon of protocol 3 is, if there is one, and the default of protocol 2 otherwise."""
    try:
        is_roots = posix.stat(f"{files.SYSTEM_PIPE_DIRECTORY}/{files.CONTROL}").st_uid == 0
    except OSError:
        is_roots = False
    return files.SYSTEM_PIPE_DIRECTORY if is_roots else files.DEFAULT_PIPE_DIRECTORY
