"""Kernels that copy by tensor maps, and a model of tiles: one element after the other."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from attrs import evolve

from pympsd.wire.tensor_map import DataType, TensorMap, pack
from tests.emulated.harness import HEADER, Device

Array = np.ndarray[Any, Any]
HOPPER = HEADER.replace("8.0", "8.6").replace("sm_80", "sm_90a")
SHARED = 16384
TENSOR, COMPLETE = "cp.async.bulk.tensor", "mbarrier::complete_tx::bytes"
REGISTERS = ".reg .b32 %r<30>; .reg .b64 %d<12>; .reg .b16 %h<4>; .reg .pred %p<4>;"
NAMES = {np.dtype("u1"): DataType.UINT8, np.dtype("u2"): DataType.UINT16, np.dtype("u4"): DataType.UINT32}
NAMES |= {np.dtype("i4"): DataType.INT32, np.dtype("f4"): DataType.FLOAT32, np.dtype("f8"): DataType.FLOAT64}
NAMES |= {np.dtype("f2"): DataType.FLOAT16, np.dtype("u8"): DataType.UINT64, np.dtype("i8"): DataType.INT64}


def kernel(body: str, directives: str = "") -> str:
    """A kernel with %d0 its map, %d1 the output, %d2 numbers; %r0 the thread, `s` and `bar` in shared memory.

    %r20 to %r24 are the first five numbers, which are coordinates.
    """
    numbers = " ".join(f"ld.global.u32 %r{20 + index}, [%d2+{4 * index}];" for index in range(8))
    return (
        f"{HOPPER}.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out, .param .u64 numbers)"
        f" {directives}\n{{ .shared .align 1024 .b8 s[{SHARED}]; .shared .align 8 .b64 bar[2]; {REGISTERS}\n"
        "mov.b64 %d3, map; cvta.param.u64 %d0, %d3; ld.param.u64 %d1, [out]; ld.param.u64 %d2, [numbers];"
        f" mov.u32 %r0, %tid.x; mov.u32 %r1, bar; mov.u32 %r2, s; {numbers}\n{body}\nret; }}\n"
    )


COPY_OUT = """
mul.lo.u32 %r3, %r0, 16; mul.wide.u32 %d4, %r0, 16; add.u64 %d4, %d1, %d4; add.u32 %r4, %r2, %r3;
copy: ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r4]; st.global.v4.u32 [%d4], {%r5, %r6, %r7, %r8};
add.u32 %r4, %r4, 2048; add.u64 %d4, %d4, 2048; add.u32 %r3, %r3, 2048; setp.lt.u32 %p1, %r3, 16384; @%p1 bra copy;
"""
COPY_IN = COPY_OUT.replace(
    "ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r4]; st.global.v4.u32 [%d4], {%r5, %r6, %r7, %r8};",
    "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d4]; st.shared.v4.u32 [%r4], {%r5, %r6, %r7, %r8};",
)
LOAD = """
setp.ne.u32 %p0, %r0, 0; @%p0 bra wait;
mbarrier.init.shared::cta.b64 [%r1], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r25;
INSTRUCTION
wait: bar.sync 0;
again: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0; @!%p1 bra again;
"""
COORDINATES = ["", *("{" + ", ".join(f"%r{20 + i}" for i in range(rank)) + "}" for rank in range(1, 6))]


def load_instruction(rank: int, form: str = "tile", more: str = "") -> str:
    """A load of a box to `s`, which signals `bar`."""
    operands = f"[%r2], [%d0, {COORDINATES[rank]}], [%r1]{more}"
    return f"{TENSOR}.{rank}d.shared::cta.global.{form}.{COMPLETE} {operands};"


def loading(rank: int, form: str = "tile", more: str = "") -> str:
    """A kernel that loads a box of %r25 bytes and copies `s` to the output."""
    return kernel(LOAD.replace("INSTRUCTION", load_instruction(rank, form, more)) + COPY_OUT)


def storing(rank: int, function: str = "", form: str = "tile") -> str:
    """A kernel that fills `s` and stores or reduces a box of it."""
    name = TENSOR.replace("cp.", "cp.reduce.") if function else TENSOR
    dotted = f".{function}" if function else ""
    return kernel(
        COPY_IN + "bar.sync 0; setp.ne.u32 %p0, %r0, 0; @%p0 ret; fence.proxy.async.shared::cta;\n"
        f"{name}.{rank}d.global.shared::cta{dotted}.{form}.bulk_group [%d0, {COORDINATES[rank]}], [%r2];"
        " cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"
    )


class Machine:
    """A device with memory for a tensor, for an image of shared memory, and for numbers."""

    ROOM = 1 << 19

    def __init__(self) -> None:
        self.device = Device(1 << 22)
        self.loaded: dict[str, Any] = {}
        self.tensor = self.device.space.allocate(self.ROOM)
        self.image = self.device.space.allocate(SHARED)
        self.numbers = self.device.space.allocate(32)

    def run(
        self, text: str, given: TensorMap | bytes, memory: Array, image: Array, numbers: Any
    ) -> tuple[Array, Array]:
        """Return what a kernel leaves of the tensor's memory and of the image, which are given as bytes."""
        if text not in self.loaded:
            self.loaded[text] = self.device.load(text)
        map = pack(given) if isinstance(given, TensorMap) else given
        self.device.space.write(self.tensor, memory.tobytes())
        self.device.space.write(self.image, image.tobytes())
        padded = [int(number) & 0xFFFFFFFF for number in (*numbers, *[0] * 8)][:8]
        self.device.space.write(self.numbers, np.array(padded, "u4").tobytes())
        self.device.launch(self.loaded[text], "k", 1, 128, map, self.image, self.numbers)
        return self.device.get(self.tensor, memory), self.device.get(self.image, image)


