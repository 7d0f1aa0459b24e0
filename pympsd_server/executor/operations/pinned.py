"""Records about page-locked memory that the client shares with us: allocate, free, copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Final

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd_server.backends.interface import BackendError, Outcome
from pympsd_server.executor.request import Call

if TYPE_CHECKING:
    from pympsd_server.executor.client import Client

_ADDRESS: Final = records.BY_NAME["ALLOCATE_PINNED"].answer_layout
_FREE: Final = records.BY_NAME["FREE_PINNED"]
FREE_PINNED: Final = _FREE.opcode
"""The one record that is its process's and no context's: see `free`."""


def _allocate(call: Call) -> None:
    (count,) = call.operands
    given = call.client.pinned.allocate(count)
    try:
        call.succeed(_ADDRESS.pack(given.address), fds=(given.fd,))
    finally:
        os.close(given.fd)


def free(client: Client, record: records.Record) -> None:
    """Free a piece, whatever has become of its context; the memory goes when the client's work so far is done."""
    try:
        if len(record.body) != _FREE.layout.size - records.HEADER_BYTES:
            reason = f"FREE_PINNED with a body of {len(record.body)} bytes"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        let_go = client.pinned.take(int.from_bytes(record.body, "little"))
    except BackendError as error:
        client.refuse(record.opcode, record.sequence, Outcome(error.code, error.reason), 0)
        return
    _after_all_work(client, let_go)
    client.answers.send(records.pack_answer(record.opcode, record.sequence, Result.SUCCESS))


def _after_all_work(client: Client, act: Callable[[], None]) -> None:
    """Call ``act`` once what all contexts of a client have been given so far is done, or they are."""
    contexts = tuple(client.contexts.values())
    lock, left = Lock(), len(contexts) + 1

    def done(outcome: Outcome) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last:
            act()

    for context in contexts:
        try:
            context.backend.notify(done)
        except BackendError:  # it takes no work any more, and has none
            done(Outcome())
    done(Outcome())


def _through_context(call: Call) -> None:
    raise AssertionError("FREE_PINNED names no context")


def _copy_to_device(call: Call) -> None:
    stream, destination, source, count = call.operands
    entry = call.context.stream(stream)
    entry.backend.copy_from_host(destination, call.client.pinned.view(source, count))
    call.client.work_limit.enter(entry)


def _copy_from_device(call: Call) -> None:
    stream, destination, source, count = call.operands
    entry = call.context.stream(stream)
    entry.backend.copy_to_host(call.client.pinned.view(destination, count), source)
    call.client.work_limit.enter(entry)


CALLS: Final[Mapping[str, Callable[[Call], None]]] = {
    "ALLOCATE_PINNED": _allocate,
    "FREE_PINNED": _through_context,
    "COPY_TO_DEVICE_PINNED": _copy_to_device,
    "COPY_FROM_DEVICE_PINNED": _copy_from_device,
}
