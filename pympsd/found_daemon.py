"""Which daemon there is, in a line for ``--help``; ``python -m pympsd.found_daemon`` prints it."""

from pympsd import pipe_sockets
from pympsd.control_client import OTHER_KIND, TIMEOUT, Daemon


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


if __name__ == "__main__":
    print(found_daemon(), end="")
