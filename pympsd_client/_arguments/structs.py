"""Structures: plain values made of those of cuda.bindings, and the other way round."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from pympsd_client._arguments.bindings import CUexecAffinityParam, CUexecAffinityType, CUuuid

SM_COUNT: Final = int(CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)


def uuid(digits: bytes) -> Any:
    """Return a CUuuid of 16 bytes."""
    made = CUuuid()
    ctypes.memmove(made.getPtr(), digits, 16)
    return made


def sm_affinity(count: int) -> Any:
    """Return a CUexecAffinityParam of type SM_COUNT."""
    made = CUexecAffinityParam()
    made.type = CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
    made.param.smCount.val = count
    return made
