"""A client process that works on request: ``python -m tests.executor.contender`` from the repository's root.

Each line on its standard input is an order, ``work BLOCKS THREADS ROUNDS`` or ``wait``, answered by a line when it is
done.
"""

from __future__ import annotations

import struct
import sys

from pympsd.wire.executor_messages import Attached
from tests.executor.raw_client import HEADER, RawClient

WORK = (
    HEADER
    + """
.visible .entry work(.param .u64 where, .param .u32 rounds) {
    .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [where]; ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %tid.x; add.u32 %r4, %r2, %r3;
AGAIN:
    mad.lo.u32 %r4, %r4, 5, %r3;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    mov.u32 %r5, %smid;
    mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r5;
    ret;
}
"""
)


class Contender:
    """One client with one stream: the default one, or one of its own with a priority."""

    def __init__(self, client: RawClient, priority: int | None) -> None:
        self._client = client
        self._module, _ = client.load(WORK)
        self._stream = 0
        if priority is not None:
            self._stream = client.handle()
            client.send("CREATE_STREAM", self._stream, 1, priority)
        self._where = 0
        self._blocks = 0

    def work(self, blocks: int, threads: int, rounds: int) -> str:
        """Launch a number of blocks, of a number of threads that run a number of rounds."""
        self._blocks, self._where = blocks, self._client.allocate(4 * blocks)
        shape = {"grid": (blocks, 1, 1), "block": (threads, 1, 1)}
        self._client.launch(self._module, 0, struct.pack("=QI", self._where, rounds), self._stream, **shape)
        return "sent"

    def wait(self) -> str:
        """Wait for the work; return the multiprocessors it ran on."""
        self._client.good("SYNCHRONIZE_STREAM", self._stream)
        words = self._client.read(self._where, 4 * self._blocks)
        return " ".join(map(str, sorted(set(struct.unpack(f"={self._blocks}I", words)))))


def main() -> None:
    """Take over the stream and the shared memory, obey until the orders end."""
    stream, memory, context, generation, shared_bytes, priority = sys.argv[1:]
    attached = Attached(0, int(shared_bytes), 0, (0, -5))
    client = RawClient.from_fds((int(stream), int(memory)), int(context), int(generation), attached)
    contender = Contender(client, int(priority) if priority else None)
    print("ready", flush=True)
    for line in sys.stdin:
        order, *numbers = line.split()
        answer = {"work": contender.work, "wait": contender.wait}[order](*map(int, numbers))
        print(answer, flush=True)
    client.close()


if __name__ == "__main__":
    main()
