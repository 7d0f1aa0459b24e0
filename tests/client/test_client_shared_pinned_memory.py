"""Page-locked memory at one address here and in an executor: how it arrives, what is refused, errors."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from pympsd.channel.mapping import map_nothing, unmap
from pympsd.vocabulary.device_properties import mapped_window_of, pinned_window_of, window_of
from pympsd.wire.records import Record
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import host_callbacks, operations
from pympsd_client._command_stream import host_callbacks as callback_threads
from pympsd_client._objects.context import Context, contexts
from pympsd_client._objects.memory import shared_pages
from pympsd_client._objects.memory.pinned import pinned
from pympsd_client._objects.memory.shared_pages import free_address, share
from tests.client.conftest import ok
from tests.client.fake_executor import OPCODES, FakeExecutor

PAGE = mmap.PAGESIZE
COUNT = 300_000
DONE = (cuda.CUresult.CUDA_SUCCESS,)
INVALID, MEMORY, RPC_FAILURE, SYSTEM = 1, 2, 806, 304
_PLACE = count(pinned_window_of(60), 1 << 20).__next__
"""Addresses that no real executor of these tests gives."""


def view_at(address: int, size: int = COUNT) -> np.ndarray[Any, Any]:
    """The bytes at an address, as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def is_mapped(address: int) -> bool:
    """Return whether something is mapped at an address."""
    msync = ctypes.CDLL(None).msync
    msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(msync(address, PAGE, 1) == 0)


class Giver:
    """Makes a fake executor give page-locked memory: its address, size, with a descriptor or without."""

    def __init__(self, executor: FakeExecutor) -> None:
        self.executor = executor
        self.given: list[int] = []
        self.freed: list[int] = []
        self.place: Callable[[], int] = _PLACE
        self.sends: Callable[[bytes, int], None] = self.send
        self.done_with: Callable[[int], None] = os.close
        self.bytes: int | None = None
        self.offset = 3 * PAGE
        executor.reply = self.reply

    def send(self, answer: bytes, fd: int) -> None:
        """Send the answer and the descriptor."""
        socket.send_fds(self.executor.stream, [answer], [fd])

    def reply(self, record: Record) -> bytes | None:
        """Answer one record."""
        if record.opcode == OPCODES["FREE_PINNED"]:
            self.freed += self.executor.operands(record)
        if record.opcode != OPCODES["ALLOCATE_PINNED"]:
            return self.executor.succeed(record)
        (size,) = self.executor.operands(record)
        fd = os.memfd_create("given", os.MFD_CLOEXEC)
        os.ftruncate(fd, self.offset + size if self.bytes is None else self.bytes)
        self.given.append(self.place())
        self.sends(self.executor.answer(record, struct.pack("=QQ", self.given[-1], self.offset)), fd)
        self.done_with(fd)
        return None


def test_shared_memory_is_mapped_at_the_executors_address_and_unmapped_here_first(executor: FakeExecutor) -> None:
    giver, context = Giver(executor), executor.context()
    pages = share(context, COUNT)
    assert pages.address == giver.given[0]
    view_at(pages.address)[:] = 7
    seen: list[bool] = []
    executor.reply = lambda record: (seen.append(is_mapped(pages.address)), giver.reply(record))[1]
    pages.close()
    assert giver.freed == giver.given
    assert seen == [False], "it may be given out again once it is free there"


def test_a_taken_address_is_refused_and_freed_again(executor: FakeExecutor) -> None:
    giver, context = Giver(executor), executor.context()
    first = share(context, COUNT)
    giver.place = lambda: first.address + PAGE
    with pytest.raises(CudaError, match="both need at the same address") as caught:
        share(context, COUNT)
    assert caught.value.code == MEMORY
    assert giver.freed == giver.given[1:]
    assert len(giver.freed) > 1, "it has asked again"
    view_at(first.address)[:] = 1
    first.close()


def test_free_addresses_are_found_beyond_what_is_mapped() -> None:
    maps = "1000-3000 r-xp 00000000 08:01 1 /bin/program\n3000-4000 rw-p 0 00:00 0 [heap]\n8000-9000 r--p 0 00:00 0\n"
    places = [
        (0x1000, 0x1000, 0x4000),
        (0x2000, 0x4000, 0x4000),
        (0x3800, 0x4001, 0x9000),
        (0x9000, 8, 0x9000),
        (0, 8, 0),
    ]
    for address, size, place in places:
        assert free_address(maps, address, size) == place


