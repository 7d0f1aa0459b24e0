"""The program behind `pympsd`: start the daemon, print help or the version, or give a daemon commands.

Imports almost nothing until the daemon is started (docs/performance.md).
"""

import posix
import sys

from pympsd import control_client
from pympsd.options import BAD_USAGE, OWN_NAME, BadOption, Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

TITLE = "CUDA MPS Control for Linux/Unix/QNX."


def main(arguments: "Sequence[str]") -> int:
    """Carry out the arguments; return the exit status."""
    _fill_standard_descriptors()
    try:
        options = Options(arguments)
    except BadOption as error:
        sys.stderr.write(f"{error}\n")
        if not error.unknown:
            return BAD_USAGE
        return control_client.print_text(f"Unrecognized option \n{_help(OWN_NAME)}")
    if options.text == "h":
        return control_client.print_text(_help(options.name))
    if options.text == "v":
        return control_client.print_text(_version())
    if options.start:
        from pympsd.daemonize import start_daemon

        if options.overlooked:
            words = " ".join(options.overlooked)
            sys.stderr.write(f"{words}: overlooked, for -d and -f take no command; give it by itself\n")
        return start_daemon(options)
    return control_client.give_commands(options.words, options.strict, options.timeout)


def _fill_standard_descriptors() -> None:
    """Open /dev/null in place of a closed 0, 1 or 2: the next file opened would be taken for one of them."""
    try:
        while (fd := posix.open("/dev/null", posix.O_RDWR)) <= 2:
            pass
        posix.close(fd)
    except OSError:
        return  # no /dev/null here: continue with what there is
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it stays to the end of the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _version() -> str:
    from pympsd.version import CUDA_VERSION, VERSION

    return f"{TITLE} Binary version: {CUDA_VERSION}\npympsd {VERSION}, an open reimplementation (Apache-2.0)\n"


def _help(name: str) -> str:
    from pympsd.commands.manual import usage

    found = f"daemon {control_client.found_daemon()}" if name == OWN_NAME else ""
    return f"{TITLE}\n{usage(name)}{found}"
