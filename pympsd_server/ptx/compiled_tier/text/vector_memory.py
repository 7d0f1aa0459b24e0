"""Loads and stores of a vector at host addresses: one block of memory for all lanes, or each lane's own element.

A processor with mask registers (AVX-512) stores, gathers and scatters the elements of any lanes by one instruction.
For others LLVM writes a test and a branch for each lane, so these accesses are written twice: for warps in which all
lanes take part, without masks, and for the rest with a loop in C (`kernels_gather`, `kernels_scatter`).

Most stores to consecutive addresses have no loop for the rest, because AVX2 has masks for 32 and 64 bits, and because
32 tests are quicker than a loop. But a store of small vectors, such as v4.u8, would have up to 128 tests, for which
LLVM takes 70 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define

from pympsd_server.ptx.compiled_tier.ir_text import LIKELY, Shape, sequence
from pympsd_server.ptx.compiled_tier.text.lanes import Lanes

_MASKED_BITS: Final = (32, 64)


@define(slots=False)
class VectorMemory(Lanes):
    """The part of a kernel's writer for the memory accesses of vectors."""

    def _by_mask(self, mask: str, whole: Callable[[], str], part: Callable[[], str], kind: str = "void") -> str:
        """Write `whole` for a `mask` of all lanes, and `part` for others; return the result of either."""
        full, some, join = self.label("full"), self.label("some"), self.label("accessed")
        self.branch(self.op("icmp eq", self.mask_type, mask, "-1"), full, some, LIKELY)
        self.place(full)
        first = whole()
        self.jump(join)
        self.place(some)
        second = part()
        self.continue_at(join)
        return "" if kind == "void" else self.phi(kind, (first, full), (second, some))

    def store_masked(self, pointer: str, value: str, wide: Shape, bits: int, mask: str) -> None:
        """Store the elements of the lanes in `mask`, from a vector with the same number of elements for each lane."""
        kind, count = wide.of(f"i{bits}"), wide.lanes // self.width

        def store_part() -> str:
            lanes = self.as_lanes(mask)
            if count > 1:
                lanes = self.shuffle(self.vector.of("i1"), lanes, "poison", [k // count for k in range(wide.lanes)])
            name = f"llvm.masked.store.{wide.mangled(f'i{bits}')}.p0"
            return self.call(name, "void", (kind, value), (f"ptr align {bits // 8}", pointer), (wide.of("i1"), lanes))

        if self.has_masks:
            store_part()
        else:
            self._by_mask(mask, lambda: self._store_all(pointer, value, kind, bits), store_part)

    def load_masked(self, pointer: str, bits: int, mask: str) -> str:
        """Load consecutive elements of the lanes in `mask`; if it is empty, the pointer may be to any place."""
        kind, name = self.vector.of(f"i{bits}"), f"llvm.masked.load.{self.vector.mangled(f'i{bits}')}.p0"
        place, lanes = (f"ptr align {bits // 8}", pointer), (self.vector.of("i1"), self.as_lanes(mask))
        return self.call(name, kind, place, lanes, (kind, "zeroinitializer"))

    def load_near(self, pointer: str, bits: int, count: int) -> list[str]:
        """Load consecutive elements of all lanes, and separate the `count` elements of each lane.

        The check has found the bytes of all lanes valid, so no mask is necessary.
        """
        wide = Shape(self.width * count)
        kind = wide.of(f"i{bits}")
        whole = self.value(f"load {kind}, ptr {pointer}, align {bits // 8}")
        return [self.shuffle(kind, whole, "poison", range(first, wide.lanes, count)) for first in range(count)]

    def store_near(self, pointer: str, values: list[str], bits: int, mask: str) -> None:
        """Store vectors so that the elements of each lane are consecutive."""
        count, kind, vectors = len(values), f"i{bits}", values
        wide = Shape(self.width * count)
        while len(values) > 1:  # concatenate: the first vector, the second, ...
            part, size = Shape(wide.lanes // len(values)), 2 * wide.lanes // len(values)
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [self.shuffle(part.of(kind), a, b, range(size)) for a, b in pairs]
        (whole,), kind = values, wide.of(kind)
        if count > 1:
            order = (k % count * self.width + k // count for k in range(wide.lanes))
            whole = self.shuffle(kind, whole, "poison", order)
        if self.has_masks or count == 1 or bits in _MASKED_BITS:
            self.store_masked(pointer, whole, wide, bits, mask)
        else:
            self._by_mask(
                mask,
                lambda: self._store_all(pointer, whole, kind, bits),
                lambda: self._scatter_near(pointer, vectors, bits, mask),
            )

    def _store_all(self, pointer: str, value: str, kind: str, bits: int) -> str:
        self.line(f"store {kind} {value}, ptr {pointer}, align {bits // 8}")
        return ""

    def _scatter_near(self, pointer: str, vectors: list[str], bits: int, mask: str) -> str:
        """Store consecutive elements of the lanes in `mask` with a loop in C for each vector."""
        size, kind = bits // 8, self.vector.of("i64")
        first = self.splat(self.cast("ptrtoint", pointer, "ptr", "i64"), "i64", self.vector)
        for k, value in enumerate(vectors):
            places = self.op("add", kind, first, sequence(self.width, "i64", len(vectors) * size, k * size))
            self.scatter_slowly(places, value, self.vector.of(f"i{bits}"), size, mask)
        return ""

    def gather_slowly(self, addresses: str, kind: str, size: int, mask: str) -> str:
        self.store(self.vector.of("i64"), addresses, "%scratch0")
        where = (("ptr", "%scratch0"), ("i32", self.as_word(mask)), ("i32", str(size)))
        self.call("kernels_gather", "void", *where, ("ptr", "%scratch1"))
        return self.load(kind, "%scratch1")

    def scatter_slowly(self, addresses: str, value: str, kind: str, size: int, mask: str) -> str:
        self.store(self.vector.of("i64"), addresses, "%scratch0")
        self.store(kind, value, "%scratch1")
        where = (("ptr", "%scratch0"), ("i32", self.as_word(mask)), ("i32", str(size)))
        return self.call("kernels_scatter", "void", *where, ("ptr", "%scratch1"))

    def gather_elements(self, places: str, bits: int, mask: str) -> str:
        kind, pointers, lanes = self.vector.of(f"i{bits}"), self.vector.of("ptr"), self.vector.of("i1")

        def gather(mask: str) -> str:
            name = f"llvm.masked.gather.{self.vector.mangled(f'i{bits}')}.v{self.width}p0"
            return self.call(
                name, kind, (f"{pointers} align {bits // 8}", places), (lanes, mask), (kind, "zeroinitializer")
            )

        def gather_part() -> str:
            addresses = self.cast("ptrtoint", places, pointers, self.vector.of("i64"))
            return self.gather_slowly(addresses, kind, bits // 8, mask)

        if self.has_masks:
            return gather(self.as_lanes(mask))
        return self._by_mask(mask, lambda: gather(self.vector.constant("i1", 1)), gather_part, kind)

    def scatter_elements(self, places: str, value: str, bits: int, mask: str) -> None:
        kind, pointers, lanes = self.vector.of(f"i{bits}"), self.vector.of("ptr"), self.vector.of("i1")

        def scatter(mask: str) -> str:
            name = f"llvm.masked.scatter.{self.vector.mangled(f'i{bits}')}.v{self.width}p0"
            return self.call(name, "void", (kind, value), (f"{pointers} align {bits // 8}", places), (lanes, mask))

        def scatter_part() -> str:
            addresses = self.cast("ptrtoint", places, pointers, self.vector.of("i64"))
            return self.scatter_slowly(addresses, value, kind, bits // 8, mask)

        if self.has_masks:
            scatter(self.as_lanes(mask))
        else:
            self._by_mask(mask, lambda: scatter(self.vector.constant("i1", 1)), scatter_part)
