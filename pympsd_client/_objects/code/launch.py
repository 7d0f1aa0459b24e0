"""cuLaunchKernel: one check for each shape, then one packed record and one send for each launch.

The first launch of a kernel with a shape (grid, block, dynamic shared bytes) checks it against the device and the
kernel, and remembers it in ``function.checked``. Each combination of parameter types gets a packer, kept in
``function.packers``, which packs header, operands and parameters with a single struct call. So a repeated launch
costs two dictionary look-ups, one pack and one send; with the extension it costs even less
(`_command_stream.launch_cache`).
"""

from __future__ import annotations

import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pympsd.vocabulary.variables import LAUNCH_BLOCKING, read
from pympsd.wire.records import NO_CLUSTER, pack_launch_flags
from pympsd_client._arguments.bindings import DONE
from pympsd_client._arguments.errors import CudaError, fail, invalid_handle, invalid_value
from pympsd_client._arguments.values import number, read_unsigned
from pympsd_client._command_stream.kernel_parameters import (
    LAUNCH_BYTES,
    code_of,
    flat,
    packer_for_types,
    raw_packer,
    record_bytes,
)
from pympsd_client._command_stream.launch_cache import by_pointers, fits_plan, gather, launcher
from pympsd_client._command_stream.operations import LAUNCH_OPCODE, SEQUENCE_AT
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._objects.code.library import function_of, kernels
from pympsd_client._objects.code.module import Function, functions
from pympsd_client._objects.code.occupancy import check_cluster, check_cooperative
from pympsd_client._objects.context import current
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import PER_THREAD, resolve, synchronize

if TYPE_CHECKING:
    from pympsd_client._command_stream.transport import Transport
    from pympsd_client.native._launches import Launcher

_CACHED: Final = 256
"""The maximum number of checked shapes, and of packers, that are kept for a kernel.

A further shape removes all kept shapes, which are checked again when they are used. A further packer is not kept.
"""
_WAITS: Final = read(os.environ, LAUNCH_BLOCKING) == "1"
_RAW: Final = ("raw",)
_known: Final = functions.get


def launch(
    handle: int,
    shape: tuple[int, ...],
    stream: Any,
    parameters: Any,
    extra: Any,
    cooperative: bool = False,
    cluster: tuple[int, int, int] = NO_CLUSTER,
) -> None:
    """Send a launch; ``shape`` is grid x, y, z, block x, y, z and dynamic shared bytes. Raise CudaError.

    A library's kernel is launched in the stream's context, which for the special streams is the current one.
    ``cooperative``: all blocks must be resident at the same time; ``cluster``: the dimensions of a cluster in blocks.
    """
    cache = launcher()
    epoch = 0 if cache is None else cache.epoch  # look-ups after this line are valid while the epoch is the same
    function = _known(handle)
    if function is None:
        current()  # without a context that is the error, whatever the handle
        function = function_of(handle, resolve(number(stream))[0] if handle in kernels else None)
    context = function.context
    opened = context.usable()
    if context is not current() and function.handle == handle:
        raise invalid_handle(f"{function.layout.name} was loaded in a context other than the current one")
    context.pulse(opened, cache is not None and cache.needs_pulse)
    if shape not in function.checked:
        function.load()
        shape = check_shape(function, shape)
    if cooperative:
        check_cooperative(function, tuple(map(int, shape)))
    if cluster != NO_CLUSTER:
        check_cluster(function, shape, cluster)
    stream_handle = stream_id = 0
    if stream is not None and stream != 0:
        stream_handle = number(stream)
        stream_context, stream_id = resolve(stream_handle)
        if stream_context is not context:
            raise invalid_handle("the stream belongs to a context other than the kernel's")
    layout = function.layout
    transport = opened.transport
    flags = pack_launch_flags(cooperative, cluster)
    fields = (
        LAUNCH_OPCODE, flags, record_bytes(layout), opened.context_id, transport.sequence(),
        stream_id, function.module, function.index, *shape, layout.parameter_bytes,
    )  # fmt: skip
    record = _record(function, fields, parameters, extra)
    transport.post(record)
    if _WAITS:
        if intercepted.by is None:
            synchronize(stream_handle)
    elif cache is not None and cache.needs_plan and not flags and stream_handle != PER_THREAD:
        _add_plan(cache, epoch, handle, function, shape, stream_handle, parameters, transport, record)


