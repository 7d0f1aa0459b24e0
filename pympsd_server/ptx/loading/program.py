"""Load PTX images: their kernels and global variables.

CUDA compiles a whole image when it is loaded, and so finds the errors of every kernel then. Here a megabyte takes
three seconds, and a program launches few of the kernels of a large library. So there are two ways to load an image:

- An image of up to EAGER_BYTES, such as code written by hand or compiled at run time, is translated when it is
  loaded. All errors are found then, as in CUDA.
- Of a larger image, a load parses everything except the bodies of functions (syntax/parser.py). It searches the
  bodies only for variables of the module and for instructions that do not exist. A kernel is parsed and translated
  when it is first needed. Its errors have the same text and line as in a small image.

`Program.kernels` is a mapping that translates a kernel at its first look-up. Several threads may use it; one of them
translates at a time.
"""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from attrs import define, field, frozen

from pympsd_server.ptx.isa.faults import InvalidPtx, NotPtx
from pympsd_server.ptx.loading.device_library import link_device_library
from pympsd_server.ptx.lowering.call_parameters import resolve_call_parameters
from pympsd_server.ptx.lowering.control_flow import ENDS_BLOCK
from pympsd_server.ptx.lowering.function_table import FunctionTable, instructions_of, parameter_layout
from pympsd_server.ptx.lowering.inlining import STACK_INSTRUCTIONS, flatten
from pympsd_server.ptx.lowering.procedures import STACK_BYTES, expand_calls
from pympsd_server.ptx.numpy_tier.instruction_table import TABLE
from pympsd_server.ptx.numpy_tier.literals import initial_bytes
from pympsd_server.ptx.numpy_tier.translation import Translation, translate
from pympsd_server.ptx.syntax.parser import parse_module
from pympsd_server.ptx.syntax.tree import Function, Module, Target, Variable

MAX_THREADS = 1024
EAGER_BYTES: Final = 64 << 10
"""The size of the longest image, in bytes, whose kernels are all translated when it is loaded."""
EAGER_OPERATIONS: Final = 50_000
"""The number of operations after which a load translates no more kernels, because inlined calls can multiply a small
image.
"""
MAX_LOCAL_BYTES: Final = 512 << 10
"""The maximum local memory of a thread, as on a GPU."""
_FUNCTION_BYTES: Final = 1300
"""The estimated memory of a function that is not translated, without its text, in bytes."""
_CHARACTER_BYTES: Final = 2
"""The estimated memory of a character of a kernel's Python code once it is compiled, in bytes."""
_OPERATION_BYTES: Final = 1000
"""The estimated memory of an operation of a kernel, with its part of the block's plan, in bytes."""
_INSTRUCTION: Final = re.compile(r"[;{}:]\s*(?:@!?[\w%$]+\s+)?([a-z]\w*)(?=[.\s;])")
"""The pattern of an instruction's name, which follows a semicolon, a brace or a label, and perhaps a guard."""
_ELF = b"\x7fELF"


@frozen
class Global:
    """A .global or .const variable that the module declares outside of functions; size and alignment in bytes."""

    name: str
    size: int
    alignment: int
    constant: bool
    managed: bool
    """Whether the host can access the variable, too."""


@frozen
class Kernel:
    """A kernel (.entry). `parameters` are (name, offset in the parameter buffer, size). All sizes are in bytes."""

    name: str
    parameters: tuple[tuple[str, int, int], ...]
    parameter_bytes: int
    shared_bytes: int
    """The kernel's static shared memory, without reserved shared memory."""
    local_bytes: int
    stack_bytes: int
    """The part of `local_bytes` that is the stack for calls of procedures."""
    constant_bytes: int
    max_threads_per_block: int
    required_block: tuple[int, int, int] | None
    cluster: tuple[int, int, int]
    """The extents of a cluster in blocks; (1, 1, 1) unless the kernel declares them."""
    registers: int
    target: int
    translation: Translation


@define(eq=False)
class Kernels(Mapping[str, Kernel]):
    """The kernels of a module by name, in the order of the image.

    A kernel is translated when it is first looked up, which may raise InvalidPtx.
    """

    _table: FunctionTable
    _constant_bytes: int
    _functions: dict[str, Function]
    _translated: dict[str, Kernel] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)
    nbytes: int = 0
    """The estimated memory of the image and of the translated kernels, in bytes."""

    def __getitem__(self, name: str) -> Kernel:
        kernel = self._translated.get(name)
        if kernel is None:
            function = self._functions[name]
            with self._lock:
                kernel = self._translated.get(name)
                if kernel is None:
                    kernel = self._translated[name] = _kernel(self._table, function, self._constant_bytes)
                    self.nbytes += _size_of(kernel.translation)
        return kernel

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def is_translated(self, name: str) -> bool:
        """Return whether a kernel has been translated."""
        return name in self._translated


