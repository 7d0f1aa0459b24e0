"""Kernels compiled by LLVM, through llvmlite: the text of a kernel in, the address of a function out.

The optimiser runs at level 2 without its vectorisers, because a kernel is vectors already. The result is object code,
which knows the functions of the C runtime by their names and everything else by the worker that it is called with. So
it can be kept, with what Python has to know about it, as a `StoredKernel` (kernel_cache.py):

    lowered code, shape class ----> key, in the cache? ----> StoredKernel ----> MachineCode
                                          | no                    ^
                                          +---- text ---- LLVM ---+

The key depends on the kernel, on the shape of its blocks, on pympsd's sources and on the processor as the kernel of
the system describes it, so that it can be looked up without LLVM, whose import takes 25 ms. What LLVM reports about
itself and the processor is stored with the code and compared when it is read.

A stored kernel names operations by their place in the kernel's code, from which the key was made.
"""

from __future__ import annotations

import ctypes
from functools import cache
from hashlib import sha256
from typing import Any, Final

import msgspec
from attrs import define, field, frozen

from pympsd.process.version import build_id
from pympsd_server.backends.emulated.ptx.compiled_tier import kernel_cache
from pympsd_server.backends.emulated.ptx.compiled_tier.kernel_text import FUNCTION, KernelText, Stop
from pympsd_server.backends.emulated.ptx.compiled_tier.kernel_writer import choose_width, write_text
from pympsd_server.backends.emulated.ptx.compiled_tier.lanes import Refused
from pympsd_server.backends.emulated.ptx.compiled_tier.native_runtime import CACHE_LINE, FUNCTIONS, runtime
from pympsd_server.backends.emulated.ptx.lowering.control_flow import build_blocks, without_dead_results
from pympsd_server.backends.emulated.ptx.lowering.ir import Code, Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.translation import Translation

_LEVEL: Final = 2
_MAX_TEXT: Final = 6_000_000
"""Characters of a kernel's text: LLVM takes 1 to 4 microseconds for each."""


@frozen
class ShapeClass:
    """The properties of a block's shape that a kernel's code depends on."""

    width: int
    """The lanes of a vector."""
    has_whole_rows: bool
    """Whether every row of a block is a whole number of vectors."""
    is_linear: bool
    """Whether blocks have one dimension."""
    has_whole_warps: bool

    @classmethod
    def of(cls, code: Code, block: tuple[int, int, int]) -> ShapeClass:
        """Return the class of a shape."""
        width = choose_width(code, block)
        x, y, z = block
        return cls(width, x % width == 0, y * z == 1, x * y * z % width == 0)


@frozen
class StoredKernel:
    """A compiled kernel as it is kept on disk; operations are named by their place in `_operations`."""

    target: str
    """The LLVM and the processor that it was compiled by and for."""
    refusal: str = ""
    """Why the kernel stays in the NumPy tier; then all other fields are empty."""
    object_code: bytes = b""
    width: int = 0
    frame_bytes: int = 0
    sites: int = 0
    globals_used: tuple[tuple[str, int], ...] = ()
    stops: tuple[tuple[int, tuple[int, ...], int, int, bool], ...] = ()
    """The fields of `Stop`; -1 for no result."""
    escapes: dict[int, tuple[int, int]] = field(factory=dict)
    slots: dict[int, int] = field(factory=dict)
    varying: tuple[int, ...] = ()
    origins: tuple[int, ...] = ()


@define(eq=False)
class MachineCode:
    """One kernel for blocks of one kind of shape."""

    address: int
    """The address of its function in this process."""
    width: int
    frame_bytes: int
    """The size of a warp's frame, a multiple of CACHE_LINE."""
    sites: int
    """The number of entries in its table of allocations."""
    globals_used: list[tuple[str, int]]
    stops: list[Stop]
    escapes: dict[int, tuple[Operation, int]]
    """The escaping operations and the stops behind them, by the stop before them."""
    slots: dict[int, int]
    """Where registers are in a frame, in bytes; only those that a stop needs."""
    varying: frozenset[int]
    """The registers that are vectors."""
    origins: list[int]
    """The block that begins at each segment; -1 in the middle of a block."""
    _engine: object
    """The LLVM object that owns the function's memory."""

    def varies(self, number: int) -> bool:
        """Return whether a register is a vector."""
        return number in self.varying


@define
class Compiler:
    """LLVM, ready for this machine."""

    llvm: Any
    features: Any
    target: str
    """The name of this LLVM and of this processor with its features."""

    def machine(self) -> Any:
        """Return a new target machine."""
        target = self.llvm.Target.from_default_triple()
        cpu, features = self.llvm.get_host_cpu_name(), self.features.flatten()
        return target.create_target_machine(cpu=cpu, features=features, opt=_LEVEL, jit=True)


@cache
def load_llvm() -> Compiler:
    """Return LLVM, which takes 25 ms at the first call.

    Raises ImportError without llvmlite, NoLibrary without the runtime in C.
    """
    import llvmlite
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name in FUNCTIONS:
        llvm.add_symbol(name, ctypes.cast(runtime()[name], ctypes.c_void_p).value)
    features, version = llvm.get_host_cpu_features(), ".".join(map(str, llvm.llvm_version_info))
    target = f"llvmlite {llvmlite.__version__}, LLVM {version}, {llvm.get_default_triple()}"
    return Compiler(llvm, features, f"{target}, {llvm.get_host_cpu_name()} {features.flatten()}")


