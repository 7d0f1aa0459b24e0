"""Tensor maps in the memory that kernels see: read by copies, changed by tensormap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pympsd.wire.tensor_map import ALIGNMENT, BYTES, TensorMap, replaced, unpack
from pympsd_server.backends.emulated.ptx.isa.datatypes import U64, Value
from pympsd_server.backends.emulated.ptx.isa.faults import IllegalInstruction
from pympsd_server.backends.emulated.ptx.runtime.bulk_copies import by_thread, check_multiple, consecutive, repeated
from pympsd_server.backends.emulated.ptx.runtime.lanes import Lanes
from pympsd_server.backends.emulated.ptx.runtime.spaces import load, store

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState

_WORD: Final = U64.itemsize
_WORDS: Final = BYTES // _WORD


def map_at(state: BatchState, lane: Lanes, address: int) -> TensorMap:
    """Return the map at a generic address; raise IllegalInstruction if there is none that can be used."""
    try:
        found = unpack(_read(state, lane, "generic", address))
    except ValueError as error:
        raise _not_a_map(address, error) from None
    if found.interleave:
        raise IllegalInstruction(f"tensor map at {address:#x}: interleaved layouts are not emulated")
    return found


def _not_a_map(address: int, error: ValueError) -> IllegalInstruction:
    return IllegalInstruction(f"tensor map at {address:#x}: {error}")


def _read(state: BatchState, lane: Lanes, space: str, address: int) -> bytes:
    check_multiple("tensor map at", address, ALIGNMENT)
    places = consecutive(address, _WORDS, _WORD)
    return bytes(load(state, repeated(lane, _WORDS), space, places, U64, _WORD, None).tobytes())


def _write(state: BatchState, lane: Lanes, space: str, address: int, data: bytes) -> None:
    check_multiple("tensor map at", address, ALIGNMENT)
    places, words = consecutive(address, _WORDS, _WORD), np.frombuffer(data, U64)
    store(state, repeated(lane, _WORDS), space, places, U64, _WORD, (words,), None)


def replace_field(
    state: BatchState,
    lanes: Lanes,
    space: str,
    address: Value,
    field: str,
    ordinal: int,
    value: Value,
    guard: Value | None,
) -> None:
    """tensormap.replace: change one field of the map at each thread's address."""

    def work(lane: Lanes, given: tuple[int, ...]) -> None:
        place, wanted = given
        try:
            changed = replaced(_read(state, lane, space, place), field, ordinal, wanted)
        except ValueError as error:
            raise _not_a_map(place, error) from None
        _write(state, lane, space, place, changed)

    by_thread(state, lanes, (address, value), guard, work)


def copy_map(state: BatchState, lanes: Lanes, target: Value, source: Value, guard: Value | None) -> None:
    """tensormap.cp_fenceproxy: copy 128 bytes from shared to global memory."""

    def work(lane: Lanes, given: tuple[int, ...]) -> None:
        place, origin = given
        _write(state, lane, "global", place, _read(state, lane, "shared", origin))

    by_thread(state, lanes, (target, source), guard, work)
