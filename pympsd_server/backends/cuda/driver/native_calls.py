"""What a native worker needs of the driver: its functions by address, and the device's limits for launches."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

from pympsd_server.backends.cuda.driver.calls import Driver
from pympsd_server.native.states import DriverCalls

_LIBRARY: Final = "libcuda.so.1"
_CAN_WRITE: Final = "CAN_USE_64_BIT_STREAM_MEM_OPS"
"""Stands for the present form of these operations; CAN_USE_STREAM_MEM_OPS_V1, for the first form, is 0 by now."""


def native_calls(driver: Driver, attributes: Mapping[str, int]) -> DriverCalls | None:
    """Return them; None if streams cannot write the marks by which a worker sees the end of work."""
    if not attributes.get(_CAN_WRITE, 0):
        return None
    try:
        library = ctypes.CDLL(_LIBRARY)
        # The _v2 function, which cuda.h names without the suffix.
        addresses = [
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            for name in (
                "cuCtxSetCurrent",
                "cuLaunchKernel",
                "cuStreamWriteValue32_v2",
                "cuEventRecord",
                "cuEventQuery",
            )
        ]
    except (OSError, AttributeError):
        return None
    set_current, launch, write_value, record_event, query_event = addresses
    calls = DriverCalls(
        context=driver.context,
        set_current=set_current,
        launch=launch,
        write_value=write_value,
        record_event=record_event,
        query_event=query_event,
        threads_limit=attributes["MAX_THREADS_PER_BLOCK"],
        shared_limit=attributes["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"],
    )
    for index, axis in enumerate("XYZ"):
        calls.grid_limit[index] = attributes[f"MAX_GRID_DIM_{axis}"]
        calls.block_limit[index] = attributes[f"MAX_BLOCK_DIM_{axis}"]
    return calls
