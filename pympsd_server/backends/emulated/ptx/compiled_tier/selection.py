"""The choice of a tier for each batch of blocks; the scheduler sees only the batches.

PYMPSD_TIER=compiled compiles a kernel when its first batch begins. What cannot be compiled
stays in the NumPy tier as a whole, and so does a batch whose context reaches the memory of peers.
"""

from __future__ import annotations

import os
from functools import lru_cache
from math import prod
from typing import Final

from pympsd.vocabulary.settings import read_tier
from pympsd_server.backends.emulated.ptx.compiled_tier.batch import CompiledBatch
from pympsd_server.backends.emulated.ptx.compiled_tier.kernel_writer import choose_width
from pympsd_server.backends.emulated.ptx.compiled_tier.lanes import Refused
from pympsd_server.backends.emulated.ptx.compiled_tier.machine_code import MachineCode, compile_kernel
from pympsd_server.backends.emulated.ptx.execution.batch import Batch, blocks_per_batch
from pympsd_server.backends.emulated.ptx.isa.datatypes import Array
from pympsd_server.backends.emulated.ptx.loading.linking import LoadedModule
from pympsd_server.backends.emulated.ptx.loading.program import Kernel
from pympsd_server.backends.emulated.ptx.runtime.batch_state import LaunchSetup
from pympsd_server.native.library import NoLibrary

_MORE_BLOCKS: Final = 8
"""Beginning a batch costs as much as running a thousand short warps; few of its blocks are in progress at a time."""


@lru_cache
def _is_compiled(setting: str) -> bool:
    return read_tier({"PYMPSD_TIER": setting}) == "compiled"


def max_blocks(kernel: Kernel, setup: LaunchSetup, *, together: bool = False) -> int:
    """Return the number of blocks of a launch's next batch, as `blocks_per_batch`; more if its kernel is compiled."""
    blocks = blocks_per_batch(prod(setup.block), kernel.local_bytes, together=together)
    is_compiled = any(isinstance(code, MachineCode) for code in kernel.translation.machine_codes.values())
    return blocks * _MORE_BLOCKS if is_compiled else blocks


def begin_batch(
    module: LoadedModule, kernel_name: str, setup: LaunchSetup, first_block: int, sm_of_block: Array
) -> Batch | CompiledBatch:
    """Return a batch of blocks of a launch, in the tier that is to run it. Arguments and errors are `Batch`'s."""
    if _is_compiled(os.environ.get("PYMPSD_TIER", "")):
        code = _code_of(module.program.kernels[kernel_name], setup)
        if code is not None and not module.space.has_peers:
            return CompiledBatch(module, kernel_name, setup, first_block, sm_of_block, code)
    return Batch(module, kernel_name, setup, first_block, sm_of_block)


def _code_of(kernel: Kernel, setup: LaunchSetup) -> MachineCode | None:
    """Return a kernel's machine code for the shape of a launch's blocks; None if it stays in the NumPy tier."""
    if prod(setup.cluster) > 1:
        return None
    block = setup.block
    key = _shape_class(kernel, block)
    compiled = kernel.translation.machine_codes
    if key not in compiled:
        try:
            compiled[key] = compile_kernel(kernel.translation, block)
        except (Refused, ImportError, NoLibrary) as error:
            compiled[key] = str(error)
    code = compiled[key]
    return code if isinstance(code, MachineCode) else None


def _shape_class(kernel: Kernel, block: tuple[int, int, int]) -> tuple[int, bool, bool, bool]:
    """Return the part of a block's shape that its code depends on."""
    width = choose_width(kernel.translation.code, block)
    return width, block[0] % width == 0, block[1] * block[2] == 1, prod(block) % width == 0