def _add_plan(
    cache: Launcher,
    epoch: int,
    handle: int,
    function: Function,
    shape: tuple[int, ...],
    stream: int,
    parameters: Any,
    transport: Transport,
    record: bytes,
) -> None:
    """Add a plan for launches like the one that was just sent, if such launches can have a plan."""
    writer = transport.writer
    is_plain = type(parameters) in (tuple, int) and intercepted.by is None
    if writer is None or process.calls_back or not is_plain:
        return
    layout = function.layout.parameters
    # The caller may have looked the kernel up before it read the epoch, and it may have been unloaded in between.
    if not fits_plan(parameters, len(layout), record) or functions.get(function.handle) is not function:
        return
    values: tuple[tuple[int, str] | tuple[int, str, int], ...]
    if type(parameters) is int:
        types = by_pointers()
        values = tuple((LAUNCH_BYTES + offset, "p", size) for offset, size in layout)
    else:
        types = parameters[1]
        if types not in function.packers:
            return
        values = tuple(
            (LAUNCH_BYTES + offset, code_of(ctype)) for ctype, (offset, _) in zip(types, layout, strict=True)
        )
    cache.add_plan(
        epoch, handle, stream, tuple(map(int, shape)), types, function.context,
        transport.sequence, partial(_ring_bell, transport), writer, record, SEQUENCE_AT, values,
    )  # fmt: skip


def _ring_bell(transport: Transport) -> tuple[Any, ...]:
    success: tuple[Any, ...] = DONE
    try:
        transport.ring_bell()
    except CudaError as error:
        return fail(error, 0)
    return success


def _record(function: Function, fields: tuple[int, ...], parameters: Any, extra: Any) -> bytes:
    """Return a LAUNCH record, if possible by a kept packer for the parameters' types; raise CudaError, TypeError."""
    if type(parameters) is tuple and len(parameters) == 2 and (extra is None or (type(extra) is int and not extra)):
        values, types = parameters
        try:
            packer = function.packers.get(types)
            if packer is None:
                packer = _remember(function, types)
            if packer is not None:
                return packer(*fields, *values)
        except (struct.error, TypeError, OverflowError, ValueError, IndexError):
            pass  # the checks below name the error, or accept a value that only ctypes can convert
    raw = function.packers.get(_RAW)
    if raw is None:
        raw = function.packers[_RAW] = raw_packer(function.layout)
    gathered = gather(parameters, function.layout) if type(parameters) is int and not extra else None
    return raw(*fields, flat(function.layout, parameters, extra) if gathered is None else gathered)


def _remember(function: Function, types: Any) -> Any:
    if not isinstance(types, tuple):
        return None
    packer = packer_for_types(function.layout, types)
    if packer is not None and len(function.packers) < _CACHED:
        function.packers[types] = packer
    return packer


def check_shape(function: Function, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Check a shape against the limits of the device and the kernel, and return it as plain ints.

    ``shape``: grid x, y, z, block x, y, z, dynamic shared bytes. Raise INVALID_VALUE, which names the exceeded limit.
    Up to _CACHED checked shapes are remembered.
    """
    shape = tuple(read_unsigned(size, 32) for size in shape)
    _check_dimensions(function, shape)
    _check_resources(function, shape)
    if len(function.checked) >= _CACHED:
        function.checked.clear()
    function.checked.add(shape)
    return shape


def _check_dimensions(function: Function, shape: tuple[int, ...]) -> None:
    properties = function.context.device.properties.attributes
    names = [f"MAX_{kind}_DIM_{axis}" for kind in ("GRID", "BLOCK") for axis in "XYZ"]
    for name, size in zip(names, shape, strict=False):
        maximum = properties.get(name, 0)
        if not 1 <= size <= maximum:
            what = name.removeprefix("MAX_").replace("_DIM_", " ").lower()
            raise invalid_value(f"{what} is {size}; this device allows 1 to {maximum}")


def _check_resources(function: Function, shape: tuple[int, ...]) -> None:
    """Raise INVALID_VALUE for more threads or dynamic shared bytes in a block than device and kernel allow."""
    properties = function.context.device.properties.attributes
    name = function.layout.name
    threads = shape[3] * shape[4] * shape[5]
    if threads > properties.get("MAX_THREADS_PER_BLOCK", threads):
        raise invalid_value(f"{threads} threads per block; this device allows {properties['MAX_THREADS_PER_BLOCK']}")
    max_threads = function.attributes.get("MAX_THREADS_PER_BLOCK", threads)
    if threads > max_threads:
        raise invalid_value(f"{threads} threads per block; {name} was compiled for at most {max_threads}")
    allowed = function.attributes.get("MAX_DYNAMIC_SHARED_SIZE_BYTES", shape[6])
    if shape[6] > allowed:
        raise invalid_value(
            f"{shape[6]} bytes of dynamic shared memory; {name} may use {allowed}: raise "
            "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES with cuFuncSetAttribute"
        )
