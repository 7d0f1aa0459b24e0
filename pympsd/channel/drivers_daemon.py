"""Find out who listens at the daemon's socket: pympsd with its own servers, a daemon with the driver's, or nobody.

The kinds of daemon differ by the type of the socket ``control``. A daemon with pympsd's servers has a stream socket.
A daemon with the driver's own server, pympsd or NVIDIA's, has a packet socket, because libcuda connects only to
those. connect(2) fails for another type with EPROTOTYPE before the daemon notices anything. So a probe with a packet
socket distinguishes the two, and pympsd with its own servers does not log it.

A program is routed to pympsd only if pympsd's own servers are there; otherwise the driver connects the program
itself. The import hook of Python programs probes at the first import of CUDA, and pympsd-run before it starts a
native program.

Imports almost nothing, because both run before every program.
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

    It does not wait: a full queue of connections also shows that a daemon listens.

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
