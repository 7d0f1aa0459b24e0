"""Kernel launches: checked as far as possible before they are queued, and then issued to the driver."""

import ctypes
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import Driver, cu
from pympsd_server.backends.cuda.objects.module import Kernel
from pympsd_server.backends.interface import BackendError, Launch

# CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE of cuda.h.
_END: Final = 0
_BUFFER: Final = 1
_SIZE: Final = 2


@frozen(eq=False)
class PreparedLaunch:
    """A launch with its kernel."""

    kernel: Kernel
    launch: Launch

    def check(self, attributes: Mapping[str, int]) -> None:
        """Raise BackendError INVALID_VALUE for a launch that the device or the kernel cannot run."""
        layout, launch = self.kernel.layout, self.launch
        for what, extent in (("GRID", launch.grid), ("BLOCK", launch.block)):
            for axis, value in zip("XYZ", extent, strict=True):
                maximum = attributes[f"MAX_{what}_DIM_{axis}"]
                if not 1 <= value <= maximum:
                    raise _invalid(f"{what.lower()} dimension {axis.lower()} is {value}: 1 to {maximum} are allowed")
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        if threads > (maximum := attributes["MAX_THREADS_PER_BLOCK"]):
            raise _invalid(f"{threads} threads per block; at most {maximum} are allowed")
        maximum = attributes["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]
        if (total := layout.attributes["SHARED_SIZE_BYTES"] + launch.shared_bytes) > maximum:
            raise _invalid(f"{total} bytes of shared memory per block; at most {maximum} are allowed")
        if len(launch.parameters) != layout.parameter_bytes:
            raise _invalid(
                f"{layout.name} takes {layout.parameter_bytes} bytes of parameters, not {len(launch.parameters)}"
            )
        if threads > (maximum := layout.attributes["MAX_THREADS_PER_BLOCK"]):
            raise _invalid(f"{layout.name} takes at most {maximum} threads per block, not {threads}")

    def issue(self, driver: Driver, stream: Any) -> None:
        """Issue the launch to the driver, which copies the parameters before it returns."""
        kernel, launch = self.kernel, self.launch
        if launch.shared_bytes > kernel.row.dynamic_bytes:
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.call(cu.cuFuncSetAttribute, kernel.handle, attribute, launch.shared_bytes)
            kernel.row.dynamic_bytes = launch.shared_bytes
        start = ctypes.create_string_buffer(launch.parameters, max(1, len(launch.parameters)))
        address = ctypes.addressof(start)
        if launch.cooperative:
            addresses = [address + offset for offset, _ in kernel.layout.parameters]
            table = (ctypes.c_uint64 * max(1, len(addresses)))(*addresses)
            driver.call(
                cu.cuLaunchCooperativeKernel, kernel.handle, *launch.grid, *launch.block, launch.shared_bytes, stream,
                ctypes.addressof(table) if addresses else 0,
            )  # fmt: skip
            return
        size = ctypes.c_uint64(len(launch.parameters))
        extra = (ctypes.c_uint64 * 5)(_BUFFER, address, _SIZE, ctypes.addressof(size), _END)
        driver.call(
            cu.cuLaunchKernel, kernel.handle, *launch.grid, *launch.block, launch.shared_bytes, stream,
            0, ctypes.addressof(extra) if launch.parameters else 0,
        )  # fmt: skip


def _invalid(reason: str) -> BackendError:
    return BackendError(Result.ERROR_INVALID_VALUE, reason)
