"""Compile the text of a kernel to object code, by LLVM in a process of its own.

The problem: LLVM takes seconds for some kernels and minutes for a few. A hostile kernel may exhaust memory, or make
LLVM fail an assertion, which ends the process. And llvmlite lets only one thread of a process use LLVM. In the
executor, one program's kernel could stop the kernels of all others.

The idea: each kernel is compiled by a Python process that does nothing else. It runs this file as a script, imports
llvmlite and nothing of pympsd, has limits of processor time and memory, and dies with the thread that waits for it:

    executor                                   compiler process
    text of the kernel ----> standard input ----> LLVM, MAX_SECONDS of processor time, MAX_BYTES of memory
    object code       <---- standard output <----

Invariant: in the executor itself, LLVM is used only for object code that object_code.py cannot link.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

LEVEL: Final = 2
MAX_DEPENDENCIES: Final = 200
"""The number of memory accesses between which LLVM's scheduler knows the dependencies, each with each, in a part of a
kernel without branches; above it, half of them become one. LLVM's own number is 1000, and its time grows with the
square: a kernel with long straight parts took 12 s instead of 3 s, for the same code but for 0.04 % of its bytes.
"""
MAX_SECONDS: Final = 60
"""The maximum processor time of a compilation; nearly all kernels take less than one second."""
MAX_PROCESSES: Final = 3 * min(4, len(os.sched_getaffinity(0)))
"""The maximum number of compilations of an executor at the same time; one client has at most a third of them."""
_MACHINE_BYTES: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MAX_BYTES: Final = max(1 << 30, min(8 << 30, _MACHINE_BYTES // 2 // MAX_PROCESSES))
"""The maximum memory of a compilation, in bytes: half the machine's memory for all together, but at least 1 GiB. The
longest texts take 300 MB."""
MASK_REGISTERS: Final = "avx512bw"
"""The name, in LLVM and in /proc/cpuinfo, of the extension that gives a processor mask registers for 32 lanes."""
_MASK_TO_LANES: Final = re.compile(r"^  (%\S+) = bitcast i32 (\S+) to <32 x i1>", re.MULTILINE)
_LOOK_SECONDS: Final = 0.5
"""The time between two checks of whether the result is still needed."""
_PR_SET_PDEATHSIG: Final = 1


@cache
def find_llvmlite() -> Path:
    """Return the folder from which llvmlite is imported. Raises ImportError if it is not installed."""
    package = find_spec("llvmlite")
    if package is None or package.origin is None:
        raise ImportError("llvmlite is not installed")
    return Path(package.origin).parents[1]


def compile_text(text: str, is_abandoned: Callable[[], bool] = lambda: False) -> bytes:
    """Compile a module in LLVM's language; return its object code. This may take MAX_SECONDS or longer.

    Raises:
        ImportError: llvmlite is not installed.
        TimeoutError: The compilation needs more than MAX_SECONDS of processor time.
        ChildProcessError: The compilation failed; the text has LLVM's last line.
        InterruptedError: `is_abandoned` has returned True. The process has ended.
    """
    arguments = str(find_llvmlite()), str(MAX_SECONDS), str(MAX_BYTES), str(os.getpid())
    with open(os.memfd_create("kernel"), "w+b") as content:
        content.write(text.encode())
        content.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-IS", __file__, *arguments],
            stdin=content, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    with process:
        try:
            output, errors = _read(process, is_abandoned)
        finally:
            process.kill()
    if process.returncode == -signal.SIGXCPU:
        raise TimeoutError(f"LLVM needs more than {MAX_SECONDS} s of processor time for it")
    if process.returncode:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ChildProcessError(f"the compiler's process ended with status {process.returncode}: {reason}")
    return output


def _read(process: subprocess.Popen[bytes], is_abandoned: Callable[[], bool]) -> tuple[bytes, bytes]:
    """Read the output and errors of a process until it ends. Raises InterruptedError if it is abandoned."""
    while True:
        try:
            return process.communicate(timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if is_abandoned():
                raise InterruptedError("nobody needs the kernel any more") from None


def new_machine(llvm: Any) -> Any:
    """Return llvmlite's target machine for this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target, features = llvm.Target.from_default_triple(), llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=LEVEL, jit=True)


def _emit(text: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.set_option("", f"-dag-maps-huge-region={MAX_DEPENDENCIES}")
    llvm.set_option("", f"-dag-maps-reduction-size={MAX_DEPENDENCIES // 2}")
    machine, module = new_machine(llvm), llvm.parse_assembly(text)
    module.triple, module.data_layout = llvm.get_default_triple(), str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=LEVEL)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    if not llvm.get_host_cpu_features().get(MASK_REGISTERS):
        module = llvm.parse_assembly(spread_masks(str(module)))
    code: bytes = machine.emit_object(module)
    return code


def spread_masks(text: str) -> str:
    """Replace each conversion of 32 bits to a vector of i1, which without mask registers LLVM does bit by bit.

    The text must be optimized already, because the optimizer cancels only a bitcast with its inverse.
    """
    return _MASK_TO_LANES.sub(_spread_mask, text)


def _spread_mask(conversion: re.Match[str]) -> str:
    """Return the instructions that compare each lane's bit of a mask with 0."""
    result, mask = conversion.groups()
    name, kind = f"%spread.{result[1:]}", "<32 x i32>"
    bits = ", ".join(f"i32 {1 << lane}" for lane in range(32))
    return f"""\
  {name}.first = insertelement {kind} poison, i32 {mask}, i64 0
  {name}.all = shufflevector {kind} {name}.first, {kind} poison, <32 x i32> zeroinitializer
  {name}.own = and {kind} {name}.all, <{bits}>
  {result} = icmp ne {kind} {name}.own, zeroinitializer"""


def _limit(kind: int, maximum: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (maximum if hard == resource.RLIM_INFINITY else min(maximum, hard), hard))


def main() -> None:
    """Compile standard input to standard output. Arguments: llvmlite's folder, the limits, the parent's PID."""
    folder, seconds, nbytes, parent = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the executor has ended")
    with suppress(OSError):  # if memory is short, kill this process, and not the executor of many programs
        Path("/proc/self/oom_score_adj").write_text("1000")
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, int(seconds))
    _limit(resource.RLIMIT_AS, int(nbytes))
    sys.path.append(folder)
    sys.stdout.buffer.write(_emit(sys.stdin.buffer.read().decode()))


if __name__ == "__main__":
    main()
