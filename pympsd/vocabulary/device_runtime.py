"""Dynamic parallelism: kernels that launch kernels through the device runtime. MPS does not support it (2.3.2)."""

from __future__ import annotations

import re
from typing import Final

# cudaLaunchDevice, cudaGetParameterBufferV2, cudaDeviceSynchronize, ...: the device runtime is a library (cudadevrt)
# whose functions PTX declares by these names; since CUDA 12 some have the prefix __cudaCDP2. Code that it is linked
# into calls the driver's __cuda_syscall_cnpv2LaunchDeviceV2 and the like instead.
_NAMES: Final = re.compile(r"(?:__)?cuda(?:CDP2)?[A-Z]\w*|__cuda_syscall_cnp\w+")


def is_device_runtime(name: str) -> bool:
    """Whether a function that an image uses but does not define belongs to the device runtime."""
    return _NAMES.fullmatch(name) is not None


def refusal(name: str) -> str:
    """Return the refusal of an image that uses a device runtime function."""
    return (
        f"unsupported: {name} is a function of the device runtime (dynamic parallelism), which MPS does not support; "
        "launch the kernel from the host"
    )
