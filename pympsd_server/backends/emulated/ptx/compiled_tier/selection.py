"""The choice of a tier for each batch of blocks; the scheduler sees only the batches.

The first launches of a kernel run in the NumPy tier (PYMPSD_TIER=auto). When they have taken 20 ms, a thread compiles
the kernel, and the first batch of blocks that begins after that runs as machine code. So no launch waits for LLVM,
and kernels that are short and few are not compiled. Blocks that have begun stay where they are: until it is decided
which tier a kernel runs in, few blocks of one with loops begin. PYMPSD_TIER=compiled compiles at the first batch of a
kernel.

What cannot be compiled stays in the NumPy tier as a whole, and so does a batch whose context reaches the memory of
peers. Without llvmlite the executor says so on its standard error, at the first kernel that would be compiled.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Hashable
from functools import cache, lru_cache
from math import prod
from typing import Final

from pympsd.vocabulary.settings import read_tier
from pympsd.vocabulary.variables import TIER
from pympsd_server.backends.emulated.ptx.compiled_tier.batch import CompiledBatch
from pympsd_server.backends.emulated.ptx.compiled_tier.kernel_writer import choose_width
from pympsd_server.backends.emulated.ptx.compiled_tier.lanes import Refused
from pympsd_server.backends.emulated.ptx.compiled_tier.machine_code import MachineCode, compile_kernel
from pympsd_server.backends.emulated.ptx.execution.batch import Batch, blocks_per_batch
from pympsd_server.backends.emulated.ptx.isa.datatypes import Array
from pympsd_server.backends.emulated.ptx.loading.linking import LoadedModule
from pympsd_server.backends.emulated.ptx.loading.program import Kernel
from pympsd_server.backends.emulated.ptx.lowering.control_flow import build_blocks
from pympsd_server.backends.emulated.ptx.numpy_tier.translation import Translation
from pympsd_server.backends.emulated.ptx.runtime.batch_state import LaunchSetup
from pympsd_server.native.library import NoLibrary

_MORE_BLOCKS: Final = 8
"""Beginning a batch costs as much as running a thousand short warps; few of its blocks are in progress at a time."""


_SECONDS_BEFORE_COMPILING: Final = 0.02
"""The time that a kernel has run in the NumPy tier before it is compiled: most kernels never need that long."""
_UNDECIDED_THREADS: Final = 1024
_COMPILING: Final = "is being compiled"
_one_at_a_time: Final = threading.Lock()


@lru_cache
def _tier(setting: str) -> str:
    return read_tier({TIER: setting})


def max_blocks(kernel: Kernel, setup: LaunchSetup, *, together: bool = False) -> int:
    """Return the number of blocks of a launch's next batch, as `blocks_per_batch`; more if its kernel is compiled."""
    if not together and is_undecided(kernel, setup):
        return max(1, _UNDECIDED_THREADS // prod(setup.block))
    blocks = blocks_per_batch(prod(setup.block), kernel.local_bytes, together=together)
    is_compiled = any(isinstance(code, MachineCode) for code in kernel.translation.machine_codes.values())
    return blocks * _MORE_BLOCKS if is_compiled else blocks


def is_undecided(kernel: Kernel, setup: LaunchSetup) -> bool:
    """Return whether blocks of a launch should wait until its kernel is compiled; begin that if it is slow."""
    translation = kernel.translation
    if _tier(os.environ.get(TIER, "")) != "auto" or prod(setup.cluster) > 1 or not _has_loops(translation):
        return False
    if not translation.machine_codes and translation.numpy_seconds < _SECONDS_BEFORE_COMPILING:
        return True
    _code_of(kernel, setup, waits=False)
    code = translation.machine_codes.get(_shape_class(kernel, setup.block), _COMPILING)
    return isinstance(code, str) and code == _COMPILING


def begin_batch(
    module: LoadedModule, kernel_name: str, setup: LaunchSetup, first_block: int, sm_of_block: Array
) -> Batch | CompiledBatch:
    """Return a batch of blocks of a launch, in the tier that is to run it. Arguments and errors are `Batch`'s."""
    tier = _tier(os.environ.get(TIER, ""))
    if tier != "numpy":
        kernel = module.program.kernels[kernel_name]
        code = _code_of(kernel, setup, waits=tier == "compiled")
        if code is not None and not module.space.has_peers:
            return CompiledBatch(module, kernel_name, setup, first_block, sm_of_block, code)
    return Batch(module, kernel_name, setup, first_block, sm_of_block)


def _code_of(kernel: Kernel, setup: LaunchSetup, *, waits: bool) -> MachineCode | None:
    """Return a kernel's machine code for the shape of a launch's blocks; None if the NumPy tier runs it (for now)."""
    translation = kernel.translation
    if prod(setup.cluster) > 1:
        return None
    if not waits and translation.numpy_seconds < _SECONDS_BEFORE_COMPILING:
        return None
    key, codes = _shape_class(kernel, setup.block), translation.machine_codes
    if key not in codes:
        if waits:
            _compile(kernel, key, setup.block)
        else:
            codes[key] = _COMPILING
            threading.Thread(target=_compile, args=(kernel, key, setup.block), name="compiler", daemon=True).start()
    code = codes[key]
    return code if isinstance(code, MachineCode) else None


def _has_loops(translation: Translation) -> bool:
    if translation.has_loops is None:
        blocks = build_blocks(translation.code)
        translation.has_loops = any(0 <= s <= number for number, block in enumerate(blocks) for s in block.successors)
    return translation.has_loops


def _compile(kernel: Kernel, key: Hashable, block: tuple[int, int, int]) -> None:
    """Compile a kernel; note the code, or why there is none."""
    codes = kernel.translation.machine_codes
    with _one_at_a_time:
        try:
            codes[key] = compile_kernel(kernel.translation, block)
        except Refused as error:
            codes[key] = str(error)
        except (ImportError, NoLibrary) as error:
            codes[key] = str(error)
            _explain_missing()
        finally:
            if codes.get(key, _COMPILING) == _COMPILING:
                codes[key] = "the compiler failed"


@cache
def _explain_missing() -> None:
    """Say once that kernels could be faster."""
    how = "install pympsd[compiled] (llvmlite) with the interpreter that the daemon runs in"
    print(
        f"pympsd executor: kernels run in NumPy, which is 10 to 700 times slower: {how}", file=sys.stderr, flush=True
    )


def _shape_class(kernel: Kernel, block: tuple[int, int, int]) -> tuple[int, bool, bool, bool]:
    """Return the part of a block's shape that its code depends on."""
    width = choose_width(kernel.translation.code, block)
    return width, block[0] % width == 0, block[1] * block[2] == 1, prod(block) % width == 0