def load_kernel(translation: Translation, shape: ShapeClass) -> MachineCode | None:
    """Return a kernel that was compiled earlier, perhaps by another process; None if it is not in the cache.

    Takes some milliseconds. Raises as `compile_kernel`.
    """
    content = kernel_cache.load(_key(translation, shape))
    if content is None:
        return None
    try:
        stored = msgspec.msgpack.decode(content, type=StoredKernel)
    except msgspec.MsgspecError:
        return None
    compiler = load_llvm()
    return _load(compiler, translation, stored) if stored.target == compiler.target else None


def compile_kernel(translation: Translation, shape: ShapeClass, block: tuple[int, int, int]) -> MachineCode:
    """Compile a kernel for blocks of a shape, and store it in the cache.

    Raises Refused for a kernel that stays in the NumPy tier; ImportError without llvmlite, NoLibrary without C.
    """
    compiler = load_llvm()
    try:
        stored = _compile(compiler, translation, block)
    except Refused as error:
        stored = StoredKernel(compiler.target, str(error))
    kernel_cache.store(_key(translation, shape), msgspec.msgpack.encode(stored))
    return _load(compiler, translation, stored)


def _key(translation: Translation, shape: ShapeClass) -> str:
    code = translation.code
    sizes = sorted(translation.offsets.items()), translation.shared_bytes
    parts = code, sizes, shape, build_id(), _processor()
    return sha256(msgspec.json.encode(parts)).hexdigest()


@cache
def _processor() -> str:
    """Return what /proc/cpuinfo reports about the first processor, without what changes while it runs."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        lines = file.read(1 << 14).split("\n\n", 1)[0].splitlines()
    return "\n".join(line for line in lines if "hz" not in line.lower() and "bogomips" not in line.lower())


def _compile(compiler: Compiler, translation: Translation, block: tuple[int, int, int]) -> StoredKernel:
    llvm = compiler.llvm
    has_halves = bool(compiler.features.get("f16c")) or "aarch64" in llvm.get_default_triple()
    sizes = translation.offsets, translation.shared_bytes
    text = write_text(translation.code, *sizes, block, has_halves=has_halves)
    if len(text.module_text) > _MAX_TEXT:
        raise Refused(f"{len(text.module_text)} characters of LLVM's text; compiled are at most {_MAX_TEXT}")
    machine = compiler.machine()
    module = llvm.parse_assembly(text.module_text)
    module.triple, module.data_layout = llvm.get_default_triple(), str(machine.target_data)
    _optimise(llvm, module, machine)
    return _describe(compiler, translation.code, text, machine.emit_object(module))


def _optimise(llvm: Any, module: Any, machine: Any) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=_LEVEL)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _operations(code: Code) -> list[Operation]:
    """Return a kernel's operations as the compiled tier sees them, in one list for all blocks."""
    blocks = build_blocks(code)
    ends = [[] if block.terminator is None else [block.terminator] for block in blocks]
    parts = zip((without_dead_results(block, blocks, code.carry) for block in blocks), ends, strict=True)
    return [operation for operations, end in parts for operation in (*operations, *end)]


def _describe(compiler: Compiler, code: Code, text: KernelText, object_code: bytes) -> StoredKernel:
    operations = _operations(code) if text.escapes or any(stop.result for stop in text.stops) else []
    return StoredKernel(
        target=compiler.target,
        object_code=object_code,
        width=text.width,
        frame_bytes=-(-text.frame_bytes // CACHE_LINE) * CACHE_LINE,
        sites=text.site_count,
        globals_used=tuple(text.globals_used),
        stops=tuple(
            (s.segment, s.pending, s.barrier, -1 if s.result is None else operations.index(s.result), s.is_entry)
            for s in text.stops
        ),
        escapes={at: (operations.index(operation), behind) for at, (operation, behind) in text.escapes.items()},
        slots=text.slots,
        varying=tuple(sorted(text.plan.varying)),
        origins=tuple(segment.origin for segment in text.segments),
    )


def _load(compiler: Compiler, translation: Translation, stored: StoredKernel) -> MachineCode:
    """Return a stored kernel's code in this process; raise Refused."""
    if stored.refusal:
        raise Refused(stored.refusal)
    llvm = compiler.llvm
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), compiler.machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(stored.object_code))
    engine.finalize_object()
    has_operations = stored.escapes or any(stop[3] >= 0 for stop in stored.stops)
    operations = _operations(translation.code) if has_operations else []
    stops = [Stop(*stop[:3], None if stop[3] < 0 else operations[stop[3]], stop[4]) for stop in stored.stops]
    return MachineCode(
        address=engine.get_function_address(FUNCTION),
        width=stored.width,
        frame_bytes=stored.frame_bytes,
        sites=stored.sites,
        globals_used=list(stored.globals_used),
        stops=stops,
        escapes={at: (operations[index], behind) for at, (index, behind) in stored.escapes.items()},
        slots=stored.slots,
        varying=frozenset(stored.varying),
        origins=list(stored.origins),
        engine=engine,
    )
