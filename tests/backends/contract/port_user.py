"""A user of the port for the contract tests: bounded waits, and kernels to wait for."""

from __future__ import annotations

import struct
from threading import Event as Flag
from time import monotonic
from typing import Any

from attrs import define, field

from pympsd.vocabulary.limits import MemoryGroup, Quota
from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import (
    Context,
    Copy,
    Extent,
    Fill,
    Launch,
    Module,
    Region,
    Space,
    Status,
    Stream,
)

SECONDS = 30.0
"""The absolute limit of every wait."""
SOON = 0.05
"""The time for which a test watches that something does not happen."""
PTX = b"""
.version 7.0
.target sm_60
.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .entry empty() { ret; }
.visible .entry endless() {
    .reg .b32 %r<2>;
    mov.u32 %r1, 0;
AGAIN:
    add.u32 %r1, %r1, 1;
    bra AGAIN;
}
.visible .entry store(.param .u64 where, .param .u32 value) {
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [where]; ld.param.u32 %r1, [value];
    st.global.u32 [%rd1], %r1;
    ret;
}
// Spins until the word is what is given: how a test holds a stream, and releases it with a copy.
.visible .entry until(.param .u64 where, .param .u32 value) {
    .reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [where]; ld.param.u32 %r1, [value];
AGAIN:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.ne.u32 %p1, %r2, %r1;
    @%p1 bra AGAIN;
    ret;
}
// The same, after the word behind it says that it has begun.
.visible .entry hold(.param .u64 where, .param .u32 value) {
    .reg .b32 %r<4>; .reg .b64 %rd<2>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [where]; ld.param.u32 %r1, [value];
    mov.u32 %r3, 1;
    st.volatile.global.u32 [%rd1+4], %r3;
AGAIN:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.ne.u32 %p1, %r2, %r1;
    @%p1 bra AGAIN;
    ret;
}
.visible .entry add(.param .u64 where, .param .u32 count) {
    .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [where]; ld.param.u32 %r5, [count];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p1, %r4, %r5;
    @%p1 bra DONE;
    mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r1, [%rd3]; add.u32 %r1, %r1, %r4; st.global.u32 [%rd3], %r1;
DONE:
    ret;
}
// Every block but the last waits for the last: it must be resident with them.
.visible .entry gather(.param .u64 where) {
    .reg .b32 %r<5>; .reg .b64 %rd<2>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; sub.u32 %r2, %r2, 1;
    setp.eq.u32 %p1, %r1, %r2;
    @%p1 bra LAST;
AGAIN:
    ld.volatile.global.u32 %r3, [%rd1];
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra AGAIN;
    ret;
LAST:
    mov.u32 %r4, 1;
    st.volatile.global.u32 [%rd1], %r4;
    ret;
}
// Every block writes the multiprocessor it is on.
.visible .entry where_am_i(.param .u64 where) {
    .reg .b32 %r<4>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %smid;
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}
// Blocks meet this number of times as cooperative groups do it: a count whose sign flips when all have arrived.
.visible .entry meet(.param .u64 where, .param .u32 rounds) {
    .reg .b32 %r<12>; .reg .b64 %rd<6>; .reg .pred %p<5>;
    ld.param.u64 %rd1, [where]; ld.param.u32 %r9, [rounds];
    mov.b64 %rd2, {%envreg2, %envreg1};
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %tid.x;
    setp.ne.u32 %p1, %r3, 0;
    setp.eq.u32 %p2, %r1, 0;
    sub.u32 %r4, %r2, 1; sub.u32 %r4, 0x80000000, %r4;
    selp.b32 %r4, %r4, 1, %p2;
AGAIN:
    red.global.add.u32 [%rd1], 1;
    bar.sync 0;
    @%p1 bra MET;
    membar.gl;
    atom.global.add.u32 %r5, [%rd2+4], %r4;
SPIN:
    ld.volatile.global.u32 %r6, [%rd2+4];
    xor.b32 %r7, %r6, %r5;
    setp.ge.s32 %p3, %r7, 0;
    @%p3 bra SPIN;
MET:
    bar.sync 0;
    // After the n-th meeting every thread of the grid has counted n times.
    mov.u32 %r10, %ntid.x; mul.lo.u32 %r10, %r10, %r2;
    ld.volatile.global.u32 %r8, [%rd1];
    setp.lt.u32 %p4, %r8, %r10;
    @%p4 trap;
    sub.u32 %r9, %r9, 1;
    setp.ne.u32 %p4, %r9, 0;
    @%p4 bra AGAIN;
    ret;
}
.visible .entry trapped() { trap; ret; }
.visible .entry shared_words(.param .u64 where) {
    .shared .align 4 .b8 words[40000];
    ret;
}
.visible .entry narrow() .maxntid 64, 1, 1 { ret; }
"""


def on_device(base: int, pitch: int = 0, slice_pitch: int = 0) -> Region:
    """Return a region of device memory."""
    return Region(Space.DEVICE, base, pitch, slice_pitch)


def in_staging(host: memoryview, pitch: int = 0, slice_pitch: int = 0) -> Region:
    """Return a region of staging memory."""
    return Region(Space.STAGING, 0, pitch, slice_pitch, host)


def in_pinned(host: memoryview, pitch: int = 0, slice_pitch: int = 0) -> Region:
    """Return a region of registered host memory."""
    return Region(Space.PINNED, 0, pitch, slice_pitch, host)


def copy_to_device(destination: int, source: memoryview) -> Copy:
    """Return a copy of all of a staging memory to the device."""
    return Copy(on_device(destination), in_staging(source), Extent(source.nbytes))


