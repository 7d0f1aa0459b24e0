"""Choose a tier for each batch of blocks; the scheduler sees only the batches.

A kernel that was compiled in an earlier run is loaded at its first launch (kernel_cache.py), which takes
milliseconds. The first launches of other kernels run in the NumPy tier (PYMPSD_TIER=auto). After 20 ms of that, a
thread compiles the kernel, and the next batch of blocks runs as machine code. So no launch waits for LLVM, and short
kernels that are launched rarely are not compiled. A batch that has begun continues as machine code from the next
round of a loop on (continuation.py). With PYMPSD_TIER=compiled, the first batch of a kernel compiles it. Each kernel
is compiled by a process of its own, several of them at the same time (compile_queue.py).

A kernel that is too large to be compiled stays in the NumPy tier. If llvmlite is missing, the executor reports that
at the first kernel that would be compiled: on its own standard error, which the daemon logs, and on the program's.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Final
from weakref import WeakSet

from pympsd.vocabulary.variables import TIER, read
from pympsd_server.native.library import NoLibrary
from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.batches.continuation import Exits, take_over
from pympsd_server.ptx.compiled_tier.compilation.compile_queue import CompileQueue
from pympsd_server.ptx.compiled_tier.compilation.compiler_process import MAX_PROCESSES
from pympsd_server.ptx.compiled_tier.compilation.kernel_cache import report
from pympsd_server.ptx.compiled_tier.compilation.machine_code import (
    MachineCode,
    ShapeClass,
    compile_kernel,
    load_kernel,
)
from pympsd_server.ptx.compiled_tier.ir_text import NotCompiled
from pympsd_server.ptx.execution.batch import Batch, blocks_per_batch
from pympsd_server.ptx.execution.bounded_use import MAX_CODE_BYTES, BoundedUse
from pympsd_server.ptx.isa.datatypes import Array
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.loading.program import Kernel
from pympsd_server.ptx.lowering.control_flow import build_blocks
from pympsd_server.ptx.numpy_tier.translation import Translation
from pympsd_server.ptx.runtime.batch_state import LaunchSetup
from pympsd_server.ptx.runtime.facilities import Facilities

_MORE_BLOCKS: Final = 8
"""The factor by which a compiled kernel's batches are larger, because beginning a batch takes as long as running a
thousand short warps, and few of its blocks are in progress at a time."""

_SECONDS_BEFORE_COMPILING: Final = 0.02
"""The time for which a kernel runs in the NumPy tier before it is compiled; most kernels never run so long."""
_MAX_WAIT: Final = 2.0
"""The maximum time in seconds for which new blocks wait for their kernel to be compiled."""
_STEPS_TOGETHER: Final = 1 << 16
"""The steps for which lanes of a warp stay together in a batch that machine code may take over. While the kernel is
being compiled, the count begins again."""
_MAX_TOGETHER: Final = 8.0
"""The maximum time in seconds for which that continues after new blocks have stopped waiting for the compiler."""
_NOT_COMPILED: Final = "is not compiled"
_COMPILING: Final = "is being compiled"
_SLOW: Final = "kernels run in NumPy, 10 to 700 times slower than compiled ones:"
_notified: Final[WeakSet[Facilities]] = WeakSet()
"""The contexts whose program was notified that its kernels are slow."""
_queue: Final = CompileQueue(MAX_PROCESSES)


def _unload(code: MachineCode) -> None:
    """Make a kernel drop its machine code. The next launch that needs the code loads or compiles it again."""
    if (translation := code.translation()) is not None:
        codes = translation.machine_codes
        for shape in [shape for shape, other in list(codes.items()) if other is code]:
            del codes[shape]


_loaded: Final = BoundedUse(MAX_CODE_BYTES, _unload)


@lru_cache
def _tier(setting: str) -> str:
    return read({TIER: setting}, TIER)


def max_blocks(kernel: Kernel, setup: LaunchSetup, *, together: bool = False) -> int:
    """Return how many blocks a launch's next batch may have. A compiled kernel's batch may have more."""
    blocks = blocks_per_batch(prod(setup.block), kernel.local_bytes, together=together)
    codes = list(kernel.translation.machine_codes.values())  # a copy, because the compiler's threads change it
    is_compiled = any(isinstance(code, MachineCode) for code in codes)
    return blocks * _MORE_BLOCKS if is_compiled else blocks


def is_undecided(module: LoadedModule, kernel: Kernel, setup: LaunchSetup) -> bool:
    """Return whether blocks of a launch should wait for the compilation of their kernel; start it if it is slow."""
    if _tier(os.environ.get(TIER, "")) != "auto" or not _has_loops(kernel.translation):
        return False
    state = _code_of(module, kernel, setup, waits=False)
    return state == _NOT_COMPILED or (state == _COMPILING and time.monotonic() < kernel.translation.decided_at)


def begin_batch(
    module: LoadedModule, kernel_name: str, setup: LaunchSetup, first_block: int, sm_of_block: Array
) -> Batch | CompiledBatch:
    """Begin a batch of blocks of a launch in one of the tiers. Arguments and errors are as for `Batch`."""
    tier, may_be_taken_over = _tier(os.environ.get(TIER, "")), False
    if tier != "numpy":
        kernel = module.program.kernels[kernel_name]
        code = _code_of(module, kernel, setup, waits=tier == "compiled")
        _report_slow_kernels(module, code)
        if isinstance(code, MachineCode):
            return CompiledBatch.begin(module, kernel_name, setup, first_block, sm_of_block, code)
        may_be_taken_over = tier == "auto" and code in (_NOT_COMPILED, _COMPILING)
    batch = Batch(module, kernel_name, setup, first_block, sm_of_block)
    if may_be_taken_over:
        batch.steps_together = _STEPS_TOGETHER
    return batch


def switch_tier(
    batch: Batch | CompiledBatch, module: LoadedModule, setup: LaunchSetup, first_block: int, sm_of_block: Array
) -> Batch | CompiledBatch:
    """Return the batch that runs the rest of an unfinished batch: machine code, if it can take the batch over now.

    Otherwise return the batch itself, which from then on stops when machine code can continue. The arguments are the
    same as for `begin_batch`.
    """
    if isinstance(batch, CompiledBatch) or _tier(os.environ.get(TIER, "")) != "auto":
        return batch
    code = _code_of(module, batch.kernel, setup, waits=False)
    _report_slow_kernels(module, code)
    if not isinstance(code, MachineCode):
        if code == _COMPILING and time.monotonic() < batch.kernel.translation.decided_at + _MAX_TOGETHER:
            batch.steps_together = _STEPS_TOGETHER
        return batch
    exits = batch.exits if isinstance(batch.exits, Exits) else Exits(code, len(batch.kernel.translation.plans))
    stops = exits.reached if batch.is_at_exit else exits.find_stops(batch)
    if stops is None:
        batch.exits = exits
        return batch
    compiled = CompiledBatch(module, batch.kernel.name, setup, first_block, sm_of_block, code)
    take_over(batch, compiled, code, stops)
    return compiled


def _code_of(module: LoadedModule, kernel: Kernel, setup: LaunchSetup, *, waits: bool) -> MachineCode | str:
    """Return a kernel's machine code for the shape of a launch's blocks, or the reason why it runs in NumPy now."""
    translation = kernel.translation
    codes = translation.machine_codes
    shape = translation.shapes.get(setup.block)
    if shape is None:
        shape = translation.shapes[setup.block] = ShapeClass.of(translation.code, setup.block)
    user = module.facilities.user
    state: MachineCode | str | None = codes.get(shape)
    if state is None:
        state = codes[shape] = _attempt(translation, lambda: load_kernel(translation, shape))
    if state == _NOT_COMPILED:
        if waits:
            state = codes[shape] = _compile(translation, shape, setup.block)
        elif translation.numpy_seconds >= _SECONDS_BEFORE_COMPILING:
            state, translation.decided_at = _COMPILING, time.monotonic() + _MAX_WAIT
            codes[shape] = state

            def compile_queued(is_abandoned: Callable[[], bool]) -> None:
                codes[shape] = code = _compile(translation, shape, setup.block, is_abandoned)
                _count_use(code, user)

            size = len(translation.code.operations)
            _queue.add(module.facilities, size, compile_queued, lambda: codes.update({shape: _NOT_COMPILED}))
    _count_use(state, user)
    return state


def _count_use(state: MachineCode | str, user: int) -> None:
    if isinstance(state, MachineCode):
        _loaded.use(state, state.nbytes, user)


def _has_loops(translation: Translation) -> bool:
    if translation.has_loops is None:
        blocks = build_blocks(translation.code)
        translation.has_loops = any(0 <= s <= number for number, block in enumerate(blocks) for s in block.successors)
    return translation.has_loops


def _compile(
    translation: Translation,
    shape: ShapeClass,
    block: tuple[int, int, int],
    is_abandoned: Callable[[], bool] = lambda: False,
) -> MachineCode | str:
    """Compile a kernel; return its code, or the reason why it cannot be compiled."""
    return _attempt(translation, lambda: compile_kernel(translation, shape, block, is_abandoned))


def _attempt(translation: Translation, get_code: Callable[[], MachineCode | None]) -> MachineCode | str:
    """Return a kernel's code from `get_code`, or the reason why the kernel is not compiled."""
    try:
        return get_code() or _NOT_COMPILED
    except NotCompiled as error:
        return str(error)
    except InterruptedError:  # its context has ended
        return _NOT_COMPILED
    except (ImportError, NoLibrary) as error:
        return _explain_missing(error)
    except Exception as error:  # the NumPy tier can run the kernel, whatever LLVM raises
        report(
            f"kernel {translation.code.name} stays in NumPy: {type(error).__name__} while it was compiled: {error}"
        )
        return "the compiler failed"


def _explain_missing(error: Exception) -> str:
    """Report once what is missing, and return the report as the state of a kernel."""
    if isinstance(error, NoLibrary):
        reason = f"the runtime of compiled kernels cannot be used ({error})"
    else:
        reason = f"llvmlite is not installed: {sys.executable} -m pip install 'pympsd[compiled]'"
    text = f"{_SLOW} {reason}"
    report(text)
    return text


def _report_slow_kernels(module: LoadedModule, state: MachineCode | str) -> None:
    """Report once on the standard error of a context's program that its kernels are slow, if they are."""
    if isinstance(state, str) and state.startswith(_SLOW) and module.facilities not in _notified:
        _notified.add(module.facilities)
        module.facilities.output.report(f"pympsd: {state}\n".encode())
