"""What each operation of the command stream does: the table of records.py, with a function for every row."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd_server.backends.interface import BackendError
from pympsd_server.executor.operations import host_function, memory, module, pinned, stream
from pympsd_server.executor.request import Call

Execute = Callable[[Call], None]


@frozen
class Row:
    """One operation: how its body is read, and what it does."""

    name: str
    answered: bool
    has_tail: bool
    operands: struct.Struct
    execute: Execute

    def read(self, call: Call, body: bytes) -> None:
        """Take operands and tail out of a record's body; BackendError INVALID_VALUE when the length is wrong."""
        size = self.operands.size
        if len(body) < size or (len(body) > size and not self.has_tail):
            reason = f"{self.name} with a body of {len(body)} bytes, its operands have {size}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        call.operands = self.operands.unpack_from(body)
        call.tail = body[size:]


def _row(operation: records.Operation, execute: Execute) -> Row:
    operands = struct.Struct("=" + "".join(code for _, code in operation.operands))
    return Row(operation.name, operation.answered, bool(operation.tail), operands, execute)


_EXECUTE: Final[Mapping[str, Execute]] = {
    **memory.CALLS,
    **pinned.CALLS,
    **module.CALLS,
    **stream.CALLS,
    **host_function.CALLS,
}
ROWS: Final = {operation.opcode: _row(operation, _EXECUTE[operation.name]) for operation in records.OPERATIONS}
"""By opcode. A row of the wire's table without a function here is an error at import."""
