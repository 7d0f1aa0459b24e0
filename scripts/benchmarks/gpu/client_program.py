"""A client in Python, which reads commands from standard input: client_program.py pympsd|bindings PTX

The same loops for both: ``pympsd`` is a client of the daemon, ``bindings`` is cuda.bindings alone. Commands and
answers are those of baseline.c, and ``asynchronous BATCH TIMES``: ns of each call of cuLaunchKernel, a mean for each
batch. Only baseline.c has a batch of 0 (never synchronise).
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

now = time.monotonic_ns
RING = 4
NON_BLOCKING = 1
DISABLE_TIMING = 2

if sys.argv[1] == "pympsd":
    from pympsd_client import driver as cuda
else:
    from cuda.bindings import driver as cuda


def ran(answer: tuple[Any, ...]) -> Any:
    """Return the output of a successful call; end the program if it failed."""
    if answer[0] != cuda.CUresult.CUDA_SUCCESS:
        sys.exit(f"{answer[0].name}{_reason()}")
    return answer[1] if len(answer) > 1 else None


def _reason() -> str:
    if sys.argv[1] != "pympsd":
        return ""
    from pympsd_client import last_error

    return f": {last_error()}"


class Client:
    """A context, the kernel and one stream."""

    def __init__(self, ptx: bytes) -> None:
        ran(cuda.cuInit(0))
        self.device = ran(cuda.cuDeviceGet(0))
        ran(cuda.cuCtxSetCurrent(ran(cuda.cuDevicePrimaryCtxRetain(self.device))))
        self.function = ran(cuda.cuModuleGetFunction(ran(cuda.cuModuleLoadData(ptx + b"\0")), b"spin"))
        self.stream = ran(cuda.cuStreamCreate(NON_BLOCKING))
        self._held: list[Any] = []
        for _ in range(100):
            self.launcher(0, 1, 32)(1)
        self.synchronise()

    def synchronise(self) -> None:
        """Wait for the stream."""
        ran(cuda.cuStreamSynchronize(self.stream))

    def parameters(self, nanoseconds: int) -> Any:
        """Return the kernel's parameters, made once, in the library's fastest form.

        pympsd packs ``(values, types)`` itself; cuda.bindings is fastest with an array of pointers made ahead.
        """
        if sys.argv[1] == "pympsd":
            return (nanoseconds,), (ctypes.c_uint64,)
        value = ctypes.c_uint64(nanoseconds)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self._held[:] = [value, pointers]  # kept until the next kernel's
        return ctypes.addressof(pointers)

    def launcher(self, nanoseconds: int, blocks: int, threads: int) -> Callable[[int], None]:
        """Return a function that launches a number of times: the loop that a performance-minded user would write."""
        launch, function, stream = cuda.cuLaunchKernel, self.function, self.stream
        parameters = self.parameters(nanoseconds)

        def launches(count: int) -> None:
            for _ in repeat(None, count):
                launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, 0)

        return launches

    # --- commands

    def launch(self, ns: int, blocks: int, threads: int, batch: int, *window: int) -> Iterable[float]:
        """Measure launches/s between two times; the work continues until a third."""
        begin, finish, stop = window
        launches = self.launcher(ns, blocks, threads)
        count = first = last = start = end = 0
        while True:
            launches(batch)
            self.synchronise()
            count += batch
            moment = now()
            if not start and moment >= begin:
                start, first = moment, count
                finish = max(finish, start + (finish - begin) // 2)  # after a late start, measure half as long
            elif not end and start and moment >= finish:
                end, last = moment, count
            if end and moment >= stop:
                return [(last - first) * 1e9 / (end - start)]

    def wait(self, ns: int, blocks: int, threads: int, *window: int) -> Iterable[int]:
        """Measure the nanoseconds of each launch and synchronise."""
        begin, finish, most = window
        launches, wait, stream, clock = self.launcher(ns, blocks, threads), cuda.cuStreamSynchronize, self.stream, now
        launches(20)
        self.synchronise()
        _sleep_until(begin)
        taken: list[int] = []
        moment = 0
        while moment < finish and len(taken) < most:
            start = clock()
            launches(1)
            wait(stream)
            moment = clock()
            taken.append(moment - start)
        self.synchronise()  # ends the program if any failed
        return taken

    def fill(self, ns: int, blocks: int, threads: int, begin: int, stop: int) -> Iterable[int]:
        """Keep up to four launches unfinished all the time."""
        events = [ran(cuda.cuEventCreate(DISABLE_TIMING)) for _ in range(RING)]
        launches = self.launcher(ns, blocks, threads)
        count = 0
        _sleep_until(begin)
        while now() < stop:
            if count >= RING:
                ran(cuda.cuEventSynchronize(events[count % RING]))
            launches(1)
            ran(cuda.cuEventRecord(events[count % RING], self.stream))
            count += 1
        self.synchronise()
        return [count]

    def asynchronous(self, batch: int, times: int) -> Iterable[float]:
        """Measure the nanoseconds of one call, a mean for each batch, excluding the wait for the work's end."""
        launches = self.launcher(0, 1, 32)
        taken = []
        for _ in range(times):
            start = now()
            launches(batch)
            taken.append((now() - start) / batch)
            self.synchronise()
        return taken

    def allocate(self, times: int) -> Iterable[int]:
        """Measure the nanoseconds of each cuMemAlloc and cuMemFree."""
        taken = []
        for _ in range(times):
            start = now()
            ran(cuda.cuMemFree(ran(cuda.cuMemAlloc(4096))))
            taken.append(now() - start)
        return taken

    def copies(self, size: int, times: int) -> Iterable[int]:
        """Measure the nanoseconds of each copy: pageable to device, to host, pinned to device, to host."""
        there, pinned = ran(cuda.cuMemAlloc(size)), ran(cuda.cuMemAllocHost(size))
        pageable = (ctypes.c_char * size)()
        taken = []
        for address in (ctypes.addressof(pageable), int(pinned)):
            ctypes.memset(address, 1, size)
            for copy, to, source in (
                (cuda.cuMemcpyHtoD, there, address),
                (cuda.cuMemcpyDtoH, address, there),
            ):
                ran(copy(to, source, size))  # to warm up
                for _ in range(times):
                    start = now()
                    ran(copy(to, source, size))
                    taken.append(now() - start)
        ran(cuda.cuMemFreeHost(pinned))
        ran(cuda.cuMemFree(there))
        return taken

    def attribute(self, number: int) -> Iterable[int]:
        """Return a device attribute."""
        return [ran(cuda.cuDeviceGetAttribute(cuda.CUdevice_attribute(number), self.device))]


def _sleep_until(moment: int) -> None:
    while (left := moment - now()) > 0:
        time.sleep(left / 1e9)


def main() -> None:
    """Execute the commands."""
    client = Client(Path(sys.argv[2]).read_bytes())
    print("ok", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        answer = getattr(client, command)(*map(int, arguments))
        print("ok", *answer, flush=True)


if __name__ == "__main__":
    main()
