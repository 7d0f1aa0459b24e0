"""Register the instructions for which the compiled tier has a form.

Of the other instructions, those that only compute are written by their emitters (shared_forms.py). The rest escape to
the NumPy tier.

A *form* is a function that writes an operation to the text of a kernel, as scalars or vectors, depending on the shape
of the result. If it does not support the types, modifiers or operands, it raises NotCompiled: the operation escapes.
The NumPy tier has already checked the modifiers when it translated the kernel.

An *attempt* is the form of an instruction of which the runtime in C does only the common cases. Whether a case is
common is known at run time. The form calls `escape_unless` before it sets any register, so that the operation escapes
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pympsd_server.ptx.compiled_tier.text.memory_text import MemoryText
from pympsd_server.ptx.compiled_tier.text.shared_forms import write_shared
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
    """Write an operation that escapes only in rare cases. Raises NotCompiled if it always escapes."""
    text.operation, text.escape = operation, text.label("escape")
    if operation.name not in _ATTEMPTS:
        raise text.refuse()
    _ATTEMPTS[operation.name](text, operation)
    text.end_attempt()


def write(text: MemoryText, operation: Operation) -> None:
    """Write one operation. Raises NotCompiled if it escapes."""
    text.operation = operation
    _TABLE.get(name_of(operation), write_shared)(text, operation)
