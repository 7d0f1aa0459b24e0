"""Dynamic parallelism: kernels that launch kernels through the device runtime. MPS does not support it."""

from __future__ import annotations

import re

from .faults import UnsupportedByMps

# cudaLaunchDevice, cudaGetParameterBufferV2, cudaDeviceSynchronize, ...: the device runtime is a library (cudadevrt)
# whose functions PTX declares by these names; since CUDA 12 some have the prefix __cudaCDP2.
_NAMES = re.compile(r"(__)?cuda(CDP2)?[A-Z]\w*")


def is_device_runtime(name: str) -> bool:
    """Whether a function that an image declares, and does not define, is one of the device runtime's."""
    return _NAMES.fullmatch(name) is not None


def refusal(name: str, line: int) -> UnsupportedByMps:
    """The refusal of an image that uses the device runtime."""
    return UnsupportedByMps(
        f"unsupported: {name} is a function of the device runtime (dynamic parallelism), which MPS does not support; "
        "launch the kernel from the host",
        line,
    )
