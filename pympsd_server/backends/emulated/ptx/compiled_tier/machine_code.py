"""Kernels compiled by LLVM, through llvmlite: the text of a kernel in, the address of a function out.

The optimiser runs at level 2 without its vectorisers, because a kernel is vectors already. The functions of the C
runtime that kernels call are known to LLVM by their names.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

from attrs import define

from pympsd_server.backends.emulated.ptx.compiled_tier.kernel_text import FUNCTION, Stop
from pympsd_server.backends.emulated.ptx.compiled_tier.kernel_writer import write_text
from pympsd_server.backends.emulated.ptx.compiled_tier.lanes import Refused
from pympsd_server.backends.emulated.ptx.compiled_tier.native_runtime import FUNCTIONS, runtime
from pympsd_server.backends.emulated.ptx.lowering.ir import Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.translation import Translation

_LEVEL: Final = 2
_MAX_TEXT: Final = 1_500_000
"""Characters of a kernel's text: LLVM takes about 4 microseconds for each."""


@define(eq=False)
class MachineCode:
    """One kernel for blocks of one kind of shape."""

    address: int
    """That of its function in this process."""
    width: int
    frame_bytes: int
    """The size of a warp's frame, a multiple of 64."""
    sites: int
    """The entries of its table of allocations."""
    globals_used: list[tuple[str, int]]
    stops: list[Stop]
    escapes: dict[int, tuple[Operation, int]]
    """The escaping operations and the stops behind them, by the stop before them."""
    slots: dict[int, int]
    """Where registers are in a frame, in bytes; only those that a stop needs."""
    varying: frozenset[int]
    """The registers that are vectors."""
    origins: list[int]
    """The blocks that begin at segments, -1 for the middle of one."""
    _engine: object
    """Owns the function's memory."""

    def varies(self, number: int) -> bool:
        """Return whether a register is a vector."""
        return number in self.varying


@cache
def _llvm() -> Any:
    """Return llvmlite's binding, ready for this machine; raise ImportError."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name in FUNCTIONS:
        llvm.add_symbol(name, ctypes.cast(runtime()[name], ctypes.c_void_p).value)
    return llvm


def _optimise(llvm: Any, module: Any, machine: Any) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=_LEVEL)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def compile_kernel(translation: Translation, block: tuple[int, int, int]) -> MachineCode:
    """Compile a kernel for blocks of a shape. Raises Refused; ImportError without llvmlite, NoLibrary without C."""
    llvm = _llvm()
    features = llvm.get_host_cpu_features()
    has_halves = bool(features.get("f16c")) or "aarch64" in llvm.get_default_triple()
    sizes = translation.offsets, translation.shared_bytes
    text = write_text(translation.code, *sizes, block, has_halves=has_halves)
    if len(text.module_text) > _MAX_TEXT:
        raise Refused(f"{len(text.module_text)} characters of LLVM's text; compiled are at most {_MAX_TEXT}")
    target, cpu = llvm.Target.from_default_triple(), llvm.get_host_cpu_name()
    machine = target.create_target_machine(cpu=cpu, features=features.flatten(), opt=_LEVEL, jit=True)
    module = llvm.parse_assembly(text.module_text)
    module.triple, module.data_layout = llvm.get_default_triple(), str(machine.target_data)
    _optimise(llvm, module, machine)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return MachineCode(
        address=engine.get_function_address(FUNCTION),
        width=text.width,
        frame_bytes=-(-text.frame_bytes // 64) * 64,
        sites=text.site_count,
        globals_used=text.globals_used,
        stops=text.stops,
        escapes=text.escapes,
        slots=text.slots,
        varying=frozenset(text.plan.varying),
        origins=[segment.origin for segment in text.segments],
        engine=engine,
    )
