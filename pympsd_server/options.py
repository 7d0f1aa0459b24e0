"""The server's command line. The daemon passes its link; a server started by hand prints an explanation."""

import sys
from collections.abc import Sequence

from pympsd.process.version import CUDA_VERSIONS, DRIVER, VERSION
from pympsd.vocabulary.mistyped import Parser

TITLE = "CUDA MPS Server for Linux/Unix."
ABOUT = f"""{TITLE}

The server is launched by the CUDA MPS control daemon (pympsd, or nvidia-cuda-mps-control).

It creates a shared GPU context, manages clients, and issues work to the GPU on behalf of clients.

MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU.
"""


def main(arguments: Sequence[str]) -> int:
    """Serve on the daemon's link, or print the description of this program; return the exit status."""
    if "-v" in arguments or "--version" in arguments:
        print(f"{TITLE} Binary version: {CUDA_VERSIONS[DRIVER]}")
        print(f"pympsd {VERSION}, an open reimplementation (Apache-2.0)")
        return 0
    if "-h" in arguments or "--help" in arguments:
        print(ABOUT)
        return 0
    if not arguments:
        # Recorded: nothing on standard output, exit status 0.
        sys.stderr.write("the server is launched by the control daemon; see pympsd -h\n")
        return 0
    parser = Parser(prog="pympsd-server", add_help=False)
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--name", default="pympsd-server")
    parser.add_argument("--multiuser-server", action="store_true")
    options = parser.parse_args(arguments)
    from pympsd_server.service.run import run

    return run(options.link_fd, options.name, options.multiuser_server)
