"""Run the command ``pympsd-smi [--argv0=NAME] OPTION ...``."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import TextIO

from attrs import evolve

from pympsd.devices.machine import BadMachine
from pympsd.devices.state_folder import unusable_directory
from pympsd.errors import BAD_USAGE
from pympsd.process.version import DRIVER, VERSION, cuda_version, driver_version
from pympsd.smi import changes, monitors, queries, report, source, summary
from pympsd.smi.machine import MonitoredMachine, NoSuchDevice
from pympsd.smi.options import (
    NOT_SUPPORTED,
    UNSUPPORTED_COMMANDS,
    Action,
    SmiRequest,
    UnknownOption,
    UnsupportedRequest,
    parse,
    usage,
)
from pympsd.smi.queries import DEVICE_ALIASES, DEVICE_FIELDS, PROCESS_ALIASES, PROCESS_FIELDS

NO_MACHINE = 9
NOT_FOUND = 6
"""Exit statuses, as nvidia-smi's manual page lists them."""
NO_OUTPUT = 74
"""The exit status if the output could not be written, the same as pympsd's."""
VENDORS_NAME = "nvidia-smi"
"""The name of the link under which the program's refusals are those of nvidia-smi."""
INTERRUPTED = 130
"""The exit status after SIGINT, as a shell reports it."""
WITHOUT_PROCESSES = (Action.LIST, Action.SET_MODE, Action.SET_PERSISTENCE)
"""The actions that do not show processes, and therefore need not wait for the lock of the machine's folder."""
Answer = tuple[str, int]
"""A text and the exit status; with a status other than 0, the text is a message for standard error."""


def main(arguments: list[str]) -> int:
    """Run ``pympsd-smi`` with these arguments and return its exit status.

    The output goes to standard output, or to the file that ``-f`` names; refusals and failures go to standard error.
    With ``-l``, ``dmon`` or ``pmon`` it runs until the count of ``-c`` is reached, or until SIGINT.

    Returns:
        0, or a status of nvidia-smi's manual page: 2 to 4 and 255 for a refused request, 6 if a device does not
        exist, 9 if the machine cannot be read. Under pympsd's own name, 2 for an unknown option. 74 if the output
        could not be written, 130 after SIGINT.
    """
    name = "pympsd-smi"
    if arguments and arguments[0].startswith("--argv0="):
        name = os.path.basename(arguments[0].partition("=")[2])
        arguments = arguments[1:]
    status = 0
    with ExitStack() as files:
        try:
            path, answers = _answers(arguments, name)
            output: TextIO = files.enter_context(open(path, "w")) if path else sys.stdout
            for text, status in answers:
                if failure := _write(text, sys.stderr if status else output, path):
                    break
            else:
                return status
        except UnsupportedRequest as error:
            if isinstance(error, UnknownOption) and name != VENDORS_NAME:
                sys.stderr.write(f"{name}: {error.own_text}")
                return BAD_USAGE
            text, status = error.text.replace("{program}", name), error.status
            failure = _write(text, sys.stderr if status else sys.stdout)
        except NoSuchDevice:
            failure, status = _write("No devices were found\n", sys.stderr), NOT_FOUND
        except BadMachine as error:
            failure, status = _write(f"{name}: {error}\n", sys.stderr), NO_MACHINE
        except OSError as error:  # the file of -f cannot be opened
            failure = f"{error.filename}: {error.strerror}"
        except KeyboardInterrupt:
            return INTERRUPTED
    if failure and failure != _CLOSED:
        sys.stderr.write(f"{name}: {failure}: not all could be printed\n")
        return NO_OUTPUT
    return status


_CLOSED = "closed"
"""The value of `_write` for an output whose reader has ended, as in `nvidia-smi | head -1`."""


def _write(text: str, output: TextIO, path: str = "") -> str:
    """Write a text; return the reason if it could not be written, otherwise an empty text."""
    try:
        output.write(text)
        output.flush()
    except OSError as error:
        if not path:
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        return _CLOSED if isinstance(error, BrokenPipeError) else f"{path or 'standard output'}: {error.strerror}"
    return ""


