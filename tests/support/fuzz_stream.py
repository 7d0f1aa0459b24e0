"""Spoilt records thrown at a live executor, while other clients of it compute and check every result.

The bad client knows what an attacker knows: the format, its own handles and addresses, and where others' might be.
"""

from __future__ import annotations

import mmap
import random
import select
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import define, field, frozen
from processes import wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pympsd.vocabulary.device_properties import mapped_window_of, window_of
from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.executor_messages import ContextFaulted, DropClient, ExecutorDone
from pympsd.wire.graph_items import GraphItem, encode
from pympsd.wire.ring_layout import RECORD_BYTES
from tests.executor.executor_owner import GENERATION, ExecutorOwner
from tests.executor.raw_client import EMPTY, ENDLESS, STORE, TRAPPED, RawClient

RECORDS_A_SESSION: Final = 400
ENDLESS_SESSIONS: Final = 0.05
"""The share of sessions that launch kernels without end."""
BROKEN_LENGTHS: Final = 0.3
"""The share of sessions that end with a record of an impossible length."""
BY_RING: Final = 0.7
"""The share of sessions whose records come by the ring, where there is one (PYMPSD_WORKER=native)."""
STALLED_SECONDS: Final = 0.5
"""A stream that takes no record for this many seconds waits for an endless kernel: the session is over."""
HANDLES: Final = tuple((GENERATION << records.GENERATION_SHIFT) + number for number in range(16, 48))
STREAMS: Final = HANDLES[8:12]
EVENTS: Final = HANDLES[12:16]
HELD_UP: Final = HANDLES[16]
"""The stream of host functions, which a slow call delays."""
_EDGES: Final = (0, 1, 2, 4, 15, 511, 512, 4096, 1 << 24, 1 << 32, 1 << 40, 2**63 - 1, 2**63, 2**64 - 512, 2**64 - 1)
_QUERY: Final = 1 << 61
"""The first sequence number of the fuzzer's own queries."""


@frozen
class Found:
    """The counts of what an executor received."""

    records: int
    """Records that were surely consumed: the query after them was answered, or their stream was ended."""
    sessions: int
    stalled: int
    """Sessions ended behind a kernel without end."""
    faulted: int
    """Contexts that faulted; all of them the bad client's."""
    checks: int
    """Right results of other clients."""
    results: Counter[int]
    """Answers by result."""
    kib_before: int
    kib_after: int


@define
class Witness:
    """A client that computes and checks, in a thread of its own, until it is stopped."""

    client: RawClient
    checks: int = 0
    failure: str = ""
    _over: threading.Event = field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self) -> None:
        """End; raise AssertionError when a result was wrong."""
        self._over.set()
        assert self._thread is not None
        self._thread.join(60)
        assert not self._thread.is_alive(), "another client's call hangs"
        assert not self.failure, self.failure

    def _work(self) -> None:
        try:
            module, _ = self.client.load()
            address = self.client.allocate(8192)
            pinned, host = self.client.allocate_pinned(8192)
            with host:
                while not self._over.is_set():
                    self._check(module, address)
                    self._check_pinned(address, pinned, host)
                    self.checks += 1
        except Exception as error:
            self.failure = f"another client was harmed: {error!r}"

    def _check(self, module: int, address: int) -> None:
        pattern = struct.pack("=Q", self.checks * 0x9E3779B97F4A7C15 & 2**64 - 1) * 512
        self.client.write(address, pattern)
        self.client.launch(module, STORE, struct.pack("=QI", address + 4096, self.checks & 0xFFFFFFFF))
        read = self.client.read(address, 4100)
        assert read[:4096] == pattern, "memory was changed"
        assert read[4096:] == struct.pack("=I", self.checks & 0xFFFFFFFF), "a kernel's result is wrong"

    def _check_pinned(self, address: int, pinned: int, host: mmap.mmap) -> None:
        pattern = struct.pack("=Q", self.checks * 0x9E3779B97F4A7C15 + 1 & 2**64 - 1) * 512
        host[:4096], host[4096:] = pattern, bytes(4096)
        self.client.send("COPY_TO_DEVICE_PINNED", 0, address, pinned, 4096)
        self.client.send("COPY_FROM_DEVICE_PINNED", 0, pinned + 4096, address, 4096)
        self.client.good("SYNCHRONIZE_STREAM", 0)
        assert host[:] == pattern * 2, "page-locked memory was changed"


