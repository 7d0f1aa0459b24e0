"""Compile kernels by LLVM: from a kernel to the address of a function.

LLVM runs in a process of its own (compiler_process.py), at level 2 without its vectorisers, because a kernel already
consists of vectors. The result is object code, which refers to functions of the C runtime by name and to everything
else through the worker with which it is called. So it can be stored, with the data that Python needs for it, as a
`StoredKernel` (kernel_cache.py):

    lowered code, shape class ----> key, in the cache? ----> StoredKernel ----> MachineCode
                                          | no                    ^
                                          +---- text ---- LLVM ---+

The key depends on the kernel, the shape of its blocks, pympsd's sources, llvmlite's version, and the description of
the processor in /proc/cpuinfo. So a stored kernel can be found without LLVM, whose import takes 25 ms. The object
code is also loaded without LLVM (object_code.py), if possible.

A stored kernel refers to operations by their index in the kernel's code, which is part of the key.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from weakref import ReferenceType, ref

import msgspec
from attrs import define, field, fields, frozen

from pympsd.process.version import build_id
from pympsd_server.ptx.compiled_tier.compilation import kernel_cache
from pympsd_server.ptx.compiled_tier.compilation.compiler_process import (
    MASK_REGISTERS,
    compile_text,
    find_llvmlite,
    new_machine,
)
from pympsd_server.ptx.compiled_tier.compilation.object_code import LinkedCode, link
from pympsd_server.ptx.compiled_tier.ir_text import NotCompiled
from pympsd_server.ptx.compiled_tier.native_runtime import CACHE_LINE, FUNCTIONS, runtime
from pympsd_server.ptx.compiled_tier.text.kernel_text import FUNCTION, KernelText
from pympsd_server.ptx.compiled_tier.text.kernel_writer import choose_width, threads_bound, write_text
from pympsd_server.ptx.compiled_tier.text.stop_text import Stop
from pympsd_server.ptx.lowering.control_flow import build_blocks, drop_dead_results
from pympsd_server.ptx.lowering.ir import Code, Operation
from pympsd_server.ptx.numpy_tier.translation import Translation


@frozen
class ShapeClass:
    """The properties of a block's shape on which a kernel's code depends."""

    width: int
    """The number of lanes of a vector."""
    has_whole_rows: bool
    """Whether every row of a block is a whole number of vectors."""
    is_linear: bool
    """Whether blocks have one dimension."""
    has_whole_warps: bool
    threads: int
    """The maximum number of threads in a row, or 0 if the code does not depend on it."""

    @classmethod
    def of(cls, code: Code, block: tuple[int, int, int]) -> ShapeClass:
        """Return the class of a block's shape."""
        width = choose_width(code, block)
        x, y, z = block
        return cls(width, x % width == 0, y * z == 1, x * y * z % width == 0, threads_bound(code, block))


@define(eq=False, kw_only=True)
class _Layout:
    """The properties of a kernel's code and frames that Python needs."""

    width: int = 0
    frame_bytes: int = 0
    """The size of a warp's frame in bytes, a multiple of CACHE_LINE."""
    sites: int = 0
    """The number of entries in the kernel's table of allocations (memory_text.py)."""
    word: int = 0
    """The size of a word of interleaved local memory in bytes (memory_text.py), or 0 if it is not interleaved."""
    globals_used: tuple[tuple[str, int], ...] = ()
    slots: dict[int, int] = field(factory=dict)
    """The offset in a frame, in bytes, of each register that a stop needs."""
    varying: frozenset[int] = frozenset()
    """The registers that are vectors."""
    origins: tuple[int, ...] = ()
    """The block that begins at each segment, or -1 in the middle of a block."""

    def varies(self, number: int) -> bool:
        """Return whether a register is a vector."""
        return number in self.varying


@define(eq=False, kw_only=True)
class StoredKernel(_Layout):
    """A compiled kernel as it is stored on disk. It refers to operations by their index in `_operations`."""

    refusal: str = ""
    """The reason why the kernel stays in the NumPy tier, or "". With a reason, all other fields are empty."""
    object_code: bytes = b""
    stops: tuple[tuple[int, tuple[int, ...], int, int, bool], ...] = ()
    """The fields of each `Stop`, with -1 instead of a missing result."""
    escapes: dict[int, tuple[int, int]] = field(factory=dict)


@define(eq=False, kw_only=True)
class MachineCode(_Layout):
    """A kernel's machine code for blocks of one class of shapes."""

    address: int
    """The address of the kernel's function in this process."""
    stops: list[Stop]
    escapes: dict[int, tuple[Operation, int]]
    """The escaping operations, each with the number of the stop after it, by the number of the stop before it."""
    nbytes: int
    """The size of the code in bytes."""
    translation: ReferenceType[Translation]
    """A weak reference to the kernel's translation, which keeps the code alive."""
    _owner: object
    """The object that owns the function's memory."""


@cache
def _addresses() -> dict[str, int]:
    """Return the addresses of the functions that generated code calls. Raises NoLibrary without the C runtime."""
    return {name: ctypes.cast(runtime()[name], ctypes.c_void_p).value or 0 for name in FUNCTIONS}


