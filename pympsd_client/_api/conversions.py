"""Conversion by type: the functions that convert inputs and outputs, by the C type of a parameter in the rows.

`structure_reader` converts inputs, `output_wrapper` outputs; values of `is_as_given` types are passed to the core
unchanged. The Python functions (`entry_point`) and those for callers in C (`pympsd_client.routing.driver`) use the
same tables. They contain paths instead of functions, because most programs use few of the functions
(`pympsd_client.signatures.rows.find_core`).

>>> structure_reader("CUDA_MEMCPY2D *").__name__
'copy_2d'
>>> output_wrapper("CUdeviceptr")(0)
<CUdeviceptr 0>
>>> output_wrapper("size_t") is None
True
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from pympsd.channel.descriptors import EXHAUSTED, explain
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import bindings, make_struct
from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.values import to_python
from pympsd_client.signatures import SIGNATURES
from pympsd_client.signatures.rows import find_core

_NOT_PERMITTED: Final = "a host function or stream callback must not make CUDA calls; make the call in another thread"


def _pointers(types: str) -> tuple[str, ...]:
    """Return the pointer type of each of some types."""
    return tuple(f"{name} *" for name in types.split())


_AS_GIVEN: Final = frozenset(
    {
        *_pointers(
            """
            CUDA_MEMCPY3D_BATCH_OP CUctxCreateParams CUdevResource CU_DEV_SM_RESOURCE_GROUP_PARAMS CUdeviceptr
            CUexecAffinityParam CUjit_option CUlaunchConfig CUlibraryOption CUmemAccessDesc CUmemPoolPtrExportData
            CUmem_range_attribute CUmemcpyAttributes CUpointer_attribute CUstreamAttrValue CUstreamBatchMemOpParams
            CUtensorMap PyObject cuuint32_t cuuint64_t int size_t
            """
        ),
        *("CUhostFn", "CUipcEventHandle", "CUipcMemHandle", "CUstreamCallback", "float"),
        *("const CUmemLocation *", "const void *", "void **"),
    }
)
"""Types whose values are passed to the core unchanged, which reads them itself."""
_GRAPH_STRUCTS: Final = _pointers(
    """
    CUDA_BATCH_MEM_OP_NODE_PARAMS CUDA_CONDITIONAL_NODE_PARAMS CUDA_MEM_ALLOC_NODE_PARAMS
    CUDA_GRAPH_INSTANTIATE_PARAMS CUDA_HOST_NODE_PARAMS CUDA_KERNEL_NODE_PARAMS CUDA_MEMSET_NODE_PARAMS
    CUgraphEdgeData CUgraphNode CUgraphNodeParams CUkernelNodeAttrValue
    """
)
"""Structures that the core reads in place, also in arrays and in arrays of pointers."""
_READERS: Final = {
    "CUDA_ARRAY_DESCRIPTOR *": "array_structs.array_2d",
    "CUDA_ARRAY3D_DESCRIPTOR *": "array_structs.array_3d",
    "CUDA_MEMCPY2D *": "copy_structs.copy_2d",
    "CUDA_MEMCPY3D *": "copy_structs.copy_3d",
    "CUDA_MEMCPY3D_PEER *": "copy_structs.copy_3d_peer",
    "CUDA_RESOURCE_DESC *": "array_structs.read_resource",
    "CUDA_RESOURCE_VIEW_DESC *": "array_structs.read_view",
    "CUDA_TEXTURE_DESC *": "array_structs.read_sampling",
    "CUmemAllocationProp *": "memory_structs.allocation_properties",
    "CUmemLocation *": "memory_structs.location",
    "CUmemPoolProps *": "memory_structs.pool_properties",
}
"""The functions of `pympsd_client._arguments` that convert inputs, by type."""
_RETURNED_AS_BYTES: Final = """
CUDA_ARRAY3D_DESCRIPTOR CUDA_ARRAY_DESCRIPTOR CUDA_BATCH_MEM_OP_NODE_PARAMS CUDA_HOST_NODE_PARAMS
CUDA_KERNEL_NODE_PARAMS CUDA_MEMCPY3D CUDA_MEMSET_NODE_PARAMS CUDA_MEM_ALLOC_NODE_PARAMS CUDA_RESOURCE_DESC
CUDA_RESOURCE_VIEW_DESC CUDA_TEXTURE_DESC CUdevResource CUdevprop CUgraphExecUpdateResultInfo CUgraphNodeParams
CUipcEventHandle CUipcMemHandle CUkernelNodeAttrValue CUmemPoolPtrExportData CUstreamAttrValue CUtensorMap
CUuuid
"""
_MADE_FROM_BYTES: Final = frozenset(_RETURNED_AS_BYTES.split())
"""The structures of cuda.bindings that cores return as bytes."""
_MAKERS: Final = {
    "CUexecAffinityParam": "resources.sm_affinity",
    "CUmemAllocationProp": "memory_structs.make_allocation_properties",
}
"""The functions of `pympsd_client._arguments` that make structures from other values of cores, by type."""
_OUTPUTS: Final = frozenset(output.type for row in SIGNATURES.values() for output in row.outputs)


@cache
def structure_reader(type: str) -> Callable[[Any], Any] | None:
    """Return the function that converts a structure for a core, or None if the type needs no conversion."""
    return find_core(f"_arguments.{_READERS[type]}") if type in _READERS else None


def needs_reader(type: str) -> bool:
    """Return whether inputs of a type are converted by `structure_reader`."""
    return type in _READERS


@cache
def output_wrapper(type: str) -> Callable[[Any], Any] | None:
    """Return the function that converts a core's output to a type of cuda.bindings, or None if it needs none.

    Numbers become handles and enum members, bytes become structures, and arrays become lists.
    """
    if type in _MADE_FROM_BYTES:
        return partial(make_struct, type)
    if type in _MAKERS:
        return find_core(f"_arguments.{_MAKERS[type]}")
    if type in ("void", "void *"):
        return to_python
    element = type.rstrip(" *")
    if element == "CUgraphEdgeData":
        return lambda numbers: [make_struct(element, number.to_bytes(8, "little")) for number in numbers]
    if type in ("CUfunction *", "CUkernel *", "CUgraphNode *", "CUgraphNode **"):
        return lambda handles: [getattr(bindings, element)(handle) for handle in handles]
    if type == "CUdevResource *":
        return lambda parts: [make_struct(element, part) for part in parts]
    wrapper: Callable[[Any], Any] | None = getattr(bindings, type, None) if type in _OUTPUTS else None
    return wrapper


def is_as_given(type: str) -> bool:
    """Return whether values of a type are passed to the core unchanged."""
    return type in _AS_GIVEN or type.startswith(_GRAPH_STRUCTS)


def not_permitted() -> CudaError:
    """Return the error for a call in a host function."""
    return CudaError(Result.ERROR_NOT_PERMITTED, _NOT_PERMITTED)


def as_cuda_error(error: OSError) -> CudaError:
    """Return the CudaError for exhausted descriptors; raise any other error again, because it is the program's."""
    if error.errno not in EXHAUSTED:
        raise error
    reason = f"this process is out of file descriptors: {explain(error)}"
    return CudaError(Result.ERROR_OPERATING_SYSTEM, reason)
