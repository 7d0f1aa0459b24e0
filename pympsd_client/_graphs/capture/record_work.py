"""What a record does, as the work of a node."""

from __future__ import annotations

from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd.wire.launch_flags import cluster_of
from pympsd.wire.records import BY_NAME, FLAG_COOPERATIVE, HEADER, Space
from pympsd_client._arguments.copy_structs import Copy3D, copy_side, linear_copy
from pympsd_client._arguments.errors import CudaError
from pympsd_client._graphs.work import CopyWork, FillWork, KernelWork
from pympsd_client._objects.context import Context
from pympsd_client._objects.module import Function, functions

_LINEAR: Final = {
    "COPY_ON_DEVICE": (False, False),
    "COPY_TO_DEVICE_PINNED": (False, True),
    "COPY_FROM_DEVICE_PINNED": (True, False),
}
"""Whether destination and source are host memory."""


def work_of_record(name: str, record: bytes, context: Context) -> Any:
    """Return the work of a queued operation's record; STREAM_CAPTURE_UNSUPPORTED for one that is no node."""
    layout = BY_NAME[name].layout
    operands = layout.unpack_from(record)[5:]
    if name == "LAUNCH":
        _, flags, *_ = HEADER.unpack_from(record)
        _, module, index, *shape, count = operands
        parameters = record[layout.size : layout.size + count]
        work = KernelWork(_function(module, index), tuple(shape), parameters, bool(flags & FLAG_COOPERATIVE))
        return work.in_clusters(cluster_of(flags))
    if name == "FILL":
        _, destination, value, width, count, pitch, height = operands
        return FillWork(destination, pitch, value, width, count, height, context)
    if name in _LINEAR:
        to_host, from_host = _LINEAR[name]
        _, destination, source, count = operands
        return CopyWork(linear_copy(to_host, destination, from_host, source, count), context)
    if name == "COPY_3D":
        return CopyWork(_rows(*operands[1:]), context)
    raise CudaError(Result.ERROR_STREAM_CAPTURE_UNSUPPORTED, f"{name} cannot be captured yet")


def _rows(*operands: int) -> Copy3D:
    to, destination, to_pitch, to_slice, start, source, pitch, slice_pitch, width, height, depth = operands
    return Copy3D(
        copy_side(to == Space.PINNED, destination, to_pitch, to_slice // to_pitch if to_pitch else 0),
        copy_side(start == Space.PINNED, source, pitch, slice_pitch // pitch if pitch else 0),
        width,
        height,
        depth,
    )


def _function(module: int, index: int) -> Function:
    for function in functions.all():
        if function.module == module and function.index == index:
            return function
    raise CudaError(Result.ERROR_INVALID_HANDLE, "the kernel's module was unloaded")
