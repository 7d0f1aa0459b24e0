"""The command ``pympsd-smi [--argv0=NAME] OPTION ...``."""

from __future__ import annotations

import os
import sys

from pympsd.devices.machine import VARIABLE, BadMachine
from pympsd.devices.state_folder import unusable_directory, with_machine_file
from pympsd.smi import changes, queries, report, summary
from pympsd.smi.machine import Machine, NoSuchDevice
from pympsd.smi.options import Action, Refused, Request, parse, usage
from pympsd.version import CUDA_VERSION, DRIVER_VERSION, VERSION

NO_MACHINE = 9
NOT_FOUND = 6
"""Exit statuses, as nvidia-smi's manual page lists them."""
NO_OUTPUT = 74
"""As that of pympsd."""
WITHOUT_PROCESSES = (Action.LIST, Action.SET_MODE)
"""Actions that do not show processes, and so need not wait for the lock of the machine's folder."""


def main(arguments: list[str]) -> int:
    """Carry out the arguments; return the exit status."""
    name = "pympsd-smi"
    if arguments and arguments[0].startswith("--argv0="):
        name = os.path.basename(arguments[0].partition("=")[2])
        arguments = arguments[1:]
    try:
        if arguments[:1] == ["memory-limits"]:
            from pympsd.smi import memory_limits  # only this asks a daemon

            text, status = memory_limits.answer(arguments[1:], name)
        else:
            text, status = _answer(parse(arguments), name)
    except Refused as error:
        text, status = error.text.replace("{program}", name), error.status
    except NoSuchDevice:
        text, status = "No devices were found\n", NOT_FOUND
    except BadMachine as error:
        sys.stderr.write(f"{name}: {error}\n")
        return NO_MACHINE
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # as `nvidia-smi | head -1` ends
            sys.stderr.write(f"{name}: standard output: {error.strerror}: not all could be printed\n")
            return NO_OUTPUT
    return status


def _answer(request: Request, name: str) -> tuple[str, int]:
    match request.action:
        case Action.HELP:
            return usage(name), 0
        case Action.VERSION:
            return _version(), 0
    text = with_machine_file(os.environ).get(VARIABLE) or "H200"
    if complaint := unusable_directory(text):
        sys.stderr.write(f"{name}: {complaint}\n")
    machine = Machine.of(text, request.action not in WITHOUT_PROCESSES)
    devices = machine.chosen(request.ids)
    match request.action:
        case Action.LIST:
            return summary.listing(devices), 0
        case Action.QUERY:
            return report.report(machine, devices, request.value), 0
        case Action.QUERY_GPU:
            return queries.of_devices(machine, devices, request.value, request.form), 0
        case Action.QUERY_APPS:
            return queries.of_processes(devices, request.value, request.form), 0
        case Action.SET_MODE:
            return changes.set_mode(machine, devices, request.value)
        case Action.RESET:
            return changes.reset(devices)
        case _:
            return summary.table(devices), 0


def _version() -> str:
    cuda = f"{CUDA_VERSION // 1000}.{CUDA_VERSION % 1000 // 10}"
    return f"PYMPSD-SMI version  : {VERSION}\nDRIVER version      : {DRIVER_VERSION}\nCUDA Version        : {cuda}\n"
