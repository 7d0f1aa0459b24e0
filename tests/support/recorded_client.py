"""A client with the commands and answers of the recorded sessions (without times).

More than client_program's: fill (allocate pieces of 16 MiB until one is refused, at most 1,000); poke (a kernel that
stores where nothing is); smids (where the blocks of a large grid ran); crowd COUNT (that many clients of its own, one
after the other, that stay until this one ends).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from client_program import Program, result_of
from tested_driver import cuda

PIECE = 16
PIECES = 1000
NOWHERE = 0x10
BLOCKS = 1056
PR_SET_PDEATHSIG = 1
WELL = "init CUDA_SUCCESS / ctx CUDA_SUCCESS"
ATTRIBUTE = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


class RecordedProgram(Program):
    """The recorded commands."""

    def __init__(self) -> None:
        super().__init__()
        self.crowd: list[int] = []

    def do_ctx(self, device: str) -> str:
        return self.do_newctx(device)

    def do_ctxaff(self, device: str, count: str) -> str:
        code, affinity = super().do_ctxaff(device, count).split()
        return f"{code} req={count} got={affinity} {code}"

    def do_contexts(self) -> str:  # type: ignore[override]
        return str(1 + int(super().do_contexts(sys.maxsize).split()[0]))

    def do_count(self) -> str:
        code, *count = cuda.cuDeviceGetCount()
        return f"{code.name} {count[0] if not code else -1}"

    def do_sm(self) -> str:
        code, *count = cuda.cuDeviceGetAttribute(ATTRIBUTE, 0)
        return f"{code.name} {count[0] if not code else -1}"

    def do_mem(self) -> str:
        code, *sizes = cuda.cuMemGetInfo()
        free, total = (int(size) >> 20 for size in sizes) if not code else (0, 0)
        return f"{code.name} free={free}MiB total={total}MiB"

    def do_prio(self) -> str:
        code, *span = cuda.cuCtxGetStreamPriorityRange()
        least, greatest = span if not code else (99, 99)
        return f"{code.name} {least} {greatest}"

    def do_alloc(self, mebibytes: str) -> str:
        return f"{mebibytes} {result_of(cuda.cuMemAlloc(int(mebibytes) << 20))}"

    def do_fill(self) -> str:
        pieces, result = 0, "CUDA_SUCCESS"
        while pieces < PIECES:
            result = result_of(cuda.cuMemAlloc(PIECE << 20))
            if result != "CUDA_SUCCESS":
                break
            pieces += 1
        return f"{pieces * PIECE}MiB {result}"

    def do_spin(self, milliseconds: str) -> str:  # type: ignore[override]
        return self.do_busy(milliseconds)

    def do_poke(self) -> str:
        return self.launch("store", NOWHERE)

    def do_smids(self) -> str:
        code, places = self.multiprocessors(BLOCKS, 1)
        return f"{code} distinct={len(set(places))} min={min(places)} max={max(places)}"

    def do_env(self, name: str, value: str | None = None) -> str:
        super().do_env(name, value)
        return ""

    def do_crowd(self, count: str) -> str:
        output = []
        for _ in range(int(count)):
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                os.write(writer, f"init {self.do_init()} / ctx {self.do_ctx('0')}\n".encode())
                signal.pause()
            self.crowd.append(child)
            os.close(writer)
            with os.fdopen(reader) as answer:
                output.append(answer.readline().strip())
        well = output.count(WELL)
        return f"ok={well}; others: {sorted(set(output) - {WELL})}"

    def end_crowd(self) -> None:
        """End the clients of the crowd, in another order than they came, as in the recording."""
        for child in self.crowd[:1] + self.crowd[:0:-1]:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)


def main() -> None:
    """Do commands until the end of the input; each line of result begins with the command's name."""
    program = RecordedProgram()
    for line in sys.stdin:
        name, *words = line.split()
        if name == "exit":
            break
        print(f"{name} {program.run(name, *words)}".rstrip(), flush=True)
    program.end_crowd()


if __name__ == "__main__":
    if "PYMPSD_TEST_REQUESTS" in os.environ:  # a prepared process
        from prepared import serve_requests

        serve_requests()
    main()
