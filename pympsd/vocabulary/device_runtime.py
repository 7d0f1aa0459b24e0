"""The device runtime: dynamic parallelism, which MPS does not support (2.3.2), and grid synchronisation."""

import re
from typing import Final

# cudaLaunchDevice, cudaGetParameterBufferV2, cudaDeviceSynchronize, ...: the device runtime is a library (cudadevrt)
# whose functions PTX declares by these names; since CUDA 12 some have the prefix __cudaCDP2. Code that it is linked
# into calls the driver's __cuda_syscall_cnpv2LaunchDeviceV2 and the like instead.
_NAMES: Final = re.compile(r"(?:__)?cuda(?:CDP2)?[A-Z]\w*|__cuda_syscall_cnp\w+")
_GRID: Final = "cudaCG"
"""The prefix of cudaCGGetIntrinsicHandle, cudaCGSynchronize, ...: synchronisation of a grid, or of grids on several
devices."""

SET_CONDITIONAL: Final = "cudaGraphSetConditional"
"""The function that sets the value of a conditional handle of a graph; the emulated device has it."""


GRID_FUNCTIONS: Final = ("cudaCGGetIntrinsicHandle", "cudaCGSynchronize")
"""The functions that sync() of a grid calls in numba-cuda and older cooperative groups; the emulated device has
them."""

EMULATED: Final = frozenset([SET_CONDITIONAL, *GRID_FUNCTIONS])
"""The functions of the device runtime that the emulated device has."""


def is_device_runtime(name: str) -> bool:
    """Return whether a function that an image uses but does not define belongs to the device runtime."""
    return _NAMES.fullmatch(name) is not None


def refusal(name: str) -> str:
    """Return the refusal of an image that uses a device runtime function."""
    if name.startswith(_GRID):
        return (
            f"unsupported: {name} is the device runtime's grid synchronisation; compile with cooperative groups of "
            "CUDA 11 or newer, whose sync() of a grid needs no device runtime"
        )
    if name == SET_CONDITIONAL:
        return (
            f"unsupported: {name}: kernels cannot set the value of a conditional handle on this device, whose graphs "
            "have no conditional nodes; the emulated device has them"
        )
    return (
        f"unsupported: {name} is a function of the device runtime (dynamic parallelism), which MPS does not support; "
        "launch the kernel from the host"
    )
