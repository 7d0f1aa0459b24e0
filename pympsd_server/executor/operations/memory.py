"""Records about memory: allocate, free, copy, fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pympsd.wire.records import BY_NAME
from pympsd_server.executor.request import Call

_ADDRESS: Final = BY_NAME["ALLOCATE"].answer_layout
_INFO: Final = BY_NAME["MEMORY_INFO"].answer_layout


def _allocate(call: Call) -> None:
    (count,) = call.operands
    call.succeed(_ADDRESS.pack(call.context.backend.allocate(count)))


def _free(call: Call) -> None:
    (address,) = call.operands
    call.waits_for(lambda done: call.context.backend.free(address, done))


def _info(call: Call) -> None:
    call.succeed(_INFO.pack(*call.context.backend.memory_info()))


def _copy_to_device(call: Call) -> None:
    stream, destination, offset, count = call.operands
    entry, source = call.context.stream(stream), call.shared(offset, count)
    call.waits_for(lambda done: entry.backend.copy_to_device(destination, source, done))


def _copy_from_device(call: Call) -> None:
    stream, source, offset, count = call.operands
    entry, target = call.context.stream(stream), call.shared(offset, count)
    call.waits_for(lambda done: entry.backend.copy_from_device(target, source, done))


def _copy_on_device(call: Call) -> None:
    stream, destination, source, count = call.operands
    entry = call.context.stream(stream)
    entry.backend.copy_on_device(destination, source, count)
    call.client.work_limit.enter(entry)


def _fill(call: Call) -> None:
    stream, destination, value, width, count = call.operands
    entry = call.context.stream(stream)
    entry.backend.fill(destination, value, width, count)
    call.client.work_limit.enter(entry)


CALLS: Final[Mapping[str, Callable[[Call], None]]] = {
    "ALLOCATE": _allocate,
    "FREE": _free,
    "MEMORY_INFO": _info,
    "COPY_TO_DEVICE": _copy_to_device,
    "COPY_FROM_DEVICE": _copy_from_device,
    "COPY_ON_DEVICE": _copy_on_device,
    "FILL": _fill,
}
