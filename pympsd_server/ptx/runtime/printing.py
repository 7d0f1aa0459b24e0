"""Print the texts of vprintf and of failed assertions, in the order of the threads."""

from functools import lru_cache

import numpy as np

from pympsd_server.ptx.isa.datatypes import Array, Value
from pympsd_server.ptx.isa.faults import DeviceAssertion, DeviceFault, IllegalAddress
from pympsd_server.ptx.isa.machine import SPACE_OF_WINDOW, WINDOW_BITS
from pympsd_server.ptx.math.c_format import MAX_STRING, Conversion, parse_format
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.spaces import load, translate_fault
from pympsd_server.ptx.runtime.threads import Threads, spread

_BYTE = np.dtype("u1")
_POINTER = np.dtype("u8")
_THREADS_TOGETHER = 64
"""The number of threads whose texts are in memory at a time, because each may be a megabyte long."""
_FIRST_PIECE = 256
"""The size in bytes of the first piece of a string in which its end is looked for."""
_parse = lru_cache(maxsize=256)(parse_format)


def read_string(state: BatchState, thread: int, address: int) -> bytes:
    """Return the string at a thread's generic address, up to the NUL, or its first MAX_STRING bytes.

    Raises IllegalAddress if the string has no end, and Cancelled if the batch was cancelled.
    """
    state.poll()  # the threads may print long strings
    space = SPACE_OF_WINDOW.get(address >> WINDOW_BITS)
    content: memoryview
    if space is None:
        start, size = state.space.find(address)
        content = state.space.view(address, start + size - address)
    else:
        offset = address & ((1 << WINDOW_BITS) - 1)
        reader = Threads(np.array([thread]), 1)
        base = 0 if space == "param" else int(state.frame_bases(reader, space, 0)[0])
        content = state.view(space, _BYTE)[base + offset : base + state.frame_size(space)].data
    content = content[: MAX_STRING + 1]
    text, begin, count = b"", 0, _FIRST_PIECE
    while begin < len(content):
        # In pieces, because the string may be at the beginning of a large allocation.
        piece, end, _ = bytes(content[begin : begin + count]).partition(b"\0")
        text += piece
        if end:
            return text
        begin, count = begin + count, 2 * count
    if len(text) > MAX_STRING:
        return text[:MAX_STRING]
    raise IllegalAddress(f"the string at {address:#x} has no end")


def device_print(state: BatchState, threads: Threads, form: Value, arguments: Value) -> Value:
    """vprintf: print each thread's text. Returns the number of arguments, or -1 for a null format."""
    forms = spread(form, threads.count)
    counts = np.full(threads.count, -1, np.int32)
    order = np.argsort(threads.indices(), kind="stable")
    for begin in range(0, threads.count, _THREADS_TOGETHER):
        positions = order[begin : begin + _THREADS_TOGETHER]
        texts: dict[int, bytes] = {}
        for address in np.unique(forms[positions]).tolist():
            if not address:
                continue
            selected = positions[forms[positions] == address]
            inner = Threads(threads.indices().take(selected), len(selected))
            pointers = arguments if arguments.ndim == 0 else arguments.take(selected)
            try:
                parts = _parse(read_string(state, int(inner.indices()[0]), address))
                texts |= zip(selected.tolist(), _format(state, inner, parts, pointers), strict=True)
            except DeviceFault as fault:
                raise translate_fault(selected, fault) from None
            counts[selected] = sum(len(part.arguments) for part in parts if isinstance(part, Conversion))
        for position in positions.tolist():
            if text := texts.get(position):
                state.facilities.output.print(text)
    return counts


def _format(state: BatchState, threads: Threads, parts: list[bytes | Conversion], arguments: Value) -> list[bytes]:
    """Return each thread's text: load the arguments of each conversion from memory, and join the parts."""
    columns: list[list[bytes]] = []
    offset = 0
    ids = threads.indices().tolist()
    for part in parts:
        if isinstance(part, bytes):
            columns.append([part] * threads.count)
            continue
        values: list[list[int | float | bytes]] = []
        for kind in part.arguments:
            dtype = _POINTER if kind == "s" else np.dtype(kind)
            # An argument is aligned to its size.
            offset = -(-offset // dtype.itemsize) * dtype.itemsize
            loaded = load(state, threads, "generic", arguments + np.uint64(offset), dtype, dtype.itemsize, None)
            offset += dtype.itemsize
            column = spread(loaded, threads.count).tolist()
            if kind == "s":
                column = _strings(state, ids, column)
            values.append(column)
        rows = zip(*values, strict=True) if values else [()] * threads.count
        columns.append([part.text(tuple(row)) for row in rows])
    return [b"".join(row) for row in zip(*columns, strict=True)] if columns else [b""] * threads.count


def _strings(state: BatchState, ids: list[int], addresses: list[int]) -> list[bytes]:
    """Return the string of each thread; a fault has the thread's position."""
    texts: list[bytes] = []
    for thread, address in zip(ids, addresses, strict=True):
        try:
            texts.append(_string(state, thread, address))
        except DeviceFault as fault:
            fault.position = len(texts)
            raise
    return texts


def _string(state: BatchState, thread: int, address: int) -> bytes:
    return read_string(state, thread, address) if address else b"(null)"


def report_assertion(
    state: BatchState, threads: Threads, arguments: tuple[Value, Value, Value, Value]
) -> DeviceAssertion:
    """Report each thread's __assertfail(message, file, line, function) in CUDA's words; return the fault to raise."""
    columns: list[Array] = [spread(value, threads.count) for value in arguments]
    for position in np.argsort(threads.indices(), kind="stable").tolist():
        thread = int(threads.indices()[position])
        message, file, line, function = (int(column[position]) for column in columns)
        text, path, name = (_string(state, thread, pointer) for pointer in (message, file, function))
        block, place = state.place_of(thread)
        where = b"block: [%d,%d,%d], thread: [%d,%d,%d]" % (*block, *place)
        state.facilities.output.report(b"%s:%d: %s: %s Assertion `%s` failed.\n" % (path, line, name, where, text))
    fault = DeviceAssertion("a device-side assert failed")
    fault.position = int(np.argmin(threads.indices()))
    return fault
