"""An executor's main program: set up the process, open the device that the owner names, serve until the link ends."""

import argparse
import ctypes
import gc
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from pympsd.errors import RemoteError
from pympsd.process.title import show_as
from pympsd.process.version import build_id
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import BadSetting
from pympsd.wire.executor_messages import ExecutorFailed, ExecutorReady, ExecutorSetup, MemoryAudited
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import BackendError
from pympsd_server.executor.attachments import Attachments
from pympsd_server.executor.link import OwnerLink
from pympsd_server.executor.memory.device_memory import MemoryReporter

_SWITCH_SECONDS: Final = 0.0005
"""The interpreter's switch interval, so that a client's call waits for a kernel less than the default of 5 ms."""
_OOM_SCORE: Final = "1000"
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 256 << 20
_MAPPED_FROM_BYTES: Final = 32 << 20
"""The size above which pieces of memory are mapped separately: the greatest value that glibc accepts (mallopt(3))."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run until the owner's link ends.

    Exit with status 1 if the device cannot be opened, or if the owner violates the protocol.
    """
    parser = argparse.ArgumentParser(prog="pympsd-executor", description="Owns one device. Started by its server.")
    parser.add_argument("--link-fd", type=int, required=True, help="inherited socket to the owner")
    options = parser.parse_args(arguments)
    show_as([parser.prog])  # not the server's name, so that pgrep finds only the server by it
    keep_freed_memory()
    sys.setswitchinterval(_SWITCH_SECONDS)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        # The device's memory is this process's memory. If it runs out, the kernel should kill this process before the
        # machine's other work.
        file.write(_OOM_SCORE)
    link = OwnerLink(socket.socket(fileno=options.link_fd))
    try:
        status = _serve(link)
    except RemoteError as error:
        with suppress(OSError):  # the daemon that read standard error may have been killed
            print(f"pympsd executor: the owner broke the rules: {error}", file=sys.stderr, flush=True)
        status = 1
    # Nobody waits for an answer now, so exit even if kernels run.
    os._exit(status)


def _serve(link: OwnerLink) -> int:
    """Open the device of the setup and serve the owner until the link ends; return the exit status."""
    setup = link.first()
    if setup is None:
        return 0
    if not isinstance(setup, ExecutorSetup):
        raise RemoteError(f"{type(setup).__name__} before ExecutorSetup")
    try:
        if setup.build != build_id():
            raise BackendError(
                Result.ERROR_NOT_SUPPORTED,
                f"this executor is of build {build_id()}, its owner of {setup.build}: restart the owner",
            )
        device = open_device(setup)
        reporter = MemoryReporter(device, link.send) if setup.reports_memory else None
        report = reporter.report if reporter is not None else lambda: None
        attachments = Attachments(device, setup.generation, link.send, setup.ordinal, setup.device.name, report)
    except BackendError as error:
        link.send(ExecutorFailed(error.code, error.reason))
        link.drain()
        return 1
    gc.freeze()  # loaded objects stay, so let later collections skip them
    link.send(ExecutorReady(os.getpid(), attachments.workers.description))
    if reporter is not None:
        reporter.start()
    device.audit_memory(lambda *audited: link.send(MemoryAudited(*audited)))
    link.watch(attachments.handle)
    return 0


def open_device(setup: ExecutorSetup) -> Device:
    """Open the device that a setup describes. Raise BackendError, which names the backend if this build lacks it."""
    if setup.backend == "emulated":
        from pympsd_server.backends.emulated.device.device import EmulatedDevice
        from pympsd_server.backends.emulated.scheduling.policy import policy_of

        try:
            policy = policy_of(os.environ)
        except BadSetting as error:
            reason = f"{error}; it has to be installed for the interpreter that runs pympsd, {sys.executable}"
            raise BackendError(Result.ERROR_NOT_SUPPORTED, reason) from None
        return EmulatedDevice(setup.device, setup.ordinal, policy)
    if setup.backend == "cuda":
        from pympsd_server.backends.cuda.objects.device import CudaDevice

        return CudaDevice(setup.device, setup.ordinal)
    reason = f"this build has no backend {setup.backend!r}, only 'emulated' and 'cuda'"
    raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)


def keep_freed_memory() -> None:
    """Set malloc's thresholds so that freed memory is kept. Do nothing in a C library without mallopt.

    A kernel on the emulated device creates and drops thousands of arrays of some hundred KiB. By default the C
    library returns such memory to the system each time and gets it again page by page: a vector addition of 1M
    floats took 42 ms, and takes 11 ms with these settings (docs/performance.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
