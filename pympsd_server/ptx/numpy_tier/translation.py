"""Translate a kernel's blocks to Python functions: the NumPy tier's interface.

`translate` lays out the kernel's shared and local variables, splits its operations into basic blocks, and calls the
emitter of every operation. The result is a `Translation`: a plan for each block (lowering/block_plans.py) and the
source of its functions. The source is compiled when a kernel is first launched, once for all clients; `functions`
then binds it to the addresses of a linked module.

Python's compiler takes about 100 bytes of memory for each character of a source, and no other thread runs Python
meanwhile. So the source is compiled in pieces.

Generated code can call NumPy and the public functions of the modules in _LIBRARY. Their names must be unique; after
renaming one, change the emitters that write it.

The compiled tier uses the same emitters for instructions that only compute (compiled_tier/text/shared_forms.py).
"""

import threading
from collections.abc import Callable, Hashable
from types import CodeType
from typing import Any, Final

import numpy as np
from attrs import define, field

from pympsd_server.ptx.isa.datatypes import DTYPE_NAMES
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.lowering.block_plans import BlockPlan
from pympsd_server.ptx.lowering.control_flow import build_blocks, drop_dead_results
from pympsd_server.ptx.lowering.ir import Code, Operation, registers_read, registers_written
from pympsd_server.ptx.math import conversion, floats, functions, integers, small_floats, video
from pympsd_server.ptx.matrices import multiply, transfers, warp_groups
from pympsd_server.ptx.numpy_tier import (
    emit_arithmetic,
    emit_async,
    emit_bits,
    emit_compare,
    emit_convert,
    emit_float,
    emit_matrices,
    emit_memory,
    emit_tensor_maps,
    emit_textures,
    emit_video,
    emit_warp,
)
from pympsd_server.ptx.numpy_tier.block_ends import emit_end
from pympsd_server.ptx.numpy_tier.instruction_table import emit
from pympsd_server.ptx.numpy_tier.writer import Constants, Writer
from pympsd_server.ptx.runtime import atomics, bulk_copies, calls, mbarrier, printing, spaces, special_registers, warp
from pympsd_server.ptx.tensor_maps import box_copies, descriptors
from pympsd_server.ptx.textures import sampling, surfaces

EMITTERS = (
    emit_arithmetic, emit_async, emit_bits, emit_compare, emit_convert, emit_float, emit_matrices, emit_memory,
    emit_tensor_maps, emit_textures, emit_video, emit_warp,
)  # fmt: skip
_LIBRARY = (
    atomics, box_copies, bulk_copies, calls, conversion, descriptors, floats, functions, integers, mbarrier, multiply,
    printing, sampling, small_floats, spaces, special_registers, surfaces, transfers, video, warp, warp_groups,
)  # fmt: skip

_PIECE: Final = 50_000
"""The maximum number of characters that are compiled together, unless a single function has more."""
_OPERATIONS_PER_POLL: Final = 8
"""The number of operations between two polls of the cancel flag; one of them may take a second for all threads."""
MAX_SOURCE: Final = 100_000_000
"""The maximum number of characters of a kernel's source; 100,000 loads and stores have 7,300,000."""

_MIN_DYNAMIC_ALIGNMENT: Final = 16
"""The minimum alignment of dynamic shared memory in bytes, as on an H100."""


@define
class Translation:
    """A translated kernel: its blocks' plans and functions, which are compiled when they are first needed."""

    code: Code
    plans: list[BlockPlan]
    sources: list[str]
    """The source of the functions, in pieces."""
    constants: Constants
    shared_bytes: int
    """The bytes of reserved and static shared memory together."""
    local_bytes: int
    offsets: dict[tuple[str, str], int]
    """The offsets of shared and local variables in their frames; -1 for dynamic shared memory."""
    machine_codes: dict[Hashable, Any] = field(factory=dict)
    """The machine codes of the compiled tier, by the class of the thread block's shape."""
    shapes: dict[tuple[int, int, int], Any] = field(factory=dict)
    """The class of each shape of thread blocks that was launched; code depends on the shape only by its class."""
    has_loops: bool | None = None
    """Whether the kernel has loops; None if it is not known yet."""
    numpy_seconds: float = 0.0
    """The seconds for which the NumPy tier has run the kernel."""
    decided_at: float = 0.0
    """The time (CLOCK_MONOTONIC, in seconds) until which new blocks wait for the compiler."""
    _compiled: list[CodeType] | None = None
    _lock: threading.Lock = field(factory=threading.Lock)

    def functions(self, addresses: dict[str, int]) -> list[Callable[..., Any]]:
        """Return the block functions, bound to the addresses of a linked module's variables."""
        with self._lock:
            if self._compiled is None:
                name = f"<ptx {self.code.name}>"
                self._compiled = [compile(source, name, "exec") for source in self.sources]
        names = dict(_namespace())
        names.update(self.constants.values)
        names.update(_bind(self.constants, addresses))
        for piece in self._compiled:
            exec(piece, names)
        return [names[f"block{i}"] for i in range(len(self.plans))]

    def operation_function(
        self, operation: Operation, addresses: dict[str, int]
    ) -> tuple[Callable[..., Any], list[int], list[int]]:
        """Return a function for one operation, and the registers that the operation reads and sets.

        The compiled tier calls the function with the state, the threads and the values of the registers that it
        reads. It returns the values of the registers that it sets.
        """
        inputs = sorted({r.number for r in registers_read(operation, self.code.carry)})
        outputs = sorted({r.number for r in registers_written(operation, self.code.carry)})
        writer = Writer(self.code, Constants(), self.offsets, tuple(inputs))
        emit(writer, operation)
        lines = writer.text(f"({''.join(writer.register_value(r) + ', ' for r in outputs)})")
        source = f"def run(B, T{''.join(f', r{r}' for r in inputs)}):\n" + "\n".join(f"    {line}" for line in lines)
        names = dict(_namespace()) | writer.constants.values | _bind(writer.constants, addresses)
        exec(compile(source, f"<ptx {operation.opcode}>", "exec"), names)
        return names["run"], inputs, outputs


