"""Streams, events, modules and their handles, by bare records."""

from __future__ import annotations

import struct

import pytest

from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Attach
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import EMPTY, ENDLESS, STORE, RawClient

HANDLE, VALUE, NOT_READY = Result.ERROR_INVALID_HANDLE, Result.ERROR_INVALID_VALUE, Result.ERROR_NOT_READY


def get_deferred_error(client: RawClient) -> int:
    """Return the error that the records until now left behind."""
    return client.call("SYNCHRONIZE_CONTEXT").result


def test_a_kernel_writes_what_it_was_given(client: RawClient) -> None:
    module, layout = client.load()
    assert [function.name for function in layout.functions] == ["empty", "endless", "store", "trapped"]
    store = layout.functions[STORE]
    assert (store.parameters, store.parameter_bytes) == (((0, 8), (8, 4)), 12)
    address = client.allocate(64)
    client.launch(module, STORE, struct.pack("=QI", address + 8, 77))
    assert client.read(address, 16) == bytes(8) + struct.pack("=Q", 77)


def test_attributes_of_a_function_are_reported(client: RawClient) -> None:
    _, layout = client.load()
    attributes = layout.functions[EMPTY].attributes
    assert attributes["MAX_THREADS_PER_BLOCK"] == 1024
    assert attributes["PTX_VERSION"] == 70  # of the image's .target, and the device's
    assert attributes["BINARY_VERSION"] == 90
    assert attributes["MAX_DYNAMIC_SHARED_SIZE_BYTES"] == 48 << 10
    assert set(attributes) >= {
        "SHARED_SIZE_BYTES",
        "CONST_SIZE_BYTES",
        "LOCAL_SIZE_BYTES",
        "NUM_REGS",
        "CACHE_MODE_CA",
        "PREFERRED_SHARED_MEMORY_CARVEOUT",
    }


def test_a_modules_variables_are_memory(client: RawClient) -> None:
    before = client.memory_info()
    module, layout = client.load()
    (counter,) = layout.globals
    assert (counter.name, counter.size) == ("counter", 4)
    assert client.read(counter.address, 4) == struct.pack("=I", 5)
    client.good("UNLOAD_MODULE", module)
    client.good("SYNCHRONIZE_CONTEXT")
    assert client.memory_info() == before
    client.launch(module, EMPTY)
    assert get_deferred_error(client) == HANDLE


@pytest.mark.parametrize(("create", "flags"), [("CREATE_STREAM", (0, 0)), ("CREATE_EVENT", (0,))])
def test_handles_are_of_this_generation_and_taken_once(
    client: RawClient, create: str, flags: tuple[int, ...]
) -> None:
    good = client.handle()
    client.send(create, good, *flags)
    assert get_deferred_error(client) == 0
    for handle, code in (
        (good, VALUE),
        (good & 0xFFFF, HANDLE),
        (good + (1 << 40), HANDLE),
        (7 << 40 | 15, HANDLE),
        (0, HANDLE),
        (2**64 - 1, HANDLE),
    ):
        client.send(create, handle, *flags)
        assert get_deferred_error(client) == code, hex(handle)
    client.send(create.replace("CREATE", "DESTROY"), good)
    client.send(create, good, *flags)
    assert get_deferred_error(client) == 0


@pytest.mark.parametrize("handle", [1, 2, 15, (6 << 40) + 16, (7 << 40) + 999])
def test_streams_that_are_not_there(client: RawClient, handle: int) -> None:
    for name, operands in (("QUERY_STREAM", (handle,)), ("SYNCHRONIZE_STREAM", (handle,))):
        assert client.call(name, *operands).result == HANDLE
    client.send("DESTROY_STREAM", handle)
    assert get_deferred_error(client) == HANDLE


def test_the_default_stream_cannot_be_destroyed(client: RawClient) -> None:
    client.send("DESTROY_STREAM", 0)
    assert get_deferred_error(client) == HANDLE