def test_an_address_that_the_program_uses_is_passed_by(executor: FakeExecutor) -> None:
    """An executor gives the next free addresses, as a real one does, and 4 MiB of the program are there."""
    giver, context = Giver(executor), executor.context()
    start = _PLACE()
    end = map_nothing(4 << 20, start) + (4 << 20)
    sizes = iter((COUNT, (4 << 20) - COUNT, COUNT))
    places = [start, start + COUNT, end]
    giver.place = lambda: places[len(giver.given)]
    executor.reply = lambda record: (
        record.opcode == OPCODES["ALLOCATE_PINNED"] and requests.extend(executor.operands(record)),
        giver.reply(record),
    )[1]
    requests: list[int] = []
    pages = share(context, COUNT)
    assert (pages.address, requests) == (end, list(sizes))
    assert giver.freed == places[:2]
    pages.close()
    unmap(start, 4 << 20)


def test_memory_that_breaks_the_protocol_is_refused_and_freed(executor: FakeExecutor) -> None:
    giver, context = Giver(executor), executor.context()
    giver.bytes = PAGE  # a page beyond its end would kill this process
    with pytest.raises(CudaError, match="shared memory of"):
        share(context, COUNT)
    giver.bytes, giver.sends = None, lambda answer, fd: executor.send(answer)
    with pytest.raises(CudaError, match="no descriptor") as caught:
        share(context, COUNT)
    assert caught.value.code == RPC_FAILURE
    giver.sends = giver.send
    share(context, COUNT).close()
    assert giver.freed == giver.given


def test_a_process_out_of_descriptors_gets_an_error_that_names_the_cause(executor: FakeExecutor) -> None:
    giver, context = Giver(executor), executor.context()
    share(context, PAGE).close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept: list[int] = []

    def fail_exhausted(answer: bytes, fd: int) -> None:
        highest = max(map(int, os.listdir("/proc/self/fd"))) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        with contextlib.suppress(OSError):
            while True:
                kept.append(os.dup(0))
        giver.send(answer, fd)

    # The other end is in this process too: closing its descriptor would make room for one.
    giver.sends, giver.done_with = fail_exhausted, kept.append
    try:
        with pytest.raises(CudaError, match="out of file descriptors") as caught:
            share(context, PAGE)
    finally:
        for fd in kept:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.code == SYSTEM
    giver.sends, giver.done_with = giver.send, os.close
    pages = share(context, PAGE)
    assert pages.address == giver.given[-1], "the next descriptor belongs to the next answer"
    pages.close()
    assert giver.freed == giver.given


def test_a_thread_that_was_reading_before_loses_no_descriptor(executor: FakeExecutor) -> None:
    giver, context = Giver(executor), executor.context()
    waiting: list[Record] = []
    arrived = threading.Event()

    def hold(record: Record) -> bytes | None:
        if record.opcode == OPCODES["SYNCHRONIZE_CONTEXT"]:
            waiting.append(record)
            arrived.set()
            return None
        return giver.reply(record)

    executor.reply = hold
    reader = threading.Thread(target=context.synchronize)
    reader.start()
    assert arrived.wait(10)
    for _ in range(20):
        share(context, COUNT).close()
    executor.send(executor.answer(waiting[0]))
    reader.join(10)
    assert not reader.is_alive()
    assert giver.freed == giver.given


def test_each_thread_gets_its_own_memory(executor: FakeExecutor) -> None:
    giver, context = Giver(executor), executor.context()

    def make(number: int) -> bool:
        pages = share(context, PAGE * (1 + number % 5))
        context.call(operations.MEMORY_INFO)
        view_at(pages.address, PAGE)[:] = number % 256
        right = bool((view_at(pages.address, PAGE) == number % 256).all())
        pages.close()
        return right

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(make, range(200)))
    assert sorted(giver.freed) == sorted(giver.given)


