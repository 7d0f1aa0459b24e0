"""The table of instructions with a form of the compiled tier.

Other instructions are written by their emitters if they only compute (shared_forms.py); the rest escapes to the NumPy
tier.

A form gets the text of a kernel and an operation. It writes scalars or vectors, depending on the shape of the result.
It raises Refused for types, modifiers and operands that it does not support: then the operation escapes. The NumPy
tier has already checked which modifiers the instruction may have, when it translated the kernel.

An *attempt* is the form of an instruction whose common cases the runtime in C does: whether it can is known
when it runs. It calls `escape_unless` before it sets any register; then the operation escapes if the truth is false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pympsd_server.ptx.compiled_tier.memory_text import MemoryText
from pympsd_server.ptx.compiled_tier.shared_forms import write_shared
from pympsd_server.ptx.lowering.ir import Operation
from pympsd_server.ptx.numpy_tier.instruction_table import name_of

Form = Callable[[MemoryText, Operation], None]
_TABLE: Final[dict[str, Form]] = {}
_ATTEMPTS: Final[dict[str, Form]] = {}


def writes(names: str, table: dict[str, Form] = _TABLE) -> Callable[[Form], Form]:
    """Register the form of some instructions."""

    def register(form: Form) -> Form:
        table.update(dict.fromkeys(names.split(), form))
        return form

    return register


def attempts(names: str) -> Callable[[Form], Form]:
    """Register the attempt of some instructions."""
    return writes(names, _ATTEMPTS)


def write_attempt(text: MemoryText, operation: Operation) -> None:
    """Write an operation that escapes in rare cases; raise Refused for one that always escapes."""
    text.operation, text.escape = operation, text.label("escape")
    if operation.name not in _ATTEMPTS:
        raise text.refuse()
    _ATTEMPTS[operation.name](text, operation)
    text.end_attempt()


def write(text: MemoryText, operation: Operation) -> None:
    """Write one operation; raise Refused for one that escapes. ``st.async`` is not ``st``."""
    text.operation = operation
    _TABLE.get(name_of(operation), write_shared)(text, operation)
