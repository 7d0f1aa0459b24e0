"""Operations on memory that clients map at addresses of their choice."""

import os

from pympsd.vocabulary.results import Result
from pympsd.wire.records import MEMORY_OF_HOST, MEMORY_SHAREABLE
from pympsd_server.backends.interface import BackendError
from pympsd_server.backends.virtual_memory import File, PhysicalMemory
from pympsd_server.executor.requests.request import Answer, Request, words


def create_memory(request: Request, handle: int, count: int, flags: int) -> Answer:
    if flags & ~(MEMORY_SHAREABLE | MEMORY_OF_HOST):
        raise BackendError(Result.ERROR_INVALID_VALUE, f"memory has no flags {flags:#x}")
    charge = request.resources.pinned.charge if flags & MEMORY_OF_HOST else None
    create, shareable = request.context.backend.create_memory, bool(flags & MEMORY_SHAREABLE)
    return Answer(created=request.with_room(lambda: create(count, shareable, charge)))


def set_access(request: Request, address: int, count: int, accessible: int) -> None:
    request.context.backend.set_access(address, count, bool(accessible))


def export_memory(request: Request, memory: PhysicalMemory) -> Answer:
    return Answer(fds=(memory.export(),))


def import_memory(request: Request, handle: int, high: int, low: int) -> Answer:
    memory = request.context.backend.import_memory(high << 64 | low)
    return Answer((memory.size, int(memory.is_of_host)), created=memory)


def share_allocation(request: Request, address: int) -> Answer:
    secret, offset = request.context.backend.share_allocation(address)
    return Answer((*words(secret), offset))


def _words_of(file: File) -> tuple[int, ...]:
    return os.getpid(), file.descriptor, *words(file.secret)


def publish_memory(request: Request, memory: PhysicalMemory) -> Answer:
    file = memory.publish()
    return Answer((*_words_of(file), file.offset))


def import_peers_memory(
    request: Request, handle: int, process: int, descriptor: int, high: int, low: int, offset: int, count: int
) -> Answer:
    file = File(descriptor, high << 64 | low, offset)
    return Answer(created=request.context.backend.import_peers_memory(process, file, count))


def publish_window(request: Request) -> Answer:
    return Answer(_words_of(request.context.backend.publish_window()))


def map_peer(request: Request, ordinal: int, process: int, descriptor: int, high: int, low: int) -> None:
    request.context.backend.map_peer(ordinal, process, File(descriptor, high << 64 | low))
