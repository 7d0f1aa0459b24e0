"""What a worker of the tests does with its share of a GPU."""

from __future__ import annotations

import os
from typing import Any


def use_gpu() -> dict[str, Any]:
    """Say what this process has, and whether it gets half a GiB more than half of a device's memory."""
    from pympsd_client import driver as cuda

    def check(answer: Any) -> Any:
        assert answer[0] == 0, answer
        return answer[1] if len(answer) == 2 else answer[1:]

    check(cuda.cuInit(0))
    device = check(cuda.cuDeviceGet(0))
    context = check(cuda.cuDevicePrimaryCtxRetain(device))
    check(cuda.cuCtxSetCurrent(context))
    _, total = check(cuda.cuMemGetInfo())
    count = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    refused = cuda.cuMemAlloc(total + (1 << 29))[0]
    return {
        "pid": os.getpid(),
        "device": os.environ["CUDA_VISIBLE_DEVICES"],
        "sms": check(cuda.cuDeviceGetAttribute(count, device)),
        "total": total,
        "refused": refused.name,
    }