@define
class Attack:
    """One session of the bad client: what it sends, made from its own objects."""

    source: random.Random
    client: RawClient
    endless: bool
    spoilt: float
    """The share of its records that are changed."""
    addresses: list[int] = field(factory=list)
    pinned: list[int] = field(factory=list)
    modules: list[int] = field(factory=list)
    graphs: list[int] = field(factory=list)

    def wait_for_answers(self) -> None:
        """Create a few objects of its own."""
        self.addresses = [self.client.allocate(size) for size in (64, 4096, 1 << 20)]
        for size in (100, 4096):
            address, host = self.client.allocate_pinned(size)
            self.pinned.append(address)
            host.close()
        self.modules = [self.client.load()[0]]
        for handle in (*STREAMS, HELD_UP):
            self.client.send("CREATE_STREAM", handle, 1, 0)
        for handle in EVENTS:
            self.client.send("CREATE_EVENT", handle, 0)
        self._make_graph()
        self.client.good("SYNCHRONIZE_CONTEXT")

    def _make_graph(self) -> None:
        client, address = self.client, self.addresses[1]
        tail = struct.pack("=QI", address, 7)
        store = records.pack("LAUNCH", client.context, 0, 0, self.modules[0], STORE, *[1] * 6, 0, 12, tail=tail)
        fill = records.pack("FILL", client.context, 0, 0, address, 5, 4, 64, 0, 1)
        graph = encode([GraphItem(fill), GraphItem(store, (0,)), GraphItem(store, (0,)), GraphItem(b"", (1, 2))])
        self.graphs = [client.handle()]
        client.memory[: len(graph)] = graph
        client.good("GRAPH_PART", self.graphs[0], 0, len(graph))
        client.good("INSTANTIATE_GRAPH", self.graphs[0])

    def records(self) -> Iterator[bytes]:
        """Good records with something changed in most of them."""
        for number in range(RECORDS_A_SESSION):
            yield self._record(number)

    def _number(self) -> int:
        source = self.source
        match source.randrange(9):
            case 0:
                return source.choice(_EDGES)
            case 8:
                # Others have theirs in the same window.
                return source.choice(self.pinned) + source.choice((0, 0, 1, 99, 4095, 4096, -1, 1 << 16, 1 << 17))
            case 1:
                return source.getrandbits(64)
            case 2:
                return source.choice(self.addresses) + source.choice((0, 0, 1, 4, 63, 64, 4096, -1, -512))
            case 3:
                # In the device's window, where others' memory lies at the same addresses.
                return 0x6000_0000_0000 + source.randrange(1 << 24)
            case 4 | 5:
                return source.choice(HANDLES)
            case 6:
                return source.choice(self.modules)
            case _:
                return source.randrange(64)

    def _operands(self, name: str) -> list[int]:
        """What a well-behaved client would send, roughly."""
        source, stream = self.source, self.source.choice((0, 0, *STREAMS))
        event, fresh = source.choice(EVENTS), source.choice(HANDLES[17:])
        address, size = source.choice(self.addresses), source.choice((1, 8, 64, 4096))
        match name:
            case "COPY_TO_DEVICE" | "COPY_FROM_DEVICE":
                return [stream, address, source.randrange(1 << 20), size]
            case "COPY_ON_DEVICE":
                return [stream, address, source.choice(self.addresses), size]
            case "FILL":
                return [stream, address, source.getrandbits(32), source.choice((1, 2, 4)), size, *self._rows()]
            case "COPY_3D" | "COPY_3D_STAGED":
                sides = [
                    self._side(source.choice((0, 0, address)), source.randrange(3), *self._rows()) for _ in range(2)
                ]
                return [stream, *sides[0], *sides[1], size, source.randrange(4), source.randrange(3)]
            case "LAUNCH":
                odd = ENDLESS if self.endless else TRAPPED
                function = odd if source.random() < 0.02 else source.choice((EMPTY, STORE, STORE))
                return [stream, source.choice(self.modules), function, *[1] * 6, 0, 12 if function == STORE else 0]
            case "COPY_TO_DEVICE_PINNED":
                return [stream, address, source.choice(self.pinned) + source.randrange(64), size]
            case "COPY_FROM_DEVICE_PINNED":
                return [stream, source.choice(self.pinned) + source.randrange(64), address, size]
            case "FREE_PINNED" if source.random() < 0.1:
                return [source.choice(self.pinned)]
            case "ALLOCATE" | "ALLOCATE_PINNED":
                return [size]
            case "HOST_FUNCTION":
                return [HELD_UP, source.randrange(1, 20)]
            case "CREATE_STREAM":
                return [fresh, 1, 0]
            case "CREATE_EVENT":
                return [fresh, 0]
            case "LAUNCH_GRAPH":
                return [stream, source.choice(self.graphs)]
            case "GRAPH_HOST_FUNCTION":
                return [HELD_UP, source.choice(self.graphs), source.randrange(1, 20), source.randrange(4)]
            case "IMAGE_PART" | "GRAPH_PART":
                return [fresh, source.randrange(1 << 20), size]
            case "PUBLISH_WINDOW" | "UNMAP_PEER":
                return [source.choice((window_of, mapped_window_of))(source.randrange(2))]
            case "WAIT_EVENT":
                return [stream, event]
            case "RECORD_EVENT":
                return [event, stream]
            case "QUERY_EVENT" | "SYNCHRONIZE_EVENT" | "ELAPSED_TIME":
                return [event for _ in records.BY_NAME[name].operands]
            case "QUERY_STREAM" | "SYNCHRONIZE_STREAM":
                return [stream]
            case _:
                # Mostly of nothing that is there: what is destroyed is of no more use to the session.
                return [fresh for _ in records.BY_NAME[name].operands]

    def _rows(self) -> list[int]:
        """A pitch and a number of rows."""
        return self.source.choice(([0, 1], [0, 1], [64, 3], [4096, 2]))

    def _side(self, address: int, space: int, pitch: int, rows: int) -> list[int]:
        """Space, base, pitch and slice pitch of one side of a copy."""
        source = self.source
        bases = (address, source.randrange(1 << 20), source.choice(self.pinned) + source.randrange(64))
        return [space, bases[space], pitch, pitch * rows]

    def _record(self, number: int) -> bytes:
        source = self.source
        operation = source.choice(records.OPERATIONS)
        name = operation.name
        operands = [value & 2**64 - 1 for value in self._operands(name)]
        tail = struct.pack("=QI", source.choice(self.addresses), number) if name == "LAUNCH" and operands[-1] else b""
        spoil = source.random() < self.spoilt
        for _ in range(source.choice((0, 1, 1, 1, 2, 4)) if operands and spoil else 0):
            operands[source.randrange(len(operands))] = self._number() & 2**64 - 1
        body = struct.pack(f"={len(operands)}Q", *operands) + tail.ljust(records.pad(len(tail)), b"\0")
        opcode, flags, context = operation.opcode, source.choice((0, 0, 1, 2, 3)), self.client.context
        aligned = 8 if self.client.ring is not None else 1  # other lengths end a ring, as below
        if not spoil:
            return records.HEADER.pack(opcode, flags, records.HEADER_BYTES + len(body), context, number) + body
        match source.randrange(40):
            case 0:
                opcode = source.randrange(1 << 16)
            case 1:
                flags = source.randrange(1 << 16)
            case 2:
                context = source.choice((0, 1000, 1001, 2**64 - 1, source.getrandbits(64)))
            case 3:
                body = body[: source.randrange(len(body) + 1) // aligned * aligned]
            case 4:
                body += source.randbytes(-(-source.choice((1, 8, 64, 5000)) // aligned) * aligned)
            case 5 if body:
                spoilt = bytearray(body)
                spoilt[source.randrange(len(spoilt))] ^= 1 << source.randrange(8)
                body = bytes(spoilt)
        return records.HEADER.pack(opcode, flags, records.HEADER_BYTES + len(body), context, number) + body


def _resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


@define
class StreamFuzz:
    """An executor, its witnesses, and the bad clients that come and go."""

    executor: ExecutorOwner
    seed: int
    has_ring: bool
    """Whether it has native workers, to which records may come by the ring."""
    consumed: int = 0
    sessions: int = 0
    stalled: int = 0
    faulted: int = 0
    results: Counter[int] = field(factory=Counter)

    def session(self) -> None:
        """One bad client from attach to drop."""
        source = random.Random(f"{self.seed}/stream/{self.sessions}")
        self.executor.by_ring = self.has_ring and source.random() < BY_RING
        client = self.executor.attach(client=1, context=1)
        attack = Attack(source, client, source.random() < ENDLESS_SESSIONS, source.choice((0.02, 0.1, 0.5, 0.9)))
        attack.wait_for_answers()
        sent = 0
        try:
            for record in attack.records():
                self._send(client, record)
                sent += 1
            if source.random() < BROKEN_LENGTHS:
                length = source.choice((0, 7, 23, records.MAX_RECORD + 1, 2**32 - 1))
                length = source.choice((length, 28, RECORD_BYTES + 8)) if client.ring is not None else length
                self._send(client, records.HEADER.pack(1, 0, length, 1, 1))
                self._read_to_its_end(client)
                sent += 1
            else:
                self._ask(client)
            self.consumed += sent
        except TimeoutError:
            assert attack.endless or sent, "a stream that nothing holds up takes no records"
            self.stalled += 1
        self._drop(client)
        self.sessions += 1

    def _send(self, client: RawClient, data: bytes) -> None:
        if client.ring is not None:
            self._put(client, data)
            return
        rest = memoryview(data)
        while rest:
            reads, writes, _ = select.select([client.stream], [client.stream], [], STALLED_SECONDS)
            if not reads and not writes:
                raise TimeoutError
            if reads:
                self._take(client)
            if writes:
                rest = rest[client.stream.send(rest) :]

    def _put(self, client: RawClient, data: bytes) -> None:
        while select.select([client.stream], [], [], 0)[0]:
            self._take(client)
        deadline = time.monotonic() + STALLED_SECONDS
        while not client.try_to_put(data):
            if time.monotonic() > deadline:
                raise TimeoutError

    def _take(self, client: RawClient) -> None:
        client._receive()
        for sequence in client.arrived():
            if sequence < _QUERY:
                self._judge(client.answer(sequence))

    def _judge(self, answer: object) -> None:
        result, opcode = answer.result, answer.opcode  # type: ignore[attr-defined]
        self.results[result] += 1
        if result == Result.ERROR_UNKNOWN:
            raise AssertionError(f"a defect met by opcode {opcode}: {answer.reason}")  # type: ignore[attr-defined]

    def _ask(self, client: RawClient) -> None:
        """Send a query that is answered when everything before it is consumed."""
        self._send(client, records.pack("MEMORY_INFO", 2**63, _QUERY))
        while _QUERY not in client.arrived():
            if not select.select([client.stream], [], [], STALLED_SECONDS)[0]:
                raise TimeoutError
            self._take(client)

    def _read_to_its_end(self, client: RawClient) -> None:
        try:
            while select.select([client.stream], [], [], STALLED_SECONDS)[0]:
                self._take(client)
            raise TimeoutError
        except (EOFError, ConnectionError):
            return

    def _drop(self, client: RawClient) -> None:
        client.close()
        self.executor.send(DropClient(1 << 40, 1))
        while not isinstance(message := self.executor.receive()[0], ExecutorDone):
            assert isinstance(message, ContextFaulted), message
            assert message.context == 1, "another client's context was faulted"
            self.faulted += 1
        assert self.executor.alive, "the executor has ended"


def fuzz_stream(seed: int, count: int) -> Found:
    """Send an executor at least that many records; raise AssertionError if it or a witness was harmed."""
    with tempfile.TemporaryFile() as output:
        executor = ExecutorOwner.start(stderr=output).ready()
        try:
            outcome = _fuzz(executor, seed, count)
        finally:
            executor.close()
        output.seek(0)
        words = output.read()
        assert b"Traceback" not in words, words.decode()
        return outcome


def _fuzz(executor: ExecutorOwner, seed: int, count: int) -> Found:
    witnesses = [Witness(executor.attach(client=1000, context=1000))]
    executor.by_ring = has_ring = bool(witnesses[0].client.attached.ring_bytes)
    witnesses.append(Witness(executor.attach(client=1001, context=1001)))
    fuzz = StreamFuzz(executor, seed, has_ring)
    fuzz.session()
    before, descriptors = _resident_kib(executor.process.pid), executor.fd_count()
    descriptors += len(witnesses)  # each gets a file for its page-locked memory
    for witness in witnesses:
        witness.start()
    try:
        while fuzz.consumed < count:
            try:
                fuzz.session()
            except Exception as error:
                error.add_note(f"session {fuzz.sessions} of seed {seed}")
                raise
            assert all(not witness.failure for witness in witnesses), [witness.failure for witness in witnesses]
    finally:
        for witness in witnesses:
            witness.stop()
    wait_until(lambda: executor.fd_count() <= descriptors, "the end of the last session's descriptors")
    checks = sum(witness.checks for witness in witnesses)
    assert all(witness.checks for witness in witnesses), "a witness had no turn"
    after = _resident_kib(executor.process.pid)
    return Found(
        fuzz.consumed, fuzz.sessions, fuzz.stalled, fuzz.faulted, checks, Counter(fuzz.results), before, after
    )