def plain(machine: Machine, dtype: str = "u4", swizzle: int = 0, **more: Any) -> TensorMap:
    """A tensor of 16 rows of 256 bytes, of which 8 rows of 128, 64 or 32 bytes are copied."""
    size = np.dtype(dtype).itemsize
    inner = (128, 32, 64, 128)[swizzle] // size
    tensor_map = TensorMap(NAMES[np.dtype(dtype)], machine.tensor, (256 // size, 16), (256,), (inner, 8), (1, 1))
    return evolve(tensor_map, swizzle=swizzle, **more)


def pattern(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


# --- the model: one element after the other


def places(of: TensorMap, start: Any, written: bool = False) -> Any:
    """Yield of each element of a tile its offset in global memory, None outside of the tensor, and the shared one.

    What is written reaches to the end of a row's last 16 bytes.
    """
    size = of.element_bytes
    width = math.ceil(of.dimensions[0] * size / 16) * 16 // size if written else of.dimensions[0]
    steps = (1, *of.element_strides[1:])
    ranges = [range(0, box, step) for box, step in zip(of.box, steps, strict=True)]
    pitch = of.box[0] * size if not of.swizzle else 16 << of.swizzle
    for index, deltas in enumerate(product(*reversed(ranges))):
        point = [first + delta for first, delta in zip(start, reversed(deltas), strict=True)]
        inside = all(
            0 <= coordinate < most for coordinate, most in zip(point, (width, *of.dimensions[1:]), strict=True)
        )
        offset = point[0] * size + sum(p * s for p, s in zip(point[1:], of.strides, strict=True))
        row, column = divmod(index, of.box[0])
        yield (offset if inside else None), swizzled(row * pitch + column * size, of.swizzle)


def swizzled(at: int, swizzle: int) -> int:
    chunk, row = at // 16, at // 128
    return at - 16 * chunk + 16 * (chunk ^ (row % (1 << swizzle)))


def tile_bytes(of: TensorMap) -> int:
    sizes = [of.box[0], *(math.ceil(b / s) for b, s in zip(of.box[1:], of.element_strides[1:], strict=True))]
    return math.prod(sizes) * of.element_bytes
