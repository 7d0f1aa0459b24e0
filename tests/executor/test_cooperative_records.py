"""LAUNCH with FLAG_COOPERATIVE, by bare records."""

from __future__ import annotations

import struct

from pympsd.vocabulary.results import Result
from pympsd.wire.records import FLAG_COOPERATIVE, pack
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import EMPTY, HEADER, RawClient

MEET = (
    HEADER
    + """
.visible .entry meet(.param .u64 where) {
    .reg .b32 %r<8>; .reg .b64 %rd<2>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, %nctaid.x;
    red.global.add.u32 [%rd1], 1;
SPIN:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra SPIN;
    ret;
}
"""
)

GRID_SYNC = (
    HEADER
    + """
.extern .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 error) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
// The first word counts threads, the second those that do not find all counted after each of three meetings;
// the third is what the last cudaCGSynchronize returned.
.visible .entry sync(.param .u64 where, .param .u32 threads) {
    .reg .b32 %r<8>; .reg .b64 %rd<3>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [where];
    ld.param.u32 %r1, [threads];
    mov.u32 %r2, %r1;
    mov.u32 %r3, 0;
AGAIN:
    red.global.add.u32 [%rd1], 1;
    { .param .b32 scope; .param .b64 handle;
      st.param.b32 [scope], 1;
      call.uni (handle), cudaCGGetIntrinsicHandle, (scope);
      ld.param.b64 %rd2, [handle]; }
    { .param .b64 handle; .param .b32 flags; .param .b32 error;
      st.param.b64 [handle], %rd2;
      st.param.b32 [flags], 0;
      call.uni (error), cudaCGSynchronize, (handle, flags);
      ld.param.b32 %r4, [error]; }
    ld.volatile.global.u32 %r5, [%rd1];
    setp.lt.u32 %p1, %r5, %r2;
    @%p1 red.global.add.u32 [%rd1+4], 1;
    add.u32 %r2, %r2, %r1;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p2, %r3, 3;
    @%p2 bra AGAIN;
    st.global.u32 [%rd1+8], %r4;
    ret;
}
"""
)


def launch(client: RawClient, module: int, blocks: int, threads: int, parameters: bytes = b"") -> None:
    """Launch function 0 cooperatively."""
    operands = (0, module, EMPTY, blocks, 1, 1, threads, 1, 1, 0, len(parameters))
    client.stream.sendall(pack("LAUNCH", client.context, 1 << 30, *operands, tail=parameters, flags=FLAG_COOPERATIVE))


def test_the_blocks_of_a_cooperative_launch_meet(executor: ExecutorOwner) -> None:
    client = executor.attach(multiprocessors=4)
    module, _ = client.load(MEET)
    word = client.allocate(4)
    launch(client, module, 128, 1, struct.pack("=Q", word))
    assert struct.unpack("=I", client.read(word, 4)) == (128,)
    (batch,) = executor.trace().batches
    assert (batch.first_block, batch.blocks) == (0, 128)


def test_a_cooperative_launch_that_is_too_large_fails_the_next_call(executor: ExecutorOwner) -> None:
    client = executor.attach(multiprocessors=4)
    module, _ = client.load()
    launch(client, module, 9, 1024)
    answer = client.call("SYNCHRONIZE_CONTEXT")
    assert answer.result == Result.ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    assert "hold 8" in answer.reason
    launch(client, module, 8, 1024)
    client.good("SYNCHRONIZE_CONTEXT")


def test_blocks_meet_by_the_device_runtimes_grid_synchronisation(executor: ExecutorOwner) -> None:
    client = executor.attach()
    module, _ = client.load(GRID_SYNC)
    words = client.allocate(12)
    client.write(words, bytes(8) + b"\xff" * 4)
    launch(client, module, 100, 70, struct.pack("=QI", words, 7000))
    assert struct.unpack("=III", client.read(words, 12)) == (21000, 0, 0)


def test_grid_synchronisation_in_a_launch_that_is_not_cooperative_is_an_error(executor: ExecutorOwner) -> None:
    client = executor.attach()
    module, _ = client.load(GRID_SYNC)
    words = client.allocate(12)
    client.launch(module, EMPTY, struct.pack("=QI", words, 1))
    assert struct.unpack("=I", client.read(words + 8, 4)) == (1,)  # cudaErrorInvalidValue
