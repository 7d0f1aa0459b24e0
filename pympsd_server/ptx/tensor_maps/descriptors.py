"""Read the tensor maps of copies from device memory, and change them (tensormap)."""

from typing import Final

import numpy as np

from pympsd.wire.tensor_map import ALIGNMENT, BYTES, TensorMap, set_field, unpack
from pympsd_server.ptx.isa.datatypes import U64, Value
from pympsd_server.ptx.isa.faults import IllegalInstruction
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.bulk_copies import check_multiple, consecutive, repeat, run_by_thread
from pympsd_server.ptx.runtime.spaces import load, store
from pympsd_server.ptx.runtime.threads import Threads

_WORD: Final = U64.itemsize
_WORDS: Final = BYTES // _WORD


def map_at(state: BatchState, thread: Threads, address: int) -> TensorMap:
    """Return the map at a generic address. Raises IllegalInstruction if it is invalid or interleaved."""
    try:
        tensor_map = unpack(_read(state, thread, "generic", address))
    except ValueError as error:
        raise _not_a_map(address, error) from None
    if tensor_map.interleave:
        raise IllegalInstruction(f"tensor map at {address:#x}: interleaved layouts are not emulated")
    return tensor_map


def _not_a_map(address: int, error: ValueError) -> IllegalInstruction:
    return IllegalInstruction(f"tensor map at {address:#x}: {error}")


def _read(state: BatchState, thread: Threads, space: str, address: int) -> bytes:
    check_multiple("tensor map at", address, ALIGNMENT)
    places = consecutive(address, _WORDS, _WORD)
    return bytes(load(state, repeat(thread, _WORDS), space, places, U64, _WORD, None).tobytes())


def _write(state: BatchState, thread: Threads, space: str, address: int, data: bytes) -> None:
    check_multiple("tensor map at", address, ALIGNMENT)
    places, words = consecutive(address, _WORDS, _WORD), np.frombuffer(data, U64)
    store(state, repeat(thread, _WORDS), space, places, U64, _WORD, (words,), None)


def replace_field(
    state: BatchState,
    threads: Threads,
    space: str,
    address: Value,
    field: str,
    ordinal: int,
    value: Value,
    guard: Value | None,
) -> None:
    """tensormap.replace: change a field of the map at each thread's address. `ordinal` is the field's dimension.

    Raises IllegalInstruction if the memory contains neither a map nor only zeros.
    """

    def work(thread: Threads, arguments: tuple[int, ...]) -> None:
        place, new_value = arguments
        try:
            changed = set_field(_read(state, thread, space, place), field, ordinal, new_value)
        except ValueError as error:
            raise _not_a_map(place, error) from None
        _write(state, thread, space, place, changed)

    run_by_thread(state, threads, (address, value), guard, work)


def copy_map(state: BatchState, threads: Threads, target: Value, source: Value, guard: Value | None) -> None:
    """tensormap.cp_fenceproxy: copy each thread's map, 128 bytes, from shared to global memory."""

    def work(thread: Threads, arguments: tuple[int, ...]) -> None:
        place, origin = arguments
        _write(state, thread, "global", place, _read(state, thread, "shared", origin))

    run_by_thread(state, threads, (target, source), guard, work)
