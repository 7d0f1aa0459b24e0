"""Start the daemon: find errors before the fork, claim the pipe directory, and wait in the parent until it is ready.

    pympsd -d                    the parent                        the child
      _prepare                     settings, devices, policies, configuration file; the directory is claimed last,
                                   because an error in this start must not end a daemon that runs
      fork ----------------------> waits on a pipe                   a session of its own; runs the daemon
                                   READY: exit 0  <----------------- both sockets accept, keeper started
                                   REPORTED, or end of file: exit 1   it could not start

Every error of `_prepare` is a PympsdError, or a ValueError of a setting. `_report` alone turns it into a text and an
exit status: 1, or the number of the CUDA result if CUDA_VISIBLE_DEVICES is wrong. Only a BadOption goes to the
command line, which reports all of them.
"""

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Callable, Sequence

from attrs import evolve

from pympsd.channel.attached_file import text_of
from pympsd.channel.own_libraries import remove_routing
from pympsd.cli.options import DROP_IN_NAME, OWN_NAME, BadOption, Options
from pympsd.configuration.plan import FileContext, Plan
from pympsd.configuration.reader import BadFile, read_plan
from pympsd.devices.discovery import Machine, visible_machine
from pympsd.devices.driver_probe import ask_driver, find_driver_server
from pympsd.devices.state_folder import add_machine_file, unusable_directory
from pympsd.devices.visible import DuplicateDevice, NoVisibleDevice
from pympsd.errors import InputError, PympsdError, StartError
from pympsd.journal.files import LogFile
from pympsd.journal.line_format import Dialect
from pympsd.journal.setup import Journal
from pympsd.process.links import check_links
from pympsd.process.title import show_as
from pympsd.process.version import STATIC_SINCE
from pympsd.service.files.pipe_directory import AlreadyRunning, PipeDirectory, Unusable
from pympsd.service.metrics import end, listen
from pympsd.service.run import DaemonSetup, run
from pympsd.state_machine.limit_resolution import default_limits
from pympsd.state_machine.partitions import NO_STATIC_MODE
from pympsd.state_machine.state.turns import TurnPolicy, order
from pympsd.takeover.directory_claim import CannotReplace, claim, replace
from pympsd.takeover.state_file import list_lost_in_protocol_2, partitions_left, trace_left
from pympsd.vocabulary import files
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import ALL_DEVICES
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.settings import (
    SCHEDULING_POLICIES,
    SCHEDULING_POLICY,
    TURN_POLICIES,
    TURN_POLICY,
    Settings,
    add_shares,
    check_executor_settings,
    load_policy,
)
from pympsd.vocabulary.variables import BadSetting

READY = b"."
CONNECT_HINT = "To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY="
REPORTED = b"!"
"""The byte that the child sends when it has reported why it could not start, and is ending."""
SERVER_NAMES = {OWN_NAME: "pympsd-server", DROP_IN_NAME: "nvidia-cuda-mps-server"}
"""The names of server processes, by the name under which the daemon is started."""


def start_daemon(options: Options, protocol: int = 2) -> int:
    """Start the daemon; return the exit status of this process (of the parent, in the background).

    Raise BadOption for an option that the machine does not allow.
    """
    foreground = options.start == "foreground"
    if not foreground:
        # Do not inherit the caller's pipes: a caller that waits until its pipe is closed must not wait for the
        # daemon.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # Servers and the keeper inherit parts of this environment, and programs under pympsd-run may start daemons.
    unrouted = remove_routing(os.environ)
    os.environ.clear()
    os.environ.update(unrouted)
    try:
        prepared = _prepare(options, foreground, protocol)
    except BadOption:
        raise
    except (PympsdError, ValueError) as error:
        return _report(error, options)
    if not foreground:
        return _background(prepared, options.shown)
    sys.stdout.flush()
    show_as(options.shown)
    return _run(prepared, ready=lambda: _print_how_to_connect(prepared))


