"""Run the program `pympsd`: start the daemon, print help or the version, or give a daemon commands.

Imports almost nothing until the daemon is started (docs/performance.md).
"""

import posix
import sys

from pympsd.cli import control_client
from pympsd.cli.options import DROP_IN_NAME, OWN_NAME, PROTOCOL_VARIABLE, BadOption, Options, list_options
from pympsd.errors import BAD_USAGE, InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

TITLE = "CUDA MPS Control for Linux/Unix/QNX."
_DEPENDENCIES = ("attrs", "msgspec", "numpy", "structlog", "trio")
"""The third-party packages that the daemon imports."""


def main(arguments: "Sequence[str]") -> int:
    """Carry out the arguments; return the exit status."""
    _fill_standard_descriptors()
    try:
        options = Options(arguments)
        protocol = _protocol(options)
    except BadOption as error:
        return _refuse(error)
    if options.text == "h":
        return control_client.print_text(_help(options.name, protocol))
    if options.text == "v":
        from pympsd.process.version import CUDA_VERSIONS, VERSION

        lines = (
            f"{TITLE} Binary version: {CUDA_VERSIONS[_driver(options)]}",
            f"pympsd {VERSION}, an open reimplementation (Apache-2.0)\n",
        )
        version = "\n".join(lines)
        return control_client.print_text(version)
    if options.install:
        return _install(options)
    if options.start:
        try:
            return _start(options, protocol)
        except BadOption as error:
            return _refuse(error)
    if options.words[:1] == ["top"]:
        from pympsd.top.program import main as top

        return top(options.words[1:], options.timeout, options.trust_daemon)
    if options.words[:1] == ["routed-run"] and len(options.words) > 1:  # the launcher pympsd-run adds this word
        from pympsd.cli.routed_run import main as run

        return run(options.words[1:])
    if options.words[:1] == ["plot"]:
        from pympsd.plot.program import main as plot

        return plot(options.words[1:])
    if options.words[:1] == ["machine"]:
        from pympsd.cli.machine import main as machine

        return machine(options.words[1:])
    if options.quit and not options.words and not options.apply:
        # With -q and a daemon of protocol 2, the commands come from standard input, because -q itself does not send
        # one.
        if_protocol = b"" if options.quit == "--quit" else b"3"
        return control_client.give_commands(
            _quit(options), options.strict, options.timeout, if_protocol, _sendable(options)
        )
    words = ["config", "apply", options.apply] if options.apply else options.words
    if "--help" in words[1:]:
        from pympsd.commands.manual import help_of

        if text := help_of(words):
            return control_client.print_text(text)
    if words[:1] == ["trace"] and (option := next((word for word in words[1:] if word.startswith("-")), "")):
        return _bad_option_of_trace(option)
    if words[:2] == ["trace", "start"] and len(words) > 2 and not words[2].startswith("/"):
        # The daemon will have another working directory.
        words = [*words[:2], f"{posix.getcwd()}/{words[2]}", *words[3:]]
    return control_client.give_commands(words, options.strict, options.timeout, sendable=_sendable(options))


def end(status: int) -> "NoReturn":
    """End the program.

    If possible, skip the interpreter's shutdown, which takes a tenth of a short command's time.
    """
    if "atexit" not in sys.modules:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):  # AttributeError: the stream does not exist
            sys.exit(status)  # the interpreter's shutdown reports the error
        posix._exit(status)
    sys.exit(status)


def _refuse(error: BadOption) -> int:
    """Report a bad option; return the exit status."""
    sys.stderr.write(_bad_option(error))
    if error.unknown is None or error.unknown.name == OWN_NAME or _is_of_protocol_3(error.unknown):
        return BAD_USAGE
    # Recorded: the vendor's program prints its help and exits with status 0.
    return control_client.print_text(f"Unrecognized option \n{_help(OWN_NAME)}")


def _sendable(options: Options) -> int:
    """Return the kind of lines to send to another user's daemon.

    Under the vendor's names it is all lines, as with the vendor's tool.
    """
    if options.trust_daemon:
        return control_client.FILES
    return control_client.LINES if options.name == DROP_IN_NAME else control_client.QUERIES


def _bad_option(error: BadOption) -> str:
    """Return the sentence about a bad option.

    For an unknown option the sentence suggests the option that was probably meant.
    """
    option = "" if error.unknown is None else error.unknown.unknown
    if not option:
        return f"{error}\n"
    from pympsd.vocabulary.mistyped import find_similar

    similar = find_similar(option, list_options())
    if similar:
        return f"{error}; did you mean {similar}?\n"
    return f"{error}; --help lists them, and those of a command stand after it\n"


def _bad_option_of_trace(option: str) -> int:
    """Refuse an option of `trace` other than --help, because trace would use it as part of a file's name."""
    from pympsd.vocabulary.mistyped import suggest

    sys.stderr.write(f"pympsd trace: there is no option {option}{suggest(option, ('--help',))}\n")
    return BAD_USAGE


