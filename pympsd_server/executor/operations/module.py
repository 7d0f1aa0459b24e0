"""Operations on code: images in parts, loading, unloading."""

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd.wire.module_layout import ModuleLayout
from pympsd.wire.records import HEADER_BYTES, MAX_RECORD
from pympsd_server.backends.interface import BackendError, Module
from pympsd_server.executor.requests.request import Answer, Request

_MAX_LAYOUT_BYTES: Final = MAX_RECORD - HEADER_BYTES


def image_part(request: Request, module: int, offset: int, count: int) -> None:
    request.context.images.append(module, request.staging(offset, count))


def load_module(request: Request, handle: int) -> Answer:
    context, image = request.context, request.context.images.take(handle)
    module = request.with_room(lambda: context.backend.load_module(image))
    layout = _layout(module)
    if len(layout) > _MAX_LAYOUT_BYTES:
        module.unload()
        reason = (
            f"the description of the module's functions has {len(layout)} bytes, {_MAX_LAYOUT_BYTES} fit an answer"
        )
        raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)
    return Answer(tail=layout, created=module)


def load_function(request: Request, module: Module, function: int) -> Answer:
    return Answer(tail=module.function(function).encode())


def _layout(module: Module) -> bytes:
    return ModuleLayout(tuple(module.functions), tuple(module.globals), module.managed_bytes).encode()


def place_managed(request: Request, module: Module, address: int) -> Answer:
    request.resources.pinned.view(address, module.managed_bytes)  # raises unless it is the client's
    module.place_managed(address)
    return Answer(tail=_layout(module))