def test_handles_belong_to_their_context(executor: ExecutorOwner) -> None:
    client = executor.attach(context=1)
    executor.ask(Attach, **executor.request(1, 2, False))
    stream, event = client.handle(), client.handle()
    client.send("CREATE_STREAM", stream, 0, 0)
    client.send("CREATE_EVENT", event, 0)
    assert client.call("QUERY_STREAM", stream, context=2).result == HANDLE
    assert client.call("QUERY_EVENT", event, context=2).result == HANDLE
    client.good("QUERY_EVENT", event)


@pytest.mark.parametrize(("name", "operands"), [("CREATE_STREAM", (2, 0)), ("CREATE_EVENT", (8,))])
def test_flags_that_are_not_there(client: RawClient, name: str, operands: tuple[int, ...]) -> None:
    client.send(name, client.handle(), *operands)
    assert get_deferred_error(client) == VALUE


def test_a_synchronise_waits_and_others_do_not(client: RawClient) -> None:
    module, _ = client.load()
    busy = client.handle()
    client.send("CREATE_STREAM", busy, 1, -5)
    client.launch(module, ENDLESS, stream=busy)
    waiting = client.send("SYNCHRONIZE_STREAM", busy)
    client.good("SYNCHRONIZE_STREAM", 0)
    assert client.call("QUERY_STREAM", busy).result == NOT_READY
    assert waiting not in client.arrived()


def test_events_mark_points_in_streams(client: RawClient) -> None:
    module, _ = client.load()
    busy, start, end, other = (client.handle() for _ in range(4))
    client.send("CREATE_STREAM", busy, 1, 0)
    for event in (start, end, other):
        client.send("CREATE_EVENT", event, 0)
    client.good("QUERY_EVENT", start)  # never recorded: nothing to wait for
    client.send("RECORD_EVENT", start, 0)
    client.launch(module, EMPTY)
    client.send("RECORD_EVENT", end, 0)
    client.good("SYNCHRONIZE_EVENT", end)
    (elapsed,) = struct.unpack("=d", client.good("ELAPSED_TIME", start, end))
    assert 0 < elapsed < 30_000
    assert client.call("ELAPSED_TIME", start, other).result == HANDLE
    client.launch(module, ENDLESS, stream=busy)
    client.send("RECORD_EVENT", other, busy)
    assert client.call("QUERY_EVENT", other).result == NOT_READY
    assert client.call("ELAPSED_TIME", start, other).result == NOT_READY
    client.send("WAIT_EVENT", 0, other)
    assert client.call("QUERY_STREAM", 0).result == NOT_READY


def test_one_clients_endless_kernel_does_not_hold_another(executor: ExecutorOwner) -> None:
    first, second = executor.attach(client=1, context=1), executor.attach(client=2, context=2)
    module, _ = first.load()
    first.launch(module, ENDLESS)
    code, _ = second.load()
    address = second.allocate(64)
    for value in range(50):
        second.launch(code, STORE, struct.pack("=QI", address, value))
    second.good("SYNCHRONIZE_CONTEXT")
    assert second.read(address, 4) == struct.pack("=I", 49)
    assert first.call("QUERY_STREAM", 0).result == NOT_READY


def test_a_layout_that_fits_no_answer_is_refused_by_name(client: RawClient) -> None:
    name = "kernel_with_quite_a_long_name_" * 30
    kernels = "".join(f".visible .entry {name}{number}() {{ ret; }}\n" for number in range(1300))
    handle = client.handle()
    image = (".version 7.0\n.target sm_70\n.address_size 64\n" + kernels).encode()
    for start in range(0, len(image), 1 << 20):
        part = image[start : start + (1 << 20)]
        client.memory[: len(part)] = part
        client.good("IMAGE_PART", handle, 0, len(part))
    answer = client.call("LOAD_MODULE", handle)
    assert answer.result == Result.ERROR_NOT_SUPPORTED
    assert "fit an answer" in answer.reason
    assert client.call("UNLOAD_MODULE", handle).result == HANDLE


def test_images_on_their_way_are_bounded(client: RawClient) -> None:
    handle = client.handle()
    for _ in range(16):
        client.good("IMAGE_PART", handle, 0, 16 << 20)
    assert client.call("IMAGE_PART", handle, 0, 1).result == Result.ERROR_OUT_OF_MEMORY
