"""The choice of the backend: the only module that imports an implementation of the port."""

from __future__ import annotations

import os
import sys

from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import BadSetting
from pympsd.wire.executor_messages import ExecutorSetup
from pympsd_server.backends.interface import BackendError, Device


def open_device(setup: ExecutorSetup) -> Device:
    """Open the device that a setup describes; BackendError names a backend that this build lacks."""
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
