"""Rows: a driver function as one line of text, and the data read from it."""

import re
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import Any, Final

from attrs import frozen

from pympsd.errors import InternalError


class Calling(Enum):
    """When a driver function may be called, and who converts its arguments."""

    INITIALIZED = "initialized"
    """The function may be called after cuInit; its arguments are converted."""
    BEFORE_INIT = "before init"
    """The function may be called before cuInit and in host functions, too; its arguments are converted."""
    ANYWHERE = "anywhere"
    """The function may always be called, also in host functions and in a forked child.

    This client answers even if the program runs natively.
    """
    UNCONVERTED = "unconverted"
    """The core converts its arguments itself, because it caches the arguments of earlier calls."""
    VARIANTS = "variants"
    """The parameters differ between versions of cuda-bindings, so arguments are not converted."""


@frozen
class Parameter:
    """One parameter of a driver function, as C declares it.

    The type of an output is the type that its pointer points to: ``CUcontext`` for ``CUcontext *pctx``.
    """

    type: str
    name: str
    is_output: bool
    is_input: bool
    """Whether callers pass a value; an ``inout`` parameter is both an input and an output."""
    is_nonnull: bool = False
    """Whether NULL is INVALID_VALUE, even without a context, instead of an invalid handle."""


@frozen
class Signature:
    """One row: a driver function, and the core function that carries it out.

    ``arguments`` is the text of the core's arguments: names of inputs, fields of them, or constants.

    >>> (row,) = chapter("_objects.memory", "cuMemAlloc(out CUdeviceptr dptr, size_t bytesize) = allocate")
    >>> row.input_names, [output.type for output in row.outputs], row.core
    (('bytesize',), ['CUdeviceptr'], 'allocate')
    """

    name: str
    parameters: tuple[Parameter, ...]
    module: str
    core: str
    arguments: str
    calling: Calling

    def find_core(self) -> Callable[..., Any]:
        """Return the core function (see `find_core`). Raise InternalError if its module does not define it."""
        try:
            return find_core(f"{self.module}.{self.core}")
        except (ModuleNotFoundError, AttributeError) as error:
            raise InternalError(
                f"the row of {self.name} names the core {self.core}, which pympsd_client.{self.module} does not "
                f"define ({error}): write it there, or correct the row (CONTRIBUTING.md, 'A driver function')"
            ) from error

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """The parameters that callers pass, including ``inout`` ones."""
        return tuple(parameter for parameter in self.parameters if parameter.is_input)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the parameters that callers pass, in their order."""
        return tuple(parameter.name for parameter in self.inputs)

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        """The parameters that are returned after the result, in their order."""
        return tuple(parameter for parameter in self.parameters if parameter.is_output)


def find_core(path: str) -> Callable[..., Any]:
    """Return a core function by its path in `pympsd_client`, and import its module if necessary.

    Tables of functions contain paths, which are resolved at a function's first call. Most programs use few of the
    modules, and importing all of them takes longer than cuInit may.

    >>> find_core("_api.initialization.driver_version")()
    13010
    """
    module, _, name = path.rpartition(".")
    core: Callable[..., Any] = getattr(import_module(f"pympsd_client.{module}"), name)
    return core


_ROW: Final = re.compile(r"(\w+)\((.*?)\) = (?:([\w.]+)\.)?(\w+)(?:\((.*)\))?")
_PARAMETER: Final = re.compile(r"(out |inout |nonnull )?(.*?) ?(\w+)")


def chapter(module: str, rows: str, calling: Calling = Calling.INITIALIZED) -> tuple[Signature, ...]:
    """Return the rows in a text, one on each line; a line that begins with blanks continues the previous line.

    Args:
        module: The module of the core functions, relative to pympsd_client; a row may name another one.
        rows: The text.
        calling: How these functions are called.

    Raises:
        ValueError: A line is not a row.
    """
    signatures = []
    for row in rows.replace("\n    ", " ").strip().splitlines():
        match = _ROW.fullmatch(row)
        if match is None:
            raise ValueError(f"not a row: {row}")
        name, text, elsewhere, core, arguments = match.groups()
        parts = filter(None, (_PARAMETER.fullmatch(part.strip()) for part in text.split(",") if part))
        parameters = tuple(
            Parameter(part[2], part[3], part[1] in ("out ", "inout "), part[1] != "out ", part[1] == "nonnull ")
            for part in parts
        )
        if arguments is None:
            arguments = ", ".join(parameter.name for parameter in parameters if parameter.is_input)
        signatures.append(Signature(name, parameters, elsewhere or module, core, arguments, calling))
    return tuple(signatures)