def test_memory_for_an_interrupted_call_is_freed(executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    giver, context = Giver(executor), executor.context()
    transport = context.usable().transport
    share(context, PAGE).close()

    def interrupted(sequence: int) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transport, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            share(context, PAGE)
    context.call(operations.MEMORY_INFO)
    assert len(giver.freed) == 1
    share(context, PAGE).close()
    assert sorted(giver.freed) == sorted(giver.given)
    assert len(giver.given) == 3


def test_memory_of_an_executor_that_is_gone_can_be_freed(executor: FakeExecutor) -> None:
    Giver(executor)
    pages = share(executor.context(), PAGE)
    executor.hang_up()
    pages.close()
    assert not is_mapped(pages.address)


def test_kernels_are_given_the_same_address_where_the_device_maps_it(
    executor: FakeExecutor, fresh_process: Callable[[Any], None]
) -> None:
    Giver(executor)
    fresh_process(executor)
    properties = evolve(
        executor.devices[0].properties,
        attributes={**executor.devices[0].properties.attributes, "CAN_MAP_HOST_MEMORY": 1},
    )
    mapping = Context(evolve(executor.devices[0], properties=properties), 0, primary=False)
    mapping.open(executor)
    ok((*cuda.cuCtxSetCurrent(cuda.CUcontext(mapping.handle)), None))
    address = ok(cuda.cuMemHostAlloc(COUNT, 2))
    assert int(ok(cuda.cuMemHostGetDevicePointer(address, 0))) == address
    assert int(ok(cuda.cuMemHostGetDevicePointer(address + COUNT - 1, 0))) == address + COUNT - 1
    for wrong in (address + COUNT, address - 1, 0):
        assert int(cuda.cuMemHostGetDevicePointer(wrong, 0)[0]) == INVALID
    assert int(cuda.cuMemHostGetDevicePointer(address, 1)[0]) == INVALID
    assert cuda.cuMemFreeHost(address) == DONE
    assert int(cuda.cuMemHostGetDevicePointer(address, 0)[0]) == INVALID


# --- real executors


def test_memory_of_one_devices_executor_is_copied_to_all_devices(context: Any) -> None:
    address = ok(cuda.cuMemAllocHost(COUNT))
    view_at(address)[:] = np.arange(COUNT) % 249
    elsewhere = ok(cuda.cuCtxCreate(None, 0, 1))
    device_memory = ok(cuda.cuMemAlloc(COUNT))
    other = ok(cuda.cuMemAllocHost(COUNT))
    assert abs(other - address) > 1 << 37, "each executor has a window of addresses"
    assert cuda.cuMemcpyHtoD(device_memory, address, COUNT) == DONE
    assert cuda.cuMemcpyDtoH(other, device_memory, COUNT) == DONE
    assert (view_at(other) == view_at(address)).all()
    assert cuda.cuMemcpyDtoHAsync(address + 8, device_memory, COUNT - 8, 0) == DONE
    assert (view_at(address)[8:] == view_at(other)[:-8]).all(), "pageable to this device: there when the call returns"
    for item in (address, other):
        assert cuda.cuMemFreeHost(item) == DONE
    ok((*cuda.cuCtxDestroy(elsewhere), None))


def test_a_copy_in_another_devices_stream_is_waited_for(context: Any) -> None:
    device_memory, address = ok(cuda.cuMemAlloc(COUNT)), ok(cuda.cuMemAllocHost(COUNT))
    view_at(address)[:] = 5
    elsewhere = ok(cuda.cuCtxCreate(None, 0, 1))
    stream = ok(cuda.cuStreamCreate(0))
    assert cuda.cuMemcpyHtoDAsync(device_memory, address, COUNT, stream) == DONE
    view_at(address)[:] = 0
    assert cuda.cuMemcpyDtoHAsync(address, device_memory, COUNT, stream) == DONE
    assert (view_at(address) == 5).all(), "waiting for that stream would not wait for the other device"
    assert cuda.cuMemFreeHost(address) == DONE
    ok((*cuda.cuCtxDestroy(elsewhere), None))


def test_the_source_is_read_and_the_target_written_when_the_stream_comes_to_it(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (callback_threads, host_callbacks):
        monkeypatch.setattr(module, "IDLE_SECONDS", 0.02)  # the threads end before the check for leaks
    stream, device_memory = ok(cuda.cuStreamCreate(1)), ok(cuda.cuMemAlloc(COUNT))
    source, target = ok(cuda.cuMemAllocHost(COUNT)), ok(cuda.cuMemHostAlloc(COUNT, 1))
    view_at(source)[:] = 1
    began, go_on = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        began.set()
        assert go_on.wait(30)

    assert cuda.cuLaunchHostFunc(stream, hold, None) == DONE
    assert cuda.cuMemcpyHtoDAsync(device_memory, source, COUNT, stream) == DONE
    assert cuda.cuMemcpyDtoHAsync(target, device_memory, COUNT, stream) == DONE
    assert began.wait(30)
    assert not view_at(target).any()
    view_at(source)[:] = 2
    go_on.set()
    assert cuda.cuStreamSynchronize(stream) == DONE
    assert (view_at(target) == 2).all()
    for item in (source, target):
        assert cuda.cuMemFreeHost(item) == DONE


def test_freeing_does_not_disturb_copies_in_flight(context: Any) -> None:
    size = 48 << 20
    stream, device_memory = ok(cuda.cuStreamCreate(1)), ok(cuda.cuMemAlloc(size))
    for number in range(1, 6):
        source = ok(cuda.cuMemAllocHost(size))
        view_at(source, size)[:] = number
        assert cuda.cuMemcpyHtoDAsync(device_memory, source, size, stream) == DONE
        assert cuda.cuMemFreeHost(source) == DONE
        back = np.zeros(size, np.uint8)
        assert cuda.cuMemcpyDtoHAsync(back, device_memory, size, stream) == DONE
        assert (back == number).all()


def test_mistakes_are_refused_and_nothing_is_copied(context: Any) -> None:
    device_memory, address = ok(cuda.cuMemAlloc(1000)), ok(cuda.cuMemAllocHost(1000))
    assert address in range(mapped_window_of(0), window_of(1))
    for call, words in (
        (
            lambda: cuda.cuMemcpyHtoD(device_memory, address + 1, 1000),
            "not all within the 1000 bytes of page-locked memory",
        ),
        (
            lambda: cuda.cuMemcpyDtoH(address + 1, device_memory, 1000),
            "not all within the 1000 bytes of page-locked memory",
        ),
        (lambda: cuda.cuMemcpyHtoD(int(device_memory) + 1, address, 1000), "not all within the 1000 bytes"),
        (lambda: cuda.cuMemcpyDtoH(address, int(device_memory) + 1, 1000), "not all within the 1000 bytes"),
        (lambda: cuda.cuMemcpyHtoD(0x1000, address, 1000), "not an address of a visible device"),
    ):
        assert int(call()[0]) == INVALID
        assert words in last_error()
    assert cuda.cuCtxSynchronize() == DONE
    assert not view_at(address, 1000).any()
    assert cuda.cuMemFreeHost(address) == DONE


def test_threads_allocate_copy_and_free_at_the_same_time(context: Any) -> None:
    handle = ok(cuda.cuCtxGetCurrent())

    def work(seed: int) -> bool:
        ok((*cuda.cuCtxSetCurrent(handle), None))
        stream, right = ok(cuda.cuStreamCreate(1)), True
        for number in range(12):
            size = 1 + (seed * 7919 + number * 104729) % (1 << 20)
            source, target = ok(cuda.cuMemAllocHost(size)), ok(cuda.cuMemAllocHost(size))
            device_memory = ok(cuda.cuMemAlloc(size))
            view_at(source, size)[:] = np.random.default_rng(seed * 100 + number).integers(0, 256, size, np.uint8)
            ok((*cuda.cuMemcpyHtoDAsync(device_memory, source, size, stream), None))
            ok((*cuda.cuMemcpyDtoHAsync(target, device_memory, size, stream), None))
            ok((*cuda.cuStreamSynchronize(stream), None))
            right = right and bool((view_at(target, size) == view_at(source, size)).all())
            ok((*cuda.cuMemFree(device_memory), None))
            for item in (source, target):
                ok((*cuda.cuMemFreeHost(item), None))
        ok((*cuda.cuStreamDestroy(stream), None))
        return right

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6)))


def test_more_than_a_clients_limit_is_refused_with_the_limit(context: Any) -> None:
    assert int(cuda.cuMemAllocHost(1 << 45)[0]) == MEMORY
    assert "a quarter of this machine's memory" in last_error()
    address = ok(cuda.cuMemAllocHost(1))
    assert cuda.cuMemFreeHost(address) == DONE


def test_a_faulted_contexts_memory_stays_the_processs(context: Any) -> None:
    address = ok(cuda.cuMemAllocHost(COUNT))
    current = contexts[int(context)]
    current.fault(current.id, 700, "a fault")
    view_at(address)[:] = 3
    assert int(cuda.cuMemcpyHtoD(pinned_window_of(0), address, 1)[0]) == 700
    assert cuda.cuMemFreeHost(address) == DONE
    assert pinned.region_at(address) is None
    assert not is_mapped(address)


def test_an_empty_set_of_descriptors_declines_nothing() -> None:
    assert shared_pages.ReceivedFds().decline() == []
