"""How errors travel: immediately, deferred to the next waiting call, or sticky."""

from __future__ import annotations

import struct

import pytest

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.executor_messages import Attach
from pympsd.wire.module_layout import FunctionLayout
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import EMPTY, HEADER, PTX, STORE, TRAPPED, RawClient

QUIET = records.FLAG_QUIET
UNKNOWN_INSTRUCTION = HEADER + ".visible .entry f() { .reg .b32 %r<2>; frobnicate.u32 %r1; }"


def test_an_unanswered_records_error_comes_with_the_next_call_once(client: RawClient) -> None:
    unknown_handle = client.handle()
    client.send("DESTROY_STREAM", unknown_handle)
    client.send("FILL", 0, 0, 0, 1, 1, 0, 1)
    answer = client.call("ALLOCATE", 512)
    assert answer.result == Result.ERROR_INVALID_HANDLE
    assert f"{unknown_handle:#x}" in answer.reason
    assert answer.flags == 0
    client.good("SYNCHRONIZE_CONTEXT")


def test_the_call_that_delivers_an_error_is_not_executed(client: RawClient) -> None:
    before = client.memory_info()
    client.send("DESTROY_EVENT", client.handle())
    assert client.call("ALLOCATE", 1 << 20).result == Result.ERROR_INVALID_HANDLE
    assert client.memory_info() == before


def test_a_quiet_records_error_waits_for_a_call_that_waits(client: RawClient) -> None:
    address = client.allocate(64)
    quiet = client.answer(client.send("COPY_TO_DEVICE", 0, 0x99, 0, 8, flags=QUIET))
    assert quiet.result == Result.ERROR_INVALID_VALUE
    also_quiet = client.answer(client.send("COPY_TO_DEVICE", 0, address, 0, 8, flags=QUIET))
    assert also_quiet.result == 0
    waiting = client.call("COPY_TO_DEVICE", 0, address, 0, 8)
    assert (waiting.result, waiting.reason) == (quiet.result, quiet.reason)
    client.good("COPY_TO_DEVICE", 0, address, 0, 8)


def test_errors_are_the_contexts_own(executor: ExecutorOwner) -> None:
    client = executor.attach(context=1)
    executor.ask(Attach, **executor.request(1, 2, False))
    client.send("DESTROY_EVENT", client.handle(), context=1)
    client.good("SYNCHRONIZE_CONTEXT", context=2)
    assert client.call("SYNCHRONIZE_CONTEXT", context=1).result == Result.ERROR_INVALID_HANDLE


def test_a_fault_sticks_to_its_context_and_no_other(executor: ExecutorOwner) -> None:
    client = executor.attach(client=1, context=1)
    executor.ask(Attach, **executor.request(1, 2, False))
    neighbour = executor.attach(client=2, context=3)
    theirs = neighbour.allocate(64)
    mine = client.allocate(64)
    module, _ = client.load()
    client.launch(module, STORE, struct.pack("=QI", 0x1234_5678_0000, 1))
    for name, operands in (
        ("SYNCHRONIZE_CONTEXT", ()),
        ("ALLOCATE", (64,)),
        ("FREE", (mine,)),
        ("UNLOAD_MODULE", (module,)),
        ("QUERY_STREAM", (0,)),
        ("MEMORY_INFO", ()),
        ("COPY_FROM_DEVICE", (0, mine, 0, 64)),
        ("IMAGE_PART", (client.handle(), 0, 64)),
    ):
        answer = client.call(name, *operands)
        assert answer.result == Result.ERROR_ILLEGAL_ADDRESS, name
        assert answer.flags == records.FLAG_STICKY
        assert "store" in answer.reason
    client.send("DESTROY_STREAM", client.handle())
    assert client.call("SYNCHRONIZE_CONTEXT").result == Result.ERROR_ILLEGAL_ADDRESS
    client.good("ALLOCATE", 64, context=2)
    neighbour.write(theirs, b"z" * 64)
    assert neighbour.read(theirs, 64) == b"z" * 64


CALLS_NOWHERE = (
    HEADER
    + """
.func nothing() { ret; }
.visible .global .align 8 .u64 functions[1] = {nothing};
.visible .entry calls_nowhere() {
    .reg .b64 %rd<2>;
    ld.global.u64 %rd1, [functions];
    add.u64 %rd1, %rd1, 4096;
    proto: .callprototype _ ();
    call %rd1, (), proto;
    ret;
}
"""
)


def test_a_call_of_no_functions_address_poisons_the_context(client: RawClient) -> None:
    module, _ = client.load(CALLS_NOWHERE)
    client.launch(module, 0)
    for _ in range(2):
        answer = client.call("SYNCHRONIZE_CONTEXT")
        assert answer.result == Result.ERROR_INVALID_PC
        assert answer.flags == records.FLAG_STICKY
        assert "which is not a function of this shape" in answer.reason