def _quit(options: Options) -> "list[str]":
    """Return the command that ends the daemon: --timeout limits the wait for clients; --force alone does not wait."""
    if options.is_timeout_given:
        return ["quit", "-t", str(int(options.timeout))]
    return ["quit", "-t", "0"] if options.force else ["quit"]


def _protocol(options: Options) -> str:
    """Return the protocol of a daemon that would be started here.

    Raise BadOption if the command line starts a daemon and the protocol is wrong; otherwise only report that it is.
    """
    try:
        protocol = options.choose_protocol(
            posix.environ.get(PROTOCOL_VARIABLE.encode(), b"").decode(errors="replace")
        )
    except BadOption as error:
        if options.start:
            raise
        sys.stderr.write(f"{error}\n")
        return options.protocol
    if options.start and not options.text:
        options.check_start(protocol)
    return protocol


def _is_of_protocol_3(options: Options) -> bool:
    """Return whether protocol 3 is requested, or used by the daemon that receives the command."""
    requested = posix.environ.get(PROTOCOL_VARIABLE.encode(), b"").decode(errors="replace") or options.protocol
    if requested == "3" or options.start:
        return requested == "3"
    from pympsd.cli.found_daemon import look_for_daemon

    return look_for_daemon()[1] == "3"


def _start(options: Options, protocol: str) -> int:
    """Start a daemon; return the exit status."""
    _find_dependencies()
    import gc

    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 1000)  # modules stay: collecting the old ones with each new one takes 15 ms
    from pympsd.cli.daemonize import start_daemon

    gc.freeze()
    gc.set_threshold(young, middle, old)
    if options.overlooked:
        words = " ".join(options.overlooked)
        sys.stderr.write(f"{words}: ignored: -d and -f take no command; run it separately\n")
    if options.static and protocol == "3":
        sys.stderr.write(f"{options.static} is not needed: protocol 3 has no mode for static partitions\n")
    return start_daemon(options, int(protocol))


def _install(options: Options) -> int:
    """Carry out --install-extras or --link-nvidia-names; return the exit status."""
    import os
    import sysconfig
    from pathlib import Path

    from pympsd.cli import extras

    folder = Path(os.path.abspath(options.folder))
    launcher = os.path.realpath(options.launcher) if options.launcher else sysconfig.get_path("scripts") + "/pympsd"
    launchers = Path(launcher).parent
    try:
        if options.install == "--link-nvidia-names":
            extras.link_nvidia_names(folder, launchers)
            return 0
        installed = extras.install(folder, launchers)
    except extras.CannotInstall as error:
        sys.stderr.write(f"{options.install}: {error}\n")
        return 1
    text = "".join(
        f"{file}\n" if aside is None else f"{file} (what was there before is now {aside})\n"
        for file, aside in installed
    )
    return control_client.print_text(text)


def _driver(options: Options) -> int:
    """Return the driver branch that a daemon started here would have; report wrong settings."""
    from pympsd.process.version import DRIVER

    if options.driver:
        return options.driver
    environment = {
        name.decode(errors="replace"): value.decode(errors="replace") for name, value in posix.environ.items()
    }
    from os.path import lexists

    from pympsd.vocabulary.files import machine_places

    names = ("PYMPSD_DRIVER", "PYMPSD_EMULATED_DEVICES", "PYMPSD_BACKEND")
    if not any(map(environment.get, names)) and not any(map(lexists, machine_places(environment))):
        return DRIVER  # avoids imports that take longer than everything else here
    _find_dependencies()
    try:
        from pympsd.devices.discovery import find_expected_driver
        from pympsd.devices.state_folder import add_machine_file
        from pympsd.vocabulary.settings import Settings

        return find_expected_driver(Settings.from_environment(add_machine_file(environment)))
    except ImportError:
        return DRIVER
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return DRIVER


def _find_dependencies() -> None:
    """Add the interpreter's site directories if a dependency is not next to pympsd, as after pip's --target or
    --user.
    """
    from importlib.machinery import PathFinder

    if sys.flags.no_site and not all(map(PathFinder.find_spec, _DEPENDENCIES)):
        import site

        site.main()


def _fill_standard_descriptors() -> None:
    """Open /dev/null for a closed descriptor 0, 1 or 2; otherwise the next opened file would get that number."""
    try:
        while (fd := posix.open("/dev/null", posix.O_RDWR)) <= 2:
            pass
        posix.close(fd)
    except OSError:
        return  # without /dev/null, continue with the open descriptors
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it stays to the end of the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _help(name: str, protocol: str = "2") -> str:
    """Return the text of --help, for the protocol of the running daemon or else the requested one."""
    from pympsd.cli.found_daemon import look_for_daemon
    from pympsd.commands.manual import usage

    line, running_protocol = look_for_daemon()
    daemon_line = f"daemon {line}" if name == OWN_NAME else ""
    return f"{TITLE}\n{usage(name, 3 if (running_protocol or protocol) == '3' else 2)}{daemon_line}"
