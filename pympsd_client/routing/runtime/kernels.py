"""Kernels of libraries (CUDA runtime API, Execution Control)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._objects.code.library import function_of

_FIELDS: Final = {
    "binaryVersion": "BINARY_VERSION",
    "cacheModeCA": "CACHE_MODE_CA",
    "clusterDimMustBeSet": "CLUSTER_SIZE_MUST_BE_SET",
    "clusterSchedulingPolicyPreference": "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
    "constSizeBytes": "CONST_SIZE_BYTES",
    "localSizeBytes": "LOCAL_SIZE_BYTES",
    "maxDynamicSharedSizeBytes": "MAX_DYNAMIC_SHARED_SIZE_BYTES",
    "maxThreadsPerBlock": "MAX_THREADS_PER_BLOCK",
    "nonPortableClusterSizeAllowed": "NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
    "numRegs": "NUM_REGS",
    "preferredShmemCarveout": "PREFERRED_SHARED_MEMORY_CARVEOUT",
    "ptxVersion": "PTX_VERSION",
    "requiredClusterDepth": "REQUIRED_CLUSTER_DEPTH",
    "requiredClusterHeight": "REQUIRED_CLUSTER_HEIGHT",
    "requiredClusterWidth": "REQUIRED_CLUSTER_WIDTH",
    "sharedSizeBytes": "SHARED_SIZE_BYTES",
}


def attributes(place: int, function: int) -> None:
    """Write the cudaFuncAttributes of a kernel, of which those that are not known are 0; INVALID_HANDLE."""
    if not place:
        raise invalid_value("the address of the cudaFuncAttributes is NULL")
    found = function_of(function)
    found.context.usable()
    made: Any = import_module("cuda.bindings.runtime").cudaFuncAttributes(_ptr=place)
    for field, name in _FIELDS.items():
        setattr(made, field, found.attributes.get(name, 0))