def test_a_call_that_waits_returns_the_fault(client: RawClient) -> None:
    module, _ = client.load()
    client.launch(module, TRAPPED)
    answer = client.call("SYNCHRONIZE_STREAM", 0)
    assert answer.result == Result.ERROR_LAUNCH_FAILED
    assert answer.flags == records.FLAG_STICKY


@pytest.mark.parametrize(
    ("ptx", "code", "words"),
    [
        ("no ptx at all", Result.ERROR_INVALID_PTX, "line"),
        (
            UNKNOWN_INSTRUCTION,
            Result.ERROR_INVALID_PTX,
            "frobnicate",
        ),
        ("\x7fELF....", Result.ERROR_NO_BINARY_FOR_GPU, "cubin"),
        ("a\0b", Result.ERROR_INVALID_IMAGE, "PTX"),
    ],
)
def test_a_bad_image_is_refused_with_a_reason(client: RawClient, ptx: str, code: Result, words: str) -> None:
    handle, image = client.handle(), ptx.encode("latin-1")
    client.memory[: len(image)] = image
    client.good("IMAGE_PART", handle, 0, len(image))
    answer = client.call("LOAD_MODULE", handle)
    assert answer.result == code
    assert words in answer.reason
    assert client.call("UNLOAD_MODULE", handle).result == Result.ERROR_INVALID_HANDLE
    assert client.call("LOAD_MODULE", handle).result == Result.ERROR_INVALID_IMAGE


def test_functions_of_a_large_image_are_loaded_one_by_one(client: RawClient) -> None:
    bad = ".visible .entry bad() { bra nowhere; }\n"
    module, layout = client.load(PTX + bad + "// what makes it large\n" * 4000)
    assert not any(function.is_loaded for function in layout.functions)
    function = FunctionLayout.decode(client.good("LOAD_FUNCTION", module, STORE))
    assert function.is_loaded
    assert (function.name, function.parameter_bytes) == (layout.functions[STORE].name, 12)
    for index, code in ((len(layout.functions) - 1, "INVALID_PTX"), (len(layout.functions), "INVALID_HANDLE")):
        answer = client.call("LOAD_FUNCTION", module, index)
        assert (answer.result, answer.flags) == (Result[f"ERROR_{code}"], 0)
    client.launch(module, len(layout.functions) - 1)  # by a client that did not ask
    assert client.call("SYNCHRONIZE_CONTEXT").result == Result.ERROR_INVALID_PTX


@pytest.mark.parametrize(
    ("grid", "block", "shared", "parameters", "code"),
    [
        ((0, 1, 1), (1, 1, 1), 0, b"", Result.ERROR_INVALID_VALUE),
        ((1, 1, 65536), (1, 1, 1), 0, b"", Result.ERROR_INVALID_VALUE),
        ((1, 1, 1), (1025, 1, 1), 0, b"", Result.ERROR_INVALID_VALUE),
        ((1, 1, 1), (32, 32, 2), 0, b"", Result.ERROR_INVALID_VALUE),
        ((1, 1, 1), (1, 1, 1), 1 << 20, b"", Result.ERROR_INVALID_VALUE),
        ((1, 1, 1), (1, 1, 1), 0, b"12345678", Result.ERROR_INVALID_VALUE),
        ((2**64 - 1, 1, 1), (2**64 - 1, 1, 1), 2**64 - 1, b"", Result.ERROR_INVALID_VALUE),
    ],
)
def test_a_launch_that_cannot_be(
    client: RawClient,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    shared: int,
    parameters: bytes,
    code: Result,
) -> None:
    module, _ = client.load()
    client.send("LAUNCH", 0, module, EMPTY, *grid, *block, shared, len(parameters), tail=parameters)
    assert client.call("SYNCHRONIZE_CONTEXT").result == code
    client.good("SYNCHRONIZE_CONTEXT")


def test_a_function_that_is_not_there(client: RawClient) -> None:
    module, layout = client.load()
    for function in (len(layout.functions), 2**64 - 1):
        client.launch(module, function)
        assert client.call("SYNCHRONIZE_CONTEXT").result == Result.ERROR_INVALID_HANDLE


def test_an_unknown_context_is_reported_by_the_next_call_that_waits(client: RawClient) -> None:
    client.send("FILL", 0, 0, 0, 1, 1, 0, 1, context=99)
    answer = client.call("SYNCHRONIZE_CONTEXT", context=99)
    assert answer.result == Result.ERROR_INVALID_CONTEXT
    client.good("SYNCHRONIZE_CONTEXT")
