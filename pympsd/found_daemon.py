"""Which daemon there is, in a line for ``--help``; ``python -m pympsd.found_daemon`` prints it. And its protocol."""

from pympsd import pipe_sockets
from pympsd.control_client import OTHER_KIND, TIMEOUT, Daemon, DaemonGone
from pympsd.wire import frames


def found_daemon() -> str:
    """Return a line that says which daemon there is."""
    daemon = Daemon()
    path = pipe_sockets.control()
    try:
        reason = daemon.connect(path, TIMEOUT)
        if reason == OTHER_KIND:
            is_vendor = daemon.connect(pipe_sockets.own(), TIMEOUT)
            kind = "NVIDIA's own daemon" if is_vendor else "pympsd, which leads the driver's server"
        else:
            kind = f"no daemon ({reason})" if reason else "pympsd, with servers of its own"
    except TimeoutError:
        kind = "a daemon that does not answer"
    finally:
        daemon.close()
    return f"at {path.decode('utf-8', 'backslashreplace')}: {kind}\n"


def found_protocol() -> bytes:
    """Return the protocol of the daemon that runs; nothing if there is none, or it does not say."""
    daemon = Daemon()
    try:
        reason = daemon.connect(pipe_sockets.control(), TIMEOUT)
        if reason == OTHER_KIND:
            reason = daemon.connect(pipe_sockets.own(), TIMEOUT)
        if reason or daemon.has_ended():
            return b""
        daemon.send(frames.encode(frames.OPERATOR_HELLO, frames.ASKS_PROTOCOL))
        return daemon.protocol()
    except (DaemonGone, OSError):  # TimeoutError and ConnectionError are some
        return b""
    finally:
        daemon.close()


if __name__ == "__main__":
    print(found_daemon(), end="")
