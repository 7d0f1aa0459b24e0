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
