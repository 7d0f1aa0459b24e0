"""Rows: a driver function as one line of text, and what is read from it."""

import re
from enum import Enum
from typing import Final

from attrs import frozen


class Calling(Enum):
    """How a function is called."""

    INITIALIZED = "initialized"
    """After cuInit, with its arguments converted."""
    BEFORE_INIT = "before init"
    """Before cuInit too."""
    ANYWHERE = "anywhere"
    """Always: in host functions, in a forked child, and by this client even if the program runs natively."""
    UNCONVERTED = "unconverted"
    """The core converts its arguments, because it caches those of earlier calls."""
    VARIANTS = "variants"
    """Versions of cuda-bindings differ in its parameters: arguments are not converted."""


@frozen
class Parameter:
    """One parameter as in C; the type of an output is the type that its pointer points to."""

    type: str
    name: str
    is_output: bool
    is_input: bool
    """Whether a caller gives it; an ``inout`` parameter is both."""


@frozen
class Signature:
    """One row. ``arguments`` go to the core: names of inputs, their fields, or constants."""

    name: str
    parameters: tuple[Parameter, ...]
    module: str
    core: str
    arguments: str
    calling: Calling

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """The parameters that a caller gives."""
        return tuple(parameter for parameter in self.parameters if parameter.is_input)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the parameters that a caller gives."""
        return tuple(parameter.name for parameter in self.inputs)

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        """The parameters that are returned next to the result."""
        return tuple(parameter for parameter in self.parameters if parameter.is_output)


_ROW: Final = re.compile(r"(\w+)\((.*?)\) = (?:([\w.]+)\.)?(\w+)(?:\((.*)\))?")
_PARAMETER: Final = re.compile(r"(out |inout )?(.*?) ?(\w+)")


def chapter(module: str, rows: str, calling: Calling = Calling.INITIALIZED) -> tuple[Signature, ...]:
    """Return the rows of a text; the core functions are those of ``module`` unless a row names another."""
    signatures = []
    for row in rows.replace("\n    ", " ").strip().splitlines():
        match = _ROW.fullmatch(row)
        if match is None:
            raise ValueError(f"not a row: {row}")
        name, text, elsewhere, core, arguments = match.groups()
        parts = filter(None, (_PARAMETER.fullmatch(part.strip()) for part in text.split(",") if part))
        parameters = tuple(Parameter(part[2], part[3], part[1] is not None, part[1] != "out ") for part in parts)
        if arguments is None:
            arguments = ", ".join(parameter.name for parameter in parameters if parameter.is_input)
        signatures.append(Signature(name, parameters, elsewhere or module, core, arguments, calling))
    return tuple(signatures)
