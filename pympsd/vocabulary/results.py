"""The CUDA result codes (CUresult numbers) that pympsd itself raises, by name.

Numbers, so that the daemon need not import cuda-bindings; tests check each against CUresult.
"""

from enum import IntEnum
from typing import Final


class Result(IntEnum):
    """A CUresult number, named without its ``CUDA_`` prefix's enum type; the value travels on the wire."""

    SUCCESS = 0
    ERROR_INVALID_VALUE = 1
    ERROR_OUT_OF_MEMORY = 2
    ERROR_NOT_INITIALIZED = 3
    ERROR_DEINITIALIZED = 4
    ERROR_NO_DEVICE = 100
    ERROR_INVALID_DEVICE = 101
    ERROR_INVALID_IMAGE = 200
    ERROR_INVALID_CONTEXT = 201
    ERROR_INVALID_PTX = 218
    ERROR_NO_BINARY_FOR_GPU = 209
    ERROR_INVALID_SOURCE = 300
    ERROR_FILE_NOT_FOUND = 301
    ERROR_OPERATING_SYSTEM = 304
    ERROR_INVALID_HANDLE = 400
    ERROR_NOT_FOUND = 500
    ERROR_NOT_READY = 600
    ERROR_ILLEGAL_ADDRESS = 700
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701
    ERROR_LAUNCH_TIMEOUT = 702
    ERROR_PRIMARY_CONTEXT_ACTIVE = 708
    ERROR_CONTEXT_IS_DESTROYED = 709
    ERROR_ASSERT = 710
    ERROR_ILLEGAL_INSTRUCTION = 715
    ERROR_MISALIGNED_ADDRESS = 716
    ERROR_LAUNCH_FAILED = 719
    ERROR_NOT_SUPPORTED = 801
    ERROR_MPS_CONNECTION_FAILED = 805
    ERROR_MPS_RPC_FAILURE = 806
    ERROR_MPS_SERVER_NOT_READY = 807
    ERROR_MPS_MAX_CLIENTS_REACHED = 808
    ERROR_MPS_MAX_CONNECTIONS_REACHED = 809
    ERROR_MPS_CLIENT_TERMINATED = 810
    ERROR_UNKNOWN = 999


STICKY: Final = frozenset(
    {
        Result.ERROR_ILLEGAL_ADDRESS,
        Result.ERROR_LAUNCH_TIMEOUT,
        Result.ERROR_ASSERT,
        Result.ERROR_ILLEGAL_INSTRUCTION,
        Result.ERROR_MISALIGNED_ADDRESS,
        Result.ERROR_LAUNCH_FAILED,
        Result.ERROR_MPS_CLIENT_TERMINATED,
        Result.ERROR_MPS_RPC_FAILURE,
    }
)
"""Results that ruin their context: every later call in it answers the same (CUDA driver API, CUresult)."""