def copy_from_device(target: memoryview, source: int) -> Copy:
    """Return a copy from the device that fills a staging memory."""
    return Copy(in_staging(target), on_device(source), Extent(target.nbytes))


def copy_from_pinned(destination: int, source: memoryview) -> Copy:
    """Return a copy of registered host memory to the device."""
    return Copy(on_device(destination), in_pinned(source), Extent(source.nbytes))


def copy_to_pinned(target: memoryview, source: int) -> Copy:
    """Return a copy from the device to registered host memory."""
    return Copy(in_pinned(target), on_device(source), Extent(target.nbytes))


def copy_on_device(destination: int, source: int, count: int) -> Copy:
    """Return a copy inside the device."""
    return Copy(on_device(destination), on_device(source), Extent(count))


def fill(destination: int, value: int, element_bytes: int, count: int) -> Fill:
    """Return a fill of ``count`` elements."""
    return Fill(on_device(destination), value, element_bytes, Extent(element_bytes * count))


@define
class Notified:
    """A completion that records its result."""

    _flag: Flag = field(factory=Flag)
    _statuses: list[Status] = field(factory=list)

    def __call__(self, status: Status) -> None:
        self._statuses.append(status)
        self._flag.set()

    def wait(self) -> Result:
        """Wait for the one call, and return its result."""
        assert self._flag.wait(SECONDS), "no completion came"
        assert len(self._statuses) == 1
        return self._statuses[0].code

    @property
    def reason(self) -> str:
        """The reason in its result."""
        return self._statuses[0].reason

    @property
    def called(self) -> bool:
        """Whether it was called."""
        return self._flag.is_set()

    def stays_silent(self) -> bool:
        """Return whether it is not called for a little while."""
        return not self._flag.wait(SOON)


@define(eq=False)
class PortUser:
    """A context, its faults, and the module above."""

    device: Device
    context: Context
    fault: Notified
    _module: Module | None = None

    @classmethod
    def on(
        cls,
        device: Device,
        client: int = 1,
        chunks: tuple[int, ...] = (),
        groups: tuple[MemoryGroup, ...] = (),
        context_id: int = 0,
        **quota: int,
    ) -> PortUser:
        """Return a user with a new context of a client."""
        fault = Notified()
        limits = {"multiprocessors": 0, "memory_bytes": 0, "priority": 0, **quota}
        context = device.create_context(client, Quota(**limits, chunks=chunks, groups=groups), fault, context_id)
        return cls(device, context, fault)

    @property
    def default(self) -> Stream:
        """The legacy default stream."""
        return self.context.default_stream

    @property
    def module(self) -> Module:
        """The module, loaded once."""
        if self._module is None:
            self._module = self.context.load_module(PTX)
        return self._module

    def launch(self, name: str, *values: Any, stream: Stream | None = None, **shape: Any) -> None:
        """Launch a kernel by name; values are packed by the sizes of its parameters."""
        names = [function.name for function in self.module.functions]
        layout = self.module.functions[names.index(name)]
        parameters = bytearray(layout.parameter_bytes)
        for (offset, size), value in zip(layout.parameters, values, strict=True):
            parameters[offset : offset + size] = value.to_bytes(size, "little")
        launch = Launch(
            self.module,
            names.index(name),
            shape.get("grid", (1, 1, 1)),
            shape.get("block", (1, 1, 1)),
            shape.get("shared", 0),
            bytes(parameters),
            shape.get("cooperative", False),
        )
        (stream or self.default).launch(launch)

    def write(self, address: int, data: bytes, stream: Stream | None = None) -> Notified:
        """Copy bytes to the device."""
        notified = Notified()
        (stream or self.default).copy(copy_to_device(address, memoryview(data)), notified)
        return notified

    def put(self, address: int, value: int, stream: Stream | None = None) -> None:
        """Write a word and wait for it."""
        assert self.write(address, struct.pack("=I", value), stream).wait() == Result.SUCCESS

    def read(self, address: int, count: int, stream: Stream | None = None) -> bytes:
        """Copy bytes from the device and wait for them."""
        target, notified = bytearray(count), Notified()
        (stream or self.default).copy(copy_from_device(memoryview(target), address), notified)
        assert notified.wait() == Result.SUCCESS
        return bytes(target)

    def word(self, address: int, stream: Stream | None = None) -> int:
        """Read a word."""
        return int(struct.unpack("=I", self.read(address, 4, stream))[0])

    def synchronize(self) -> Result:
        """Wait for everything."""
        notified = Notified()
        self.context.notify(notified)
        return notified.wait()

    def words(self, count: int = 1) -> int:
        """Return the address of words, all zero."""
        return self.context.allocate(4 * count)

    def free(self, address: int) -> Notified:
        """Free memory."""
        notified = Notified()
        self.context.free(address, notified)
        return notified


@define(eq=False)
class Gate:
    """Holds a stream until it is opened, by a kernel that watches a word."""

    user: PortUser
    word: int
    _side: Stream

    @classmethod
    def closed(cls, user: PortUser, stream: Stream | None = None) -> Gate:
        """Put the watching kernel into a stream. It begins once the stream's earlier work is done."""
        gate = cls(user, user.words(2), user.context.create_stream(True, 0))
        user.launch("hold", gate.word, 1, stream=stream)
        return gate

    @classmethod
    def running(cls, user: PortUser, stream: Stream) -> Gate:
        """Return a closed gate whose kernel has begun: until then, one of another stream may overtake it."""
        gate = cls.closed(user, stream)
        deadline = monotonic() + SECONDS
        while user.word(gate.word + 4, gate._side) != 1:
            assert monotonic() < deadline, "the gate's kernel has not begun"
        return gate

    def open(self) -> None:
        """Release the stream."""
        self.user.put(self.word, 1, self._side)
