"""Which daemon there is, in a line for ``--help``, and its protocol.

``python -m pympsd.found_daemon`` prints it; status 1: none, 2: one that does not answer.
"""

import sys

from pympsd import pipe_sockets
from pympsd.control_client import OTHER_KIND, SILENT, TIMEOUT, UNREACHABLE, Daemon, DaemonGone
from pympsd.wire import frames


def found_daemon(timeout: float) -> tuple[str, int, bytes]:
    """Return a line that says which daemon there is, the status, and its protocol, nothing if it does not say; wait
    ``timeout`` seconds for an answer.
    """
    daemon = Daemon()
    path, status, protocol = pipe_sockets.control(), 0, b""
    try:
        reason = daemon.connect(path, timeout)
        kind = "pympsd, with servers of its own"
        if reason == OTHER_KIND:
            is_vendor = daemon.connect(pipe_sockets.own(), timeout)
            kind, reason = "NVIDIA's own daemon" if is_vendor else "pympsd, which leads the driver's server", ""
        elif not reason and daemon.has_ended():
            reason = "it has ended; the next one goes on with its servers"
        if reason:
            kind, status = f"no daemon ({reason})", UNREACHABLE
        elif not kind.startswith("NVIDIA"):
            protocol = _asked_protocol(daemon, path)
    except TimeoutError:
        remedy = f"if it is stopped, continue it: kill -CONT {daemon.pid()}"
        kind, status = f"a daemon that has said nothing for {timeout:g} s; {remedy}", SILENT
    finally:
        daemon.close()
    return f"at {path.decode('utf-8', 'backslashreplace')}: {kind}\n", status, protocol


def _asked_protocol(daemon: Daemon, path: bytes) -> bytes:
    """Return the protocol of a daemon; nothing if it answers otherwise. Raise TimeoutError."""
    if daemon.owner_warning(path, TIMEOUT):
        daemon.distrust(TIMEOUT)
    try:
        daemon.send(frames.encode(frames.OPERATOR_HELLO, frames.ASKS_PROTOCOL))
        return daemon.protocol()
    except (DaemonGone, ConnectionError):
        return b""


def found_protocol() -> bytes:
    """Return the protocol of the daemon that runs; nothing if there is none, or it does not say."""
    daemon = Daemon()
    try:
        path = pipe_sockets.control()
        reason = daemon.connect(path, TIMEOUT)
        if reason == OTHER_KIND:
            path = pipe_sockets.own()
            reason = daemon.connect(path, TIMEOUT)
        if reason or daemon.has_ended():
            return b""
        return _asked_protocol(daemon, path)
    except OSError:  # TimeoutError is one
        return b""
    finally:
        daemon.close()


if __name__ == "__main__":
    line, status, _ = found_daemon(TIMEOUT)
    print(line, end="")
    sys.exit(status)