def _prepare(options: Options, foreground: bool, protocol: int) -> DaemonSetup:
    """Prepare everything that the daemon needs to start, and claim its directory; raise PympsdError or ValueError."""
    settings = _read_settings(options, protocol)
    machine = visible_machine(settings, ask_driver, lambda: find_driver_server(settings.vendor_server, os.environ))
    settings = evolve(settings, backend=machine.backend, vendor_server=machine.vendor_server)
    _check_machine(options, machine, protocol)
    turn_policy = _policies(machine)
    configuration, plan = _configuration(options, settings, machine, protocol) if options.apply else (None, None)
    directory, metrics, complaint = _claim_directory(options, settings, machine, protocol)
    settings = _complain_of_settings(settings, machine, complaint)
    return DaemonSetup(
        settings,
        machine,
        directory,
        _open_journal(settings, foreground, protocol),
        SERVER_NAMES[options.name],
        options.multiuser,
        options.terminate_by_reset,
        protocol,
        bool(options.static),
        frozenset(options.start_flags),
        configuration,
        plan.rules if plan else None,
        metrics,
        turn_policy,
    )


def _report(error: Exception, options: Options) -> int:
    """Report why the daemon does not start; return the exit status."""
    status, text = 1, str(error)
    match error:
        case AlreadyRunning():
            print("An instance of this daemon is already running")
        case Unusable():
            print(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={error.directory}")
        case CannotReplace():
            text = f"--replace: {error}"
        case BadFile():
            text = "\n".join(problem.render(options.apply) for problem in error.problems)
        case NoVisibleDevice():
            status = Result.ERROR_NO_DEVICE
        case DuplicateDevice():
            status = Result.ERROR_INVALID_DEVICE
    return _complain(text, status) if text else status


def _read_settings(options: Options, protocol: int) -> Settings:
    """Return the settings of the environment and the command line, which takes precedence."""
    if options.multiuser and os.geteuid() != 0:
        raise StartError("-multiuser-server: only root can serve other users; start without it for your own")
    settings = Settings.from_environment(add_machine_file(os.environ))
    if protocol == 3 and os.geteuid() == 0 and not os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        settings = evolve(settings, pipe_directory=files.SYSTEM_PIPE_DIRECTORY)
    if options.driver:
        settings = evolve(settings, driver=options.driver)
    if options.dialect:
        settings = evolve(settings, log_dialect=options.dialect)
    if options.users:
        settings = evolve(settings, users=options.users)
    if options.multiuser and settings.users == "together":
        raise StartError(
            "-multiuser-server starts one server for all users, but --users together (or PYMPSD_USERS) one for each "
            "user; choose one of the two"
        )
    settings = add_shares(settings, options.user_shares, protocol)
    if options.overtaking_seconds is not None:
        settings = evolve(settings, overtaking_seconds=options.overtaking_seconds)
    return settings


def _check_machine(options: Options, machine: Machine, protocol: int) -> None:
    """Raise BadSetting, BadOption or StartError if servers on these devices cannot fulfil the settings."""
    if options.static and protocol == 2 and machine.backend == "vendor":
        raise BadOption(f"{options.static}: {NO_STATIC_MODE}")
    if options.static and protocol == 2 and machine.driver < STATIC_SINCE:
        raise BadOption(f"there is no option {options.static} with driver {machine.driver}", unknown=options)
    for settings_machine in (machine, machine.instead):
        if settings_machine is not None:
            check_executor_settings(os.environ, settings_machine.backend)
    if options.multiuser and not all(device.is_volta_or_newer for device in machine.devices):
        raise StartError(
            "-multiuser-server: before Volta all clients of a server share one address space; several users can "
            "share a server on Volta or newer devices only (CUDA_VISIBLE_DEVICES selects)"
        )


def _claim_directory(
    options: Options, settings: Settings, machine: Machine, protocol: int
) -> tuple[PipeDirectory, socket.socket | None, str]:
    """Claim the pipe directory; return it, the socket of --metrics, and a complaint about the socket.

    Check everything that may fail first, because an error in this start must not end the running daemon.
    """
    refusal = _refuse_loss(options, settings, machine, protocol)
    if refusal and options.replace:
        raise StartError(refusal)
    if options.metrics and options.replace:
        _check_metrics(options.metrics, settings.pipe_directory)
    trace = trace_left(settings.pipe_directory)
    directory = (replace if options.replace else claim)(settings.pipe_directory)
    if refusal:
        raise StartError(refusal)
    if trace:
        _complain(f"the trace {trace} ended with the daemon before: begin another with 'trace start'", 0)
    return directory, *(_metrics(options, settings.pipe_directory) if options.metrics else (None, ""))


def _complain_of_settings(settings: Settings, machine: Machine, complaint: str) -> Settings:
    """Report wrong settings that do not prevent the start; return the settings with all complaints."""
    unusable = unusable_directory(settings.emulated_devices) if machine.backend == "emulated" else ""
    settings = evolve(settings, complaints=(*settings.complaints, *filter(None, (unusable, complaint))))
    for text in (*settings.complaints, *default_limits(machine.devices, settings.memory_limits)[1]):
        _complain(text, 0)
    _warn_of_owner("CUDA_MPS_PIPE_DIRECTORY", settings.pipe_directory)
    _warn_of_owner("CUDA_MPS_LOG_DIRECTORY", settings.log_directory)
    return settings


def _policies(machine: Machine) -> TurnPolicy:
    """Return the turn policy. Raise BadSetting if it, or the scheduling policy of executors, cannot be loaded."""
    policy, turns = os.environ.get(SCHEDULING_POLICY), os.environ.get(TURN_POLICY)
    if policy and machine.backend != "emulated":
        raise BadSetting(f"{SCHEDULING_POLICY} is for emulated devices; a GPU has its own scheduler")
    if policy:
        load_policy(SCHEDULING_POLICIES, SCHEDULING_POLICY, policy)
    # Do not look the default policy up, because that takes longer than everything else here.
    turn_policy: TurnPolicy = load_policy(TURN_POLICIES, TURN_POLICY, turns) if turns else order()
    return turn_policy


def _check_metrics(address: str, pipe_directory: str) -> None:
    """Raise BadSetting for an impossible address of --metrics, before the running daemon is replaced.

    An address in use is accepted, because the running daemon itself may use it.
    """
    try:
        end(listen(address, pipe_directory), handed_over=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise BadSetting(_cannot_listen(address, error)) from None


def _metrics(options: Options, pipe_directory: str) -> tuple[socket.socket | None, str]:
    """Return the socket of --metrics; if that fails after a replacement, None and the reason. Raise BadSetting."""
    try:
        return listen(options.metrics, pipe_directory), ""
    except OSError as error:
        reason = _cannot_listen(options.metrics, error)
        if not options.replace:
            raise BadSetting(reason) from None
        return None, f"{reason}; the daemon starts without metrics"


def _cannot_listen(address: str, error: OSError) -> str:
    return f"--metrics {address}: {error.strerror or error}"


def _configuration(
    options: Options, settings: Settings, machine: Machine, protocol: int
) -> tuple[tuple[str, bytes], Plan]:
    """Return the path and the text of the configuration file, and its plan; raise InputError."""
    try:
        text = text_of([options.apply])
    except LookupError as error:
        raise InputError(error.args[0]) from None
    context = FileContext(
        machine.devices,
        os.geteuid(),
        options.multiuser,
        settings.pipe_directory,
        protocol,
        settings.backend != "vendor",
    )
    plan, warnings = read_plan(text, context)
    for warning in warnings:
        _complain(warning.render(options.apply), 0)
    return (os.path.abspath(options.apply), text), plan


def _defaults(settings: Settings, machine: Machine) -> Limits:
    limits, _ = default_limits(machine.devices, settings.memory_limits)
    return Limits({ALL_DEVICES: settings.thread_percentage}, limits, settings.client_priority)


def _refuse_loss(options: Options, settings: Settings, machine: Machine, protocol: int) -> str:
    """Return why this daemon would lose state of the earlier one; empty if it would not."""
    is_static = protocol == 2 and options.static
    lost = list_lost_in_protocol_2(settings.pipe_directory, _defaults(settings, machine)) if protocol == 2 else []
    partitions = [] if is_static else partitions_left(settings.pipe_directory)
    if lost:
        problem = f"spoke protocol 3, and protocol 2 has no {', '.join(lost)}: start with -p 3"
    elif partitions:
        unit = "partition" if len(partitions) == 1 else "partitions"
        problem = f"has the static SM {unit} {', '.join(partitions)}: start with -S in protocol 2"
    else:
        return ""
    state = os.path.join(settings.pipe_directory, files.STATE)
    return (
        f"the daemon before {problem}, or give these up: end that daemon first (pympsd -q); only if it was killed, "
        f"remove {state}, which ends its servers"
    )


def _complain(reason: str, status: int) -> int:
    sys.stderr.write(f"{reason}\n")
    return int(status)


def _warn_of_owner(variable: str, folder: str) -> None:
    """Warn that a directory belongs to another user, who can replace the daemon's files."""
    with contextlib.suppress(OSError):
        owner = os.stat(folder).st_uid
        if owner not in (0, os.geteuid()):
            _complain(f"{variable}={folder} belongs to user {owner}, who can replace what the daemon has there", 0)


def _open_journal(settings: Settings, foreground: bool, protocol: int) -> Journal:
    """Return the daemon's logs; warn if their files cannot be opened, and continue without them."""
    directory, dialect = settings.log_directory, Dialect(settings.log_dialect)
    try:
        check_links(directory)
        # Only the last component is created, as with the pipe directory.
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
        control = LogFile(None if foreground else os.path.join(directory, files.CONTROL_LOG))
        server = _server_log(os.path.join(os.path.abspath(directory), files.SERVER_LOG), protocol)
    except OSError as error:
        # The line is as recorded; the reason is pympsd's addition.
        print(f"Warning: Failed writing log files to directory [{directory}]. No logs will be available.")
        _complain(f"{error.filename}: {error.strerror}; choose one in CUDA_MPS_LOG_DIRECTORY", 0)
        return Journal(LogFile(None) if foreground else None, None, dialect)
    return Journal(control, server, dialect, os.path.abspath(directory))


def _server_log(path: str, protocol: int) -> LogFile:
    """Return the log of all servers.

    In protocol 3 each server has its own log, and this one gets only the other lines.
    """
    folder = os.path.dirname(path)
    if protocol == 3 and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
    return LogFile(path, late=protocol == 3)


def _print_how_to_connect(daemon: DaemonSetup) -> None:
    """Print protocol 3's line for the user who starts a daemon, which explains how to connect."""
    if daemon.protocol == 3:
        print(f"{CONNECT_HINT}{daemon.directory.path}", flush=True)


def _background(daemon: DaemonSetup, show: Sequence[str]) -> int:
    """Run the daemon in a child process; in the parent, wait until it is ready, and exit."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        answer = os.read(reader, 1)
        if not answer:
            sys.stderr.write("the control daemon ended before it was ready; control.log may have the reason\n")
        # The child owns everything now, so exit without running this copy's cleanup handlers.
        elif answer == READY:
            _print_how_to_connect(daemon)
        sys.stderr.flush()
        os._exit(0 if answer == READY else 1)
    os.close(reader)
    os.setsid()
    _release_terminal(keep_stderr=True)
    show_as(show)

    pending = [writer]

    def notify(status: bytes) -> None:
        while pending:
            os.write(writer, status)
            os.close(pending.pop())

    def ready() -> None:
        _release_terminal(keep_stderr=False)
        notify(READY)

    status = _run(daemon, ready, reported=lambda: notify(REPORTED))
    sys.stderr.flush()
    # Change the name: scripts look for the daemon's name in ps right after a quit, and PID 1 may take seconds to reap
    # it.
    show_as(["exited"])
    os._exit(status)


def _run(daemon: DaemonSetup, ready: Callable[[], None], reported: Callable[[], None] = lambda: None) -> int:
    try:
        return run(daemon, ready)
    except Unusable as error:
        status = _complain(str(error), 1)
        sys.stderr.flush()
        reported()
        return status


def _release_terminal(*, keep_stderr: bool) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1) if keep_stderr else (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
