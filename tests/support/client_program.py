"""A client that reads one command a line, executes it with pympsd_client, and prints one line of result.

A command is a method of Program, its words are the method's arguments: "alloc 1024" is do_alloc("1024").
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from typing import Any

import numpy as np
from client_kernels import DYNAMIC_PARALLELISM, MODULES, UNKNOWN_INSTRUCTION
from tested_driver import cuda, last_error

COUNT = 1 << 16
WAITING_THREADS = 64
STAY_NANOSECONDS = 2_000_000
SM_COUNT = cuda.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
SUCCESS = cuda.CUresult.CUDA_SUCCESS
ADDRESS = (ctypes.c_uint64,)


def result_of(answer: tuple[Any, ...]) -> str:
    """Return the name of a driver call's result code."""
    return str(answer[0].name)


def first(answer: tuple[Any, ...]) -> Any:
    """Return a driver call's first value, or None if the call failed."""
    return answer[1] if len(answer) > 1 else None


class Program:
    """The commands, and what they share."""

    def __init__(self) -> None:
        self.functions: dict[str, Any] = {}
        """Kernels of the current context."""
        self.allocated = None
        self.held = 0
        self.pinned: list[int] = []
        self.arrays: list[np.ndarray[Any, Any]] = []

    def run(self, name: str, *words: str) -> str:
        """Execute one command; return its line of output."""
        return str(getattr(self, f"do_{name}")(*words))

    # --- the process

    def do_init(self) -> str:
        return result_of(cuda.cuInit(0))

    def do_pid(self) -> str:
        return str(os.getpid())

    def do_env(self, name: str, value: str | None = None) -> str:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
        return "ok"

    def do_error(self) -> str:
        """Return the text of the last error."""
        return last_error()

    def do_fork(self) -> str:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, self.do_sync().encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        with os.fdopen(reader) as output:
            return f"child {output.read()} parent {self.do_sync()}"

    # --- contexts

    def do_ctx(self, device: str) -> str:
        """Make the primary context current."""
        answer = cuda.cuDevicePrimaryCtxRetain(int(device))
        if not answer[0]:
            cuda.cuCtxSetCurrent(answer[1])
        return result_of(answer)

    def do_close(self, device: str) -> str:
        self.functions = {}
        return result_of(cuda.cuDevicePrimaryCtxRelease(int(device)))

    def do_newctx(self, device: str) -> str:
        self.functions = {}
        return result_of(cuda.cuCtxCreate(0, int(device)))

    def do_peer(self, device: str) -> str:
        """Give kernels of the current context access to the memory of a device's primary context."""
        return result_of(cuda.cuCtxEnablePeerAccess(first(cuda.cuDevicePrimaryCtxRetain(int(device))), 0))

    def do_ctxaff(self, device: str, count: str) -> str:
        """Create a context with that many multiprocessors; print how many it got."""
        affinity = cuda.CUexecAffinityParam()
        affinity.type = SM_COUNT
        affinity.param.smCount.val = int(count)
        parameters = cuda.CUctxCreateParams()
        parameters.execAffinityParams = [affinity]
        parameters.numExecAffinityParams = 1
        self.functions = {}
        code = cuda.cuCtxCreate(parameters, 0, int(device))[0]
        return f"{code.name} {self.do_affinity() if not code else 0}"

    def do_affinity(self) -> str:
        code, affinity = cuda.cuCtxGetExecAffinity(SM_COUNT)
        return code.name if code else str(affinity.param.smCount.val)

    def do_contexts(self, count: str) -> str:
        """Create that many contexts, or as many as fit."""
        made, code = 0, SUCCESS
        self.functions = {}
        while made < int(count) and not code:
            code = cuda.cuCtxCreate(0, 0)[0]
            made += not code
        return f"{made} {code.name}"

    def do_dtor(self) -> str:
        self.functions = {}
        return result_of(cuda.cuCtxDestroy(cuda.cuCtxGetCurrent()[1]))

    def do_sync(self) -> str:
        return result_of(cuda.cuCtxSynchronize())

    def do_prio(self) -> str:
        code, *span = cuda.cuCtxGetStreamPriorityRange()
        return f"{code.name} {span}"

    # --- the device

    def do_count(self) -> str:
        return str(first(cuda.cuDeviceGetCount()))

    def do_sm(self, device: str = "0") -> str:
        attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        return str(first(cuda.cuDeviceGetAttribute(attribute, int(device))))

    def do_mem(self) -> str:
        """Return the free and the total memory in MiB."""
        _, free, total = cuda.cuMemGetInfo()
        return f"{int(free) >> 20} {int(total) >> 20}"

    # --- memory

    def do_alloc(self, count: str) -> str:
        answer = cuda.cuMemAlloc(int(count))
        self.allocated = first(answer)
        return f"{result_of(answer)} {int(self.allocated or 0):#x}"

    def do_copyhalf(self, count: str) -> str:
        return result_of(cuda.cuMemcpyHtoD(self.allocated, bytes(int(count)), int(count)))

    def do_hold(self, value: str) -> str:
        """Allocate a float on the device; print its address."""
        self.held = int(cuda.cuMemAlloc(4)[1])
        cuda.cuMemcpyHtoD(self.held, struct.pack("f", float(value)), 4)
        return hex(self.held)

    def do_value(self) -> str:
        """Return the float that `do_hold` allocated."""
        return self._read(self.held)

    def do_peek(self, address: str) -> str:
        """Copy the float at an address to the host."""
        return self._read(int(address, 16))

    def _read(self, address: int) -> str:
        room = bytearray(4)
        answer = cuda.cuMemcpyDtoH(room, address, 4)
        return f"{result_of(answer)} {struct.unpack('f', room)[0]}"

    def do_pin(self, count: str) -> str:
        """Allocate page-locked memory, copy it to the device and back."""
        size = int(count)
        answer = cuda.cuMemAllocHost(size)
        if answer[1] is None:
            return result_of(answer)
        self.pinned.append(answer[1])
        host = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(answer[1]))
        host[:] = np.arange(size) % 251
        device_memory = cuda.cuMemAlloc(size)[1]
        # Page-locked memory is read when the stream comes to the copy, as in CUDA.
        copied = [cuda.cuMemcpyHtoDAsync(device_memory, answer[1], size, 0), cuda.cuStreamSynchronize(0)]
        host[:] = 0
        copied += [cuda.cuMemcpyDtoHAsync(answer[1], device_memory, size, 0), cuda.cuMemFree(device_memory)]
        right = bool((host == np.arange(size) % 251).all())
        return " ".join(sorted({result_of(code) for code in (answer, *copied)})) + f" right={right}"

    def do_unpin(self) -> str:
        return result_of(cuda.cuMemFreeHost(self.pinned.pop()))

    def do_register(self, count: str) -> str:
        array = np.zeros(int(count), np.uint8)
        self.arrays.append(array)
        return result_of(cuda.cuMemHostRegister(array, array.nbytes, 0))

    # --- kernels

    def load(self, name: str) -> Any:
        """Load a kernel's module if none of its kernels has been used in this context; return the result code."""
        if name in self.functions:
            return SUCCESS
        ptx, names = next(module for module in MODULES if name in module[1])
        result, *module = cuda.cuModuleLoadData(ptx)
        if not result:
            self.functions |= {name: first(cuda.cuModuleGetFunction(module[0], name.encode())) for name in names}
        return result

    def launch(
        self, name: str, *values: Any, types: Any = ADDRESS, blocks: int = 1, threads: int = 1, stream: Any = 0
    ) -> str:
        """Launch a kernel; return the result's name."""
        result = self.load(name)
        if result:
            return str(result.name)
        parameters = (values, types) if values else 0
        grid = (blocks, 1, 1, threads, 1, 1)
        return result_of(cuda.cuLaunchKernel(self.functions[name], *grid, 0, stream, parameters, 0))

    def do_warm(self) -> str:
        """Load every module before kernels run, because on a GPU loading waits for all running kernels."""
        self.load("busy")
        return self.do_add()

    def do_add(self) -> str:
        """Add one to each of 65,536 floats, and count the wrong ones."""
        host = np.arange(COUNT, dtype=np.float32)
        device_memory = first(cuda.cuMemAlloc(host.nbytes))
        cuda.cuMemcpyHtoD(device_memory, host, host.nbytes)
        launched = self.launch(
            "add_one", device_memory, COUNT, types=(None, ctypes.c_uint32), blocks=COUNT // 256, threads=256
        )
        synced = self.do_sync()
        cuda.cuMemcpyDtoH(host, device_memory, host.nbytes)
        cuda.cuMemFree(device_memory)
        wrong = np.count_nonzero(host != np.arange(COUNT, dtype=np.float32) + 1)
        return f"{launched} {synced} wrong={wrong}"

    def do_endless(self) -> str:
        return self.launch("endless", threads=32, stream=first(cuda.cuStreamCreate(1)))

    def do_illegal(self) -> str:
        return self._add_one_at(0x7000_0000_0000)

    def do_stray(self, address: str) -> str:
        """Launch a kernel that adds one to the float at an address."""
        return f"{self._add_one_at(int(address, 16))} {self.do_sync()}"

    def _add_one_at(self, address: int) -> str:
        return self.launch("add_one", address, 1, types=(ctypes.c_uint64, ctypes.c_uint32), threads=32)

    def do_trap(self) -> str:
        return self.launch("trapped")

    def do_busy(self, milliseconds: str) -> str:
        return self.launch("busy", int(milliseconds) * 1_000_000)

    def do_spin(self) -> str:
        """Launch a kernel that waits for a word of memory."""
        self.words = cuda.cuMemAlloc(4 * (WAITING_THREADS + 1))[1]
        cuda.cuMemsetD32(self.words, 0, WAITING_THREADS + 1)
        self.streams = [cuda.cuStreamCreate(1)[1] for _ in range(2)]
        launched = self.launch("wait_for_word", int(self.words), threads=WAITING_THREADS, stream=self.streams[0])
        return f"{launched} {result_of(cuda.cuStreamQuery(self.streams[0]))}"

    def do_release(self) -> str:
        """Write the word for which the kernel of `do_spin` waits."""
        word = np.array([3], np.uint32)
        return result_of(cuda.cuMemcpyHtoDAsync(self.words, word, word.nbytes, self.streams[1]))

    def do_spun(self) -> str:
        """Wait for the kernel of `do_spin`, and count its wrong results."""
        synced = cuda.cuStreamSynchronize(self.streams[0])
        words = np.zeros(WAITING_THREADS + 1, np.uint32)
        cuda.cuMemcpyDtoH(words, self.words, words.nbytes)
        wrong = np.count_nonzero(words[1:] != 3 * np.arange(WAITING_THREADS, dtype=np.uint32))
        return f"{result_of(synced)} wrong={wrong}"

    def do_places(self, blocks: str) -> str:
        """Return the multiprocessors on which the blocks of a grid ran."""
        code, places = self.multiprocessors(int(blocks), 64)
        return f"{code} {','.join(map(str, sorted(set(places))))}"

    def do_stay(self, blocks: str) -> str:
        """Do the same with blocks that stay until all have begun, or 2 ms have passed."""
        code, places = self.multiprocessors(int(blocks), 32, STAY_NANOSECONDS)
        return f"{code} {','.join(map(str, sorted(set(places))))}"

    def multiprocessors(self, blocks: int, threads: int, nanoseconds: int = 0) -> tuple[str, list[int]]:
        """Return the result of a grid, and the multiprocessor of each of its blocks."""
        out = cuda.cuMemAlloc(4 * blocks)[1]
        self.launch("places", int(out), nanoseconds, types=ADDRESS * 2, blocks=blocks, threads=threads)
        places = np.full(blocks, -1, np.int32)
        copied = cuda.cuMemcpyDtoH(places, out, places.nbytes)
        cuda.cuMemFree(out)
        return result_of(copied), places.tolist()

    # --- modules

    def do_badptx(self) -> str:
        log = bytearray(2048)
        options = [cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        answer = cuda.cuModuleLoadDataEx(UNKNOWN_INSTRUCTION, 2, options, [log, len(log)])
        return f"{result_of(answer)} {bytes(log).rstrip(bytes(1)).decode()!r}"

    def do_nested(self) -> str:
        return result_of(cuda.cuModuleLoadData(DYNAMIC_PARALLELISM))

    def do_image(self, path: str) -> str:
        """Load a file whose kernel ``twice`` doubles floats, and run it on some floats."""
        code, module = cuda.cuModuleLoad(path.encode())
        if module is None:
            return str(code.name)
        function = cuda.cuModuleGetFunction(module, b"twice")[1]
        host = np.arange(1000, dtype=np.float32)
        device_memory = cuda.cuMemAlloc(host.nbytes)[1]
        cuda.cuMemcpyHtoD(device_memory, host, host.nbytes)
        parameters = ((int(device_memory), host.size), (ctypes.c_void_p, ctypes.c_int))
        cuda.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, 0, parameters, 0)
        copied = np.empty_like(host)
        codes = {code, cuda.cuMemcpyDtoH(copied, device_memory, host.nbytes)[0], cuda.cuMemFree(device_memory)[0]}
        codes.add(cuda.cuModuleUnload(module)[0])
        return f"{' '.join(sorted(code.name for code in codes))} wrong={int((copied != 2 * host).sum())}"

    def do_ptx(self, path: str, threads: str) -> str:
        """Load a file, run its kernel ``k`` with the address of a word, and print the first error and the word."""
        code, module = cuda.cuModuleLoad(path.encode())
        if module is None:
            return str(code.name)
        code, function = cuda.cuModuleGetFunction(module, b"k")
        if function is None:
            return str(code.name)
        address = first(cuda.cuMemAlloc(4))
        cuda.cuMemsetD32(address, 0, 1)
        code = cuda.cuLaunchKernel(function, 1, 1, 1, int(threads), 1, 1, 0, 0, ((int(address),), ADDRESS), 0)[0]
        word = np.zeros(1, np.uint32)
        code = code or cuda.cuMemcpyDtoH(word, address, word.nbytes)[0]
        cuda.cuMemFree(address)
        cuda.cuModuleUnload(module)
        return f"{code.name} {word[0]}"

    # --- host functions, and what MPS refuses

    def do_hostfunc(self, kind: str) -> str:
        """Launch a host function, "quick" or "endless", in a stream of its own; print the stream's state then."""
        stream = first(cuda.cuStreamCreate(1))
        begun = threading.Event()

        def endless(_: int) -> None:
            begun.set()
            threading.Event().wait()

        output = result_of(cuda.cuLaunchHostFunc(stream, endless if kind == "endless" else lambda _: begun.set(), 0))
        if output != "CUDA_SUCCESS":
            return output
        begun.wait(30)
        look = cuda.cuStreamQuery if kind == "endless" else cuda.cuStreamSynchronize
        return f"{output} begun={begun.is_set()} {result_of(look(stream))}"

    def do_callbacks(self) -> str:
        ran: list[str] = []
        answers = [
            cuda.cuLaunchHostFunc(0, lambda data: ran.append("host function"), None),
            cuda.cuStreamAddCallback(0, lambda stream, status, data: ran.append("callback"), None, 0),
        ]
        self.do_sync()
        return f"{' '.join(map(result_of, answers))} {ran}"

    def do_refused(self, name: str) -> str:
        return result_of(getattr(cuda, name)(0, 0))


def main(program: Program) -> None:
    """Execute commands until the end of the input."""
    for line in sys.stdin:
        if line.split() == ["exit"]:
            return
        print(program.run(*line.split()), flush=True)


if __name__ == "__main__":
    if "PYMPSD_TEST_REQUESTS" in os.environ:  # a prepared process; its module is not where containers run this
        from prepared import serve_requests

        serve_requests()
    main(Program())
