"""An executor's main program: set up the process, open the device its owner names, serve until the link ends."""

from __future__ import annotations

import argparse
import gc
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from pympsd.process.build import build_id
from pympsd.process.title import show_as
from pympsd.vocabulary.results import Result
from pympsd.wire.errors import RemoteError
from pympsd.wire.executor_messages import ExecutorFailed, ExecutorReady, ExecutorSetup, MemoryAudited
from pympsd_server.backends.interface import BackendError
from pympsd_server.executor.attachments import Attachments
from pympsd_server.executor.device_memory.memory_report import MemoryReporter
from pympsd_server.executor.link import Link
from pympsd_server.executor.malloc_settings import keep_freed_memory

if TYPE_CHECKING:
    from pympsd_server.backends.interface import Device

_SWITCH_SECONDS: Final = 0.0005
"""The interpreter's switch interval, in seconds: a client's call must not wait 5 ms for a kernel."""
_FIRST_VICTIM: Final = "1000"


def main(arguments: Sequence[str]) -> NoReturn:
    """Run until the owner's link ends; exit status 1 if there is no device, or the owner violates the protocol."""
    parser = argparse.ArgumentParser(prog="pympsd-executor", description="Owns one device. Started by its server.")
    parser.add_argument("--link-fd", type=int, required=True, help="inherited socket to the owner")
    options = parser.parse_args(arguments)
    show_as([parser.prog])  # not the server's name: pgrep with that finds the server alone
    _settle_in()
    link = Link(socket.socket(fileno=options.link_fd))
    try:
        status = _serve(link)
    except RemoteError as error:
        with suppress(OSError):  # the daemon that read it may have been killed
            print(f"pympsd executor: the owner broke the rules: {error}", file=sys.stderr, flush=True)
        status = 1
    # No process waits for an answer any more: exit, even if kernels run.
    os._exit(status)


def _settle_in() -> None:
    keep_freed_memory()
    sys.setswitchinterval(_SWITCH_SECONDS)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        # A device's memory is this process's: out of memory, kill it before the machine's other work.
        file.write(_FIRST_VICTIM)


def _serve(link: Link) -> int:
    setup = link.first()
    if setup is None:
        return 0
    if not isinstance(setup, ExecutorSetup):
        raise RemoteError(f"{type(setup).__name__} before ExecutorSetup")
    try:
        device = _open(setup)
        reporter = MemoryReporter(device, link.send) if setup.reports_memory else None
        report = reporter.report if reporter is not None else lambda: None
        attachments = Attachments(device, setup.generation, link.send, setup.ordinal, setup.device.name, report)
    except BackendError as error:
        link.send(ExecutorFailed(error.code, error.reason))
        link.drain()
        return 1
    gc.freeze()  # loaded objects stay: later collections skip them
    link.send(ExecutorReady(os.getpid(), attachments.workers.description))
    if reporter is not None:
        reporter.start()
    device.audit_memory(lambda *audited: link.send(MemoryAudited(*audited)))
    link.watch(attachments.handle)
    return 0


def _open(setup: ExecutorSetup) -> Device:
    if setup.build != build_id():
        raise BackendError(
            Result.ERROR_NOT_SUPPORTED,
            f"this executor is of build {build_id()}, its owner of {setup.build}: start the owner anew",
        )
    # NumPy reads this when it is imported; a single compute thread needs no thread pool.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from pympsd_server.backends.selection import open_device

    return open_device(setup)