def load_kernel(translation: Translation, shape: ShapeClass) -> MachineCode | None:
    """Load a kernel that was compiled earlier, perhaps by another process. Return None if it is not in the cache.

    This takes a few milliseconds. Errors are as for `compile_kernel`.
    """
    content = kernel_cache.load(_key(translation, shape))
    if content is None:
        return None
    try:
        stored = msgspec.msgpack.decode(content, type=StoredKernel)
    except msgspec.MsgspecError:
        return None
    return _load(translation, stored)


def compile_kernel(
    translation: Translation,
    shape: ShapeClass,
    block: tuple[int, int, int],
    is_abandoned: Callable[[], bool] = lambda: False,
) -> MachineCode:
    """Compile a kernel for blocks of a shape, and store it in the cache.

    Raises:
        NotCompiled: The kernel must stay in the NumPy tier.
        ImportError: llvmlite is not installed.
        NoLibrary: The C runtime is not built.
        ChildProcessError: LLVM failed.
        InterruptedError: `is_abandoned` has returned True.
    """
    _addresses()  # report missing packages before writing the text
    find_llvmlite()
    try:
        stored = _compile(translation, block, is_abandoned)
    except (NotCompiled, TimeoutError) as error:
        stored = StoredKernel(refusal=str(error))
    kernel_cache.store(_key(translation, shape), msgspec.msgpack.encode(stored))
    return _load(translation, stored)


def _key(translation: Translation, shape: ShapeClass) -> str:
    code = translation.code
    sizes = sorted(translation.offsets.items()), translation.shared_bytes
    parts = code, sizes, shape, build_id(), _llvm_version(), _processor()
    return sha256(msgspec.json.encode(parts)).hexdigest()


@cache
def _llvm_version() -> str:
    """Return the text of llvmlite's version file without importing llvmlite, or "" if it is not installed."""
    with suppress(ImportError, OSError):
        return (find_llvmlite() / "llvmlite" / "_version.py").read_text()
    return ""


@cache
def _processor() -> str:
    """Return the first processor's description from /proc/cpuinfo, without the lines that change over time."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        lines = file.read(1 << 14).split("\n\n", 1)[0].splitlines()
    return "\n".join(line for line in lines if "hz" not in line.lower() and "bogomips" not in line.lower())


def has_masks() -> bool:
    """Return whether the processor has mask registers for 32 lanes."""
    return MASK_REGISTERS in _processor().split()


def _compile(translation: Translation, block: tuple[int, int, int], is_abandoned: Callable[[], bool]) -> StoredKernel:
    has_halves = "f16c" in _processor().split() or platform.machine() == "aarch64"
    sizes = translation.offsets, translation.shared_bytes
    text = write_text(translation.code, *sizes, block, has_halves=has_halves, has_masks=has_masks())
    return _describe(translation.code, text, compile_text(text.module_text, is_abandoned))


def _operations(code: Code) -> list[Operation]:
    """Return the operations of all blocks that the compiled tier compiles, in one list."""
    blocks = build_blocks(code)
    ends = [[] if block.terminator is None else [block.terminator] for block in blocks]
    parts = zip((drop_dead_results(block, blocks, code.carry) for block in blocks), ends, strict=True)
    return [operation for operations, end in parts for operation in (*operations, *end)]


def _describe(code: Code, text: KernelText, object_code: bytes) -> StoredKernel:
    """Return a kernel as it is stored on disk, with operations as indices."""
    operations = _operations(code) if text.escapes or any(stop.result for stop in text.stops) else []
    return StoredKernel(
        object_code=object_code,
        width=text.width,
        frame_bytes=-(-text.frame_bytes // CACHE_LINE) * CACHE_LINE,
        sites=text.site_count,
        word=text.word,
        globals_used=tuple(text.globals_used),
        stops=tuple(
            (s.segment, s.pending, s.barrier, -1 if s.result is None else operations.index(s.result), s.is_entry)
            for s in text.stops
        ),
        escapes={at: (operations.index(operation), behind) for at, (operation, behind) in text.escapes.items()},
        slots=text.slots,
        varying=frozenset(text.plan.varying),
        origins=tuple(segment.origin for segment in text.segments),
    )


def _link_by_llvm(object_code: bytes) -> LinkedCode:
    """Load object code into executable memory by LLVM, which can load all object code that it writes."""
    import llvmlite.binding as llvm

    machine = new_machine(llvm)
    for name, address in _addresses().items():
        llvm.add_symbol(name, address)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    return LinkedCode(engine.get_function_address(FUNCTION), engine)


def _load(translation: Translation, stored: StoredKernel) -> MachineCode:
    """Load a stored kernel into this process. Raises NotCompiled if the kernel must stay in the NumPy tier."""
    if stored.refusal:
        raise NotCompiled(stored.refusal)
    linked = link(stored.object_code, FUNCTION, _addresses()) or _link_by_llvm(stored.object_code)
    has_operations = stored.escapes or any(stop[3] >= 0 for stop in stored.stops)
    operations = _operations(translation.code) if has_operations else []
    stops = [Stop(*stop[:3], None if stop[3] < 0 else operations[stop[3]], stop[4]) for stop in stored.stops]
    layout = {attribute.name: getattr(stored, attribute.name) for attribute in fields(_Layout)}
    return MachineCode(
        **layout,
        address=linked.address,
        stops=stops,
        escapes={at: (operations[index], behind) for at, (index, behind) in stored.escapes.items()},
        nbytes=len(stored.object_code),
        translation=ref(translation),
        owner=linked,
    )
