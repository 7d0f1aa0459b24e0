"""The operations of the command stream: their layouts, compiled once from the one table in `pympsd.wire.records`.

Each operation of the table is an attribute of this module, made when it is first used:

    record = operations.ALLOCATE.record(context_id, sequence, 4096)
    (address,) = operations.ALLOCATE.answer.unpack_from(body)

A name that the table does not have raises AttributeError, like a misspelt attribute of any module.
"""

from typing import Final

from pympsd.wire import records


class OperationLayout:
    """One operation: packs its records, unpacks its answers' operands."""

    def __init__(self, name: str) -> None:
        row = records.BY_NAME[name]
        self.name: Final = name
        self.opcode: Final = row.opcode
        self.answered: Final = row.answered
        self.size: Final = row.layout.size
        self.answer: Final = row.answer_layout
        self._pack = row.layout.pack

    def record(self, context: int, sequence: int, *operands: int, flags: int = 0) -> bytes:
        """Return a packed record.

        ``context``: the executor's id of the context, 0 for an operation of the process. ``sequence``: a number from
        `Transport.sequence`, or 0 if the record is not answered. The operands are in the table's order; ``flags`` are
        FLAG_*. Raise struct.error for an operand that does not fit its field.
        """
        return self._pack(self.opcode, flags, self.size, context, sequence, *operands)


def __getattr__(name: str) -> OperationLayout:
    """Return the operation with a name in the table."""
    if name not in records.BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    operation = globals()[name] = OperationLayout(name)
    return operation


LAUNCH_OPCODE: Final = records.BY_NAME["LAUNCH"].opcode
SEQUENCE_AT: Final = records.HEADER_BYTES - 8
"""The offset of the sequence number, the header's last field, in a record."""
