"""The choice of the backend: the only module that imports an implementation of the port."""

from __future__ import annotations

import os

from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import ExecutorSetup
from pympsd_server.backends.interface import BackendError, Device


def open_device(setup: ExecutorSetup) -> Device:
    """Open the device that a setup describes; BackendError names a backend that this build lacks."""
    if setup.backend == "emulated":
        from pympsd_server.backends.emulated.device.device import EmulatedDevice
        from pympsd_server.backends.emulated.scheduling.policy import policy_of

        return EmulatedDevice(setup.device, setup.ordinal, policy_of(os.environ))
    if setup.backend == "cuda":
        from pympsd_server.backends.cuda.objects.device import CudaDevice

        return CudaDevice(setup.device, setup.ordinal)
    reason = f"this build has no backend {setup.backend!r}, only 'emulated' and 'cuda'"
    raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)
