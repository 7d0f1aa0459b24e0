"""PTX images, loaded: kernels and global variables."""

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from pympsd_server.backends.emulated.ptx.isa.faults import InvalidPtx, NotPtx
from pympsd_server.backends.emulated.ptx.loading.device_library import link_device_library
from pympsd_server.backends.emulated.ptx.lowering.call_parameters import resolve_call_parameters
from pympsd_server.backends.emulated.ptx.lowering.function_table import FunctionTable, parameter_layout
from pympsd_server.backends.emulated.ptx.lowering.inlining import flatten
from pympsd_server.backends.emulated.ptx.lowering.procedures import STACK_BYTES, expand_calls
from pympsd_server.backends.emulated.ptx.lowering.static_variables import place_static_variables
from pympsd_server.backends.emulated.ptx.numpy_tier.literals import initial_bytes
from pympsd_server.backends.emulated.ptx.numpy_tier.translation import Translation, translate
from pympsd_server.backends.emulated.ptx.syntax.parser import parse_module
from pympsd_server.backends.emulated.ptx.syntax.tree import Function, Module, Target, Variable

MAX_THREADS = 1024
_ELF = b"\x7fELF"


@frozen
class Global:
    """A .global or .const variable of the module, not of a function: size and alignment in bytes."""

    name: str
    size: int
    alignment: int
    constant: bool
    managed: bool
    """Whether it is in memory that the host reaches, too."""


@frozen
class Kernel:
    """One .entry. `parameters` are (name, offset, size) in the parameter buffer; all sizes in bytes."""

    name: str
    parameters: tuple[tuple[str, int, int], ...]
    parameter_bytes: int
    shared_bytes: int
    """Static shared memory, without the reserved."""
    local_bytes: int
    stack_bytes: int
    """Part of the local bytes: for calls that are not inlined."""
    constant_bytes: int
    max_threads_per_block: int
    required_block: tuple[int, int, int] | None
    cluster: tuple[int, int, int]
    """The blocks of a cluster; (1, 1, 1) unless the kernel declares others."""
    registers: int
    target: int
    translation: Translation


@frozen
class Program:
    """A translated module; any number of clients may link it."""

    kernels: Mapping[str, Kernel]
    globals: Mapping[str, Global]
    variables: Mapping[str, Variable]
    functions: Mapping[str, int]
    """The addresses of functions that are not kernels."""
    target: Target


def load_program(image: bytes) -> Program:
    """Parse and translate a PTX image (trailing NUL bytes are fine).

    Raises NotPtx for a cubin or anything that is not text, and InvalidPtx, naming the
    instruction and the line, for syntax errors and for whatever is not supported.
    """
    if image.startswith(_ELF):
        raise NotPtx("the image is a cubin (ELF); the emulated GPU executes PTX only")
    try:
        text = image.rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotPtx("the image is not PTX text") from error
    if "\0" in text:
        raise NotPtx("the image is not PTX text: it contains NUL bytes")
    module = parse_module(text)
    link_device_library(module)
    place_static_variables(module)
    table = FunctionTable(module)
    variables = _variables(module, table)
    constant = sum(v.size for v in variables.values() if v.space == "const")
    kernels = {
        f.name: _kernel(table, f, constant) for f in module.functions.values() if f.is_entry and f.body is not None
    }
    module_variables = [v for v in variables.values() if not v.key]
    listed = {v.name: Global(v.name, v.size, v.alignment, v.space == "const", v.managed) for v in module_variables}
    proxy = MappingProxyType
    return Program(proxy(kernels), proxy(listed), proxy(variables), proxy(dict(table.addresses)), module.target)


def _variables(module: Module, table: FunctionTable) -> dict[str, Variable]:
    placed = {}
    for variable in module.variables.values():
        if variable.space in ("global", "const") and not variable.extern:
            if variable.count is None:
                raise InvalidPtx(f"{variable.name} has no size", variable.line)
            placed[variable.name] = variable
        elif variable.space not in ("global", "const", "shared"):
            raise InvalidPtx(f"unsupported: module-level .{variable.space} variable", variable.line)
    # Initialisers are checked here, with fake addresses, so that a refusal comes at load.
    fakes = {**table.addresses, **dict.fromkeys(placed, 0)}
    for variable in placed.values():
        initial_bytes(variable, fakes)
    return placed


def _kernel(table: FunctionTable, function: Function, constant_bytes: int) -> Kernel:
    code = flatten(table, function)
    resolve_call_parameters(code)
    expand_calls(code)
    translation = translate(code)
    layout = parameter_layout(function.parameters)
    parameters = tuple((p.name, offset, p.size) for p, offset in layout)
    required = _block_shape(function.directives.get("reqntid"))
    limit = _block_shape(function.directives.get("maxntid")) or required
    threads = MAX_THREADS if limit is None else min(MAX_THREADS, limit[0] * limit[1] * limit[2])
    # An estimate: the greatest number of 32-bit registers alive at the start of a block, and some for temporaries.
    alive = (sum(max(1, d.itemsize // 4) for d in plan.dtypes) for plan in translation.plans)
    return Kernel(
        name=function.name,
        parameters=parameters,
        parameter_bytes=max((offset + size for _, offset, size in parameters), default=0),
        shared_bytes=translation.shared_bytes - code.reserved_shared_bytes,
        local_bytes=translation.local_bytes,
        stack_bytes=STACK_BYTES if code.stack is not None else 0,
        constant_bytes=constant_bytes,
        max_threads_per_block=threads,
        required_block=required,
        cluster=_block_shape(function.directives.get("reqnctapercluster")) or (1, 1, 1),
        registers=min(min(255, max(alive, default=0) + 8), *function.directives.get("maxnreg", (255,))),
        target=table.module.target.architecture,
        translation=translation,
    )


def _block_shape(values: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    if values is None:
        return None
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z
