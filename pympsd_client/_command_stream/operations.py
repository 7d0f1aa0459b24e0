"""The operations of the command stream, their layouts compiled once from the one table in `pympsd.wire.records`."""

from __future__ import annotations

import struct
from typing import Final

from pympsd.wire import records


class Operation:
    """One operation: packs its records, unpacks its answers' operands."""

    def __init__(self, name: str) -> None:
        row = records.BY_NAME[name]
        self.name: Final = name
        self.opcode: Final = row.opcode
        self.size: Final = row.layout.size
        self.answer: Final = row.answer_layout
        self._pack = row.layout.pack

    def record(self, context: int, sequence: int, *operands: int, flags: int = 0) -> bytes:
        """Return a record; operands as the table names them."""
        return self._pack(self.opcode, flags, self.size, context, sequence, *operands)


ALLOCATE: Final = Operation("ALLOCATE")
FREE: Final = Operation("FREE")
MEMORY_INFO: Final = Operation("MEMORY_INFO")
COPY_TO_DEVICE: Final = Operation("COPY_TO_DEVICE")
COPY_FROM_DEVICE: Final = Operation("COPY_FROM_DEVICE")
COPY_ON_DEVICE: Final = Operation("COPY_ON_DEVICE")
FILL: Final = Operation("FILL")
IMAGE_PART: Final = Operation("IMAGE_PART")
LOAD_MODULE: Final = Operation("LOAD_MODULE")
UNLOAD_MODULE: Final = Operation("UNLOAD_MODULE")
CREATE_STREAM: Final = Operation("CREATE_STREAM")
DESTROY_STREAM: Final = Operation("DESTROY_STREAM")
QUERY_STREAM: Final = Operation("QUERY_STREAM")
SYNCHRONIZE_STREAM: Final = Operation("SYNCHRONIZE_STREAM")
WAIT_EVENT: Final = Operation("WAIT_EVENT")
CREATE_EVENT: Final = Operation("CREATE_EVENT")
DESTROY_EVENT: Final = Operation("DESTROY_EVENT")
RECORD_EVENT: Final = Operation("RECORD_EVENT")
QUERY_EVENT: Final = Operation("QUERY_EVENT")
SYNCHRONIZE_EVENT: Final = Operation("SYNCHRONIZE_EVENT")
ELAPSED_TIME: Final = Operation("ELAPSED_TIME")
SYNCHRONIZE_CONTEXT: Final = Operation("SYNCHRONIZE_CONTEXT")
HOST_FUNCTION: Final = Operation("HOST_FUNCTION")
HOST_FUNCTION_DONE: Final = Operation("HOST_FUNCTION_DONE")
ROOM: Final = Operation("ROOM")
ALLOCATE_PINNED: Final = Operation("ALLOCATE_PINNED")
FREE_PINNED: Final = Operation("FREE_PINNED")
COPY_TO_DEVICE_PINNED: Final = Operation("COPY_TO_DEVICE_PINNED")
COPY_FROM_DEVICE_PINNED: Final = Operation("COPY_FROM_DEVICE_PINNED")

LAUNCH_OPCODE: Final = records.BY_NAME["LAUNCH"].opcode
LAUNCH_FORMAT: Final = records.HEADER.format + "".join(code for _, code in records.BY_NAME["LAUNCH"].operands)
"""Header and operands of LAUNCH; a function appends the layout of its parameters (`_parameters`)."""
LAUNCH_BYTES: Final = struct.calcsize(LAUNCH_FORMAT)
SEQUENCE_AT: Final = records.HEADER_BYTES - 8
"""Where in a record its sequence number lies: last in the header."""