@frozen
class Program:
    """A loaded image. Any number of clients may link it; its kernels are translated when they are needed."""

    kernels: Kernels
    globals: Mapping[str, Global]
    variables: Mapping[str, Variable]
    functions: Mapping[str, int]
    """The addresses of functions that are not kernels, by name."""
    target: Target


def load_program(image: bytes) -> Program:
    """Parse a PTX image, which may end in NUL bytes, and translate its kernels if it has at most EAGER_BYTES.

    Raises NotPtx for a cubin or anything else that is not text. Raises InvalidPtx, with the instruction and the line,
    for syntax errors and unsupported PTX. If the image is larger, an error in a kernel is raised when the kernel is
    looked up.
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
    table = FunctionTable(module)
    table.parse_static_variables()
    variables = _variables(module, table)
    constant = sum(v.size for v in variables.values() if v.space == "const")
    defined = [function for function in module.functions.values() if function.body is not None]
    nbytes = len(text) + _FUNCTION_BYTES * len(module.functions)
    entries = {function.name: function for function in defined if function.is_entry}
    kernels = Kernels(table, constant, entries, nbytes=nbytes)
    if len(image) <= EAGER_BYTES:
        for function in defined:
            table.statements(function)
        operations = 0
        for name in kernels:
            operations += len(kernels[name].translation.code.operations)
            if operations > EAGER_OPERATIONS:
                break
    else:
        _check_instructions(table, defined)
    module_variables = [v for v in variables.values() if not v.key]
    global_variables = {
        v.name: Global(v.name, v.size, v.alignment, v.space == "const", v.managed) for v in module_variables
    }
    proxy = MappingProxyType
    return Program(kernels, proxy(global_variables), proxy(variables), proxy(dict(table.addresses)), module.target)


def _variables(module: Module, table: FunctionTable) -> dict[str, Variable]:
    module_variables = {}
    for variable in module.variables.values():
        if variable.space in ("global", "const") and not variable.extern:
            if variable.count is None:
                raise InvalidPtx(f"{variable.name} has no size", variable.line)
            module_variables[variable.name] = variable
        elif variable.space not in ("global", "const", "shared"):
            raise InvalidPtx(f"unsupported: module-level .{variable.space} variable", variable.line)
    # Check initialisers with fake addresses, so that the load reports their errors.
    fakes = {**table.addresses, **dict.fromkeys(module_variables, 0)}
    for variable in module_variables.values():
        initial_bytes(variable, fakes)
    return module_variables


def _check_instructions(table: FunctionTable, functions: Iterable[Function]) -> None:
    """Raise InvalidPtx, with the name and line, for the first instruction that does not exist.

    A regular expression searches the text of each function for names of instructions. It may match other text, so
    only functions with an unknown name are parsed, and only an instruction that the parser finds is an error.
    """
    names = {name.split(".", 1)[0] for name in TABLE} | ENDS_BLOCK | STACK_INSTRUCTIONS | {"call", "ret"}
    for function in functions:
        assert function.body is not None
        if not names.issuperset(_INSTRUCTION.findall(function.body.text)):
            for instruction in instructions_of(table.statements(function)):
                if instruction.name not in names:
                    raise InvalidPtx(f"unsupported instruction {instruction.opcode}", instruction.line)


def _kernel(table: FunctionTable, function: Function, constant_bytes: int) -> Kernel:
    """Lower and translate a kernel. Raises InvalidPtx for unsupported code and too much local memory."""
    code = flatten(table, function)
    resolve_call_parameters(code)
    expand_calls(code)
    translation = translate(code)
    if translation.local_bytes > MAX_LOCAL_BYTES:
        reason = f"{translation.local_bytes} bytes of local memory a thread, more than {MAX_LOCAL_BYTES}"
        raise InvalidPtx(f"{function.name} uses {reason}", function.line)
    layout = parameter_layout(function.parameters)
    parameters = tuple((p.name, offset, p.size) for p, offset in layout)
    required = _block_shape(function.directives.get("reqntid"))
    limit = _block_shape(function.directives.get("maxntid")) or required
    threads = MAX_THREADS if limit is None else min(MAX_THREADS, limit[0] * limit[1] * limit[2])
    # Estimate the registers: the most 32-bit registers alive at the start of a block, and some for temporaries.
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


def _size_of(translation: Translation) -> int:
    characters, operations = sum(map(len, translation.sources)), len(translation.code.operations)
    return _CHARACTER_BYTES * characters + _OPERATION_BYTES * operations


def _block_shape(values: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    if values is None:
        return None
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z