def _answers(arguments: list[str], name: str) -> tuple[str, Iterator[Answer]]:
    """Return the path for the answers, empty for standard output, and the answers. Raise UnsupportedRequest."""
    command, *options = arguments or [""]
    if command == "memory-limits":
        from pympsd.smi import memory_limits  # imported here, because only this sends commands to a daemon

        return "", iter([memory_limits.answer(options, name)])
    if command in monitors.COMMANDS:
        monitor = monitors.parse(arguments)
        return ("", iter([(usage(name), 0)])) if monitor is None else (monitor.file, _reports(monitor, name))
    if command == "topo":
        return "", iter([(monitors.topology(options, _machine(name, False).devices), 0)])
    if command in UNSUPPORTED_COMMANDS:
        raise UnsupportedRequest(f"ERROR: {command} is not supported by emulated GPUs.\n\n", NOT_SUPPORTED)
    request = parse(arguments)
    return request.file, _repeat(request, name)


def _reports(monitor: monitors.Monitor, name: str) -> Iterator[Answer]:
    """Yield the reports of dmon or pmon, one each interval."""
    machine = _machine(name)
    for number in count():
        if number:
            time.sleep(monitor.seconds)
            machine = MonitoredMachine.of(machine.text)
        yield monitors.report(monitor, machine.select(monitor.ids), number), 0
        if number + 1 == monitor.count:
            return


def _repeat(request: SmiRequest, name: str) -> Iterator[Answer]:
    """Yield the answer to a request, repeatedly if the request has an interval."""
    immediate: dict[Action, Callable[[], str]] = {
        Action.HELP: lambda: usage(name),
        Action.VERSION: _version,
        Action.GPU_FIELDS: lambda: queries.fields_help(DEVICE_FIELDS, DEVICE_ALIASES),
        Action.APP_FIELDS: lambda: queries.fields_help(PROCESS_FIELDS, PROCESS_ALIASES),
    }
    if request.action in immediate:
        yield immediate[request.action](), 0
        return
    has_processes = request.action not in WITHOUT_PROCESSES
    machine = _machine(name, has_processes)
    while True:
        yield _answer(request, machine)
        if request.interval is None:
            return
        time.sleep(request.interval)
        machine = MonitoredMachine.of(machine.text, has_processes)
        request = evolve(request, form=request.form | {"noheader"})


def _machine(name: str, has_processes: bool = True) -> MonitoredMachine:
    """Return the machine to show; raise BadMachine."""

    def warn(sentence: str) -> None:
        sys.stderr.write(f"{name}: {sentence}\n")

    text = source.machine(warn)
    if complaint := unusable_directory(text):
        warn(complaint)
    return MonitoredMachine.of(text, has_processes)


def _answer(request: SmiRequest, machine: MonitoredMachine) -> Answer:
    """Return the answer to a request, for the devices that it names."""
    devices = machine.select(request.ids)
    match request.action:
        case Action.LIST:
            return summary.listing(devices), 0
        case Action.QUERY if request.xml:
            from pympsd.smi import xml_report  # imported here, because its imports take time

            return xml_report.report(machine, devices, report.parts(request.value)), 0
        case Action.QUERY:
            return report.report(machine, devices, request.value), 0
        case Action.QUERY_GPU:
            return queries.render_devices(machine, devices, request.value, request.form), 0
        case Action.QUERY_APPS:
            return queries.render_processes(devices, request.value, request.form), 0
        case Action.SET_MODE:
            return changes.set_mode(machine, devices, request.value)
        case Action.SET_PERSISTENCE:
            return changes.set_persistence(devices, request.value)
        case Action.RESET:
            return changes.reset(devices)
        case _:
            return summary.table(devices), 0


def _version() -> str:
    driver, cuda = driver_version(DRIVER), cuda_version(DRIVER)
    return f"PYMPSD-SMI version  : {VERSION}\nDRIVER version      : {driver}\nCUDA Version        : {cuda}\n"
