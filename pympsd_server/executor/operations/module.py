"""Records about code: images in parts, loading, launching."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd.wire.module_layout import ModuleLayout
from pympsd.wire.records import FLAG_COOPERATIVE, HEADER_BYTES, RECORD_LIMIT, padded
from pympsd_server.backends.interface import BackendError
from pympsd_server.executor.request import Call

_LAYOUT_LIMIT: Final = RECORD_LIMIT - HEADER_BYTES


def _image_part(call: Call) -> None:
    module, offset, count = call.operands
    call.context.modules.check_new(module)
    call.context.images.append(module, call.shared(offset, count))
    call.succeed()


def _load(call: Call) -> None:
    (handle,) = call.operands
    call.context.modules.check_new(handle)
    module = call.context.backend.load_module(call.context.images.take(handle))
    layout = ModuleLayout(tuple(module.functions), tuple(module.globals)).encode()
    if len(layout) > _LAYOUT_LIMIT:
        module.unload()
        reason = f"the description of the module's functions has {len(layout)} bytes, {_LAYOUT_LIMIT} fit an answer"
        raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)
    call.context.modules.mint(handle, module)
    call.succeed(tail=layout)


def _unload(call: Call) -> None:
    (handle,) = call.operands
    call.context.modules.take(handle).unload()
    call.succeed()


def _launch(call: Call) -> None:
    stream, module, function, gx, gy, gz, bx, by, bz, shared_bytes, parameter_bytes = call.operands
    if padded(parameter_bytes) != len(call.tail):
        reason = f"LAUNCH states {parameter_bytes} bytes of parameters and brings {len(call.tail)}"
        raise BackendError(Result.ERROR_INVALID_VALUE, reason)
    entry = call.context.stream(stream)
    parameters = call.tail[:parameter_bytes]
    code = call.context.modules[module]
    cooperative = bool(call.flags & FLAG_COOPERATIVE)
    entry.backend.launch(code, function, (gx, gy, gz), (bx, by, bz), shared_bytes, parameters, cooperative)
    call.client.work_limit.enter(entry)


CALLS: Final[Mapping[str, Callable[[Call], None]]] = {
    "IMAGE_PART": _image_part,
    "LOAD_MODULE": _load,
    "UNLOAD_MODULE": _unload,
    "LAUNCH": _launch,
}