def _bind(constants: Constants, addresses: dict[str, int]) -> dict[str, np.uint64]:
    """Return the address that each name in `constants` refers to."""
    places = constants.addresses.items()
    return {name: np.uint64((addresses[variable] + offset) & (2**64 - 1)) for (variable, offset), name in places}


def _namespace() -> dict[str, Any]:
    names: dict[str, Any] = {"np": np}
    for name, scalar in DTYPE_NAMES.items():
        names[name] = scalar
        names[f"{name}_t"] = np.dtype(scalar)
    for module in _LIBRARY:
        names.update({n: v for n, v in vars(module).items() if callable(v) and not n.startswith("_")})
    return names


@define
class _Layout:
    """The offsets of a kernel's shared and local variables in their frames; -1 for dynamic shared memory."""

    offsets: dict[tuple[str, str], int] = field(factory=dict)
    shared_bytes: int = 0
    local_bytes: int = 0


def _layout(code: Code) -> _Layout:
    """Place the kernel's shared and local variables one after another, each at its alignment."""
    layout, dynamic_alignment = _Layout(shared_bytes=code.reserved_shared_bytes), 1
    for name, variable in code.shared.items():
        if variable.count is None or variable.extern:
            layout.offsets["shared", name] = -1
            dynamic_alignment = max(dynamic_alignment, variable.alignment, _MIN_DYNAMIC_ALIGNMENT)
            continue
        start = -(-layout.shared_bytes // variable.alignment) * variable.alignment
        layout.offsets["shared", name] = start
        layout.shared_bytes = start + variable.size
    # Dynamic shared memory follows static shared memory.
    layout.shared_bytes = -(-layout.shared_bytes // dynamic_alignment) * dynamic_alignment
    for name, variable in code.local.items():
        start = -(-layout.local_bytes // variable.alignment) * variable.alignment
        layout.offsets["local", name] = start
        layout.local_bytes = start + variable.size
    return layout


def translate(code: Code) -> Translation:
    """Translate a kernel.

    Raises InvalidPtx for the first unsupported instruction, with its name and line, or if the kernel is too large.
    """
    layout = _layout(code)
    blocks = build_blocks(code)
    constants = Constants()
    plans, sources, total = [], [""], 0
    for number, block in enumerate(blocks):
        writer = Writer(code, constants, layout.offsets, block.live_in)
        for index, operation in enumerate(drop_dead_results(block, blocks, code.carry)):
            if index and index % _OPERATIONS_PER_POLL == 0:
                writer.run("B.poll()")
            emit(writer, operation)
        plan, returned = emit_end(writer, block, blocks)
        plans.append(plan)
        arguments = "".join(f", r{r}" for r in block.live_in)
        lines = [f"def block{number}(B, T{arguments}):", *(f"    {line}" for line in writer.text(returned)), ""]
        function = "\n".join(lines)
        total += len(function)
        if total > MAX_SOURCE:
            raise InvalidPtx(
                f"kernel {code.name} is too large: its instructions, and the registers that are alive at the targets "
                f"of its branches, amount to more than {MAX_SOURCE} characters of Python code; split the kernel"
            )
        if sources[-1] and len(sources[-1]) + len(function) > _PIECE:
            sources.append("")
        sources[-1] += function
    return Translation(code, plans, sources, constants, layout.shared_bytes, layout.local_bytes, layout.offsets)
