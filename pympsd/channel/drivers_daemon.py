"""Who listens at the daemon's socket: pympsd with its own servers, a daemon with the driver's server, or nobody.

The kinds of daemon differ by the type of the socket ``control``. A daemon with pympsd's servers has a stream
socket. A daemon with the driver's own server, be it pympsd or NVIDIA's, has a socket for packets, because libcuda
connects to no other. connect(2) reports another type with EPROTOTYPE before the daemon notices anything, so a probe
for packets distinguishes the two, and a daemon of pympsd with its own servers has no connection to log.

A program is routed to pympsd in the first case only: in the second the driver connects the program itself. The
import hook of Python programs asks at the first import of CUDA, and pympsd-run before it starts a native program.

Imports almost nothing, because both are on the way to every program.
"""

import _socket
import errno

from pympsd.vocabulary import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PYMPSD, DRIVER, NOBODY = "pympsd", "driver", "nobody"
"""The answers of `find_listener`."""


def find_listener(environment: "Mapping[str, str]") -> str:
    """Return who listens at the socket of the daemon that an environment names: PYMPSD, DRIVER or NOBODY.

    Without waiting: a daemon whose queue of connections is full counts as one.

    >>> find_listener({"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"})
    'nobody'
    """
    probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        probe.setblocking(False)
        probe.connect(f"{files.pipe_directory(dict(environment))}/{files.CONTROL}")
    except BlockingIOError:
        return DRIVER
    except OSError as error:
        return PYMPSD if error.errno == errno.EPROTOTYPE else NOBODY
    finally:
        probe.close()
    return DRIVER
