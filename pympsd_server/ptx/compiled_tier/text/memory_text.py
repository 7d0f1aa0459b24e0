"""Write memory accesses: one check for all accesses relative to a base, then the fastest way that addresses allow.

A check has a quick part in the kernel and a slow one in C (`kernels_resolve`). The quick part compares addresses with
the allocation that this code accessed last (two words of the `sites` table), or for shared memory with the block's
size. The slow part looks the allocation up and stores it there, or finds the first access and lane that faults.

    uniform address           one scalar access
    lanes follow each other   tested at run time if the strides suggest it: one masked vector access
    otherwise                 gather and scatter, or a loop in C if the guess was wrong

Local memory is *interleaved* if only loads and stores of compiled code access it (`word_of_locals`): word i of all
lanes is contiguous, as on a GPU. An access at the same address in all lanes, the usual case, is one vector access.
A word has the size of the largest element in local memory, at least 4 bytes; smaller elements are parts of words:

    byte a of lane l is byte (a - a % word) * width + l * word + a % word of the warp's local memory

With a wrong `low` or `high` of a group of accesses, a kernel could access memory of the executor. Therefore the quick
way is taken only if its test of all lanes' bytes has succeeded, and all other accesses are checked in C.
"""

from __future__ import annotations

from attrs import define, field

from pympsd_server.ptx.compiled_tier.ir_text import LIKELY, SCALAR, UNLIKELY, Shape, sequence
from pympsd_server.ptx.compiled_tier.native_runtime import SPACE_NUMBERS, WRITTEN
from pympsd_server.ptx.compiled_tier.planning.analysis import Accesses, is_ordered
from pympsd_server.ptx.compiled_tier.planning.sequences import Sequences
from pympsd_server.ptx.compiled_tier.text.lanes import BITS
from pympsd_server.ptx.compiled_tier.text.vector_memory import VectorMemory
from pympsd_server.ptx.lowering.ir import Argument, Memory, Operation, Register
from pympsd_server.ptx.syntax.tree import Immediate

_OWN_SPACES = frozenset({"shared", "local", "param"})
"""The state spaces whose addresses count from 0."""
_GATHERED_BITS = (32, 64)
_MAX_END = 1 << 31
"""A check in 32 bits cannot wrap if the accesses end fewer bytes than this after their base."""
_WARPS_AHEAD, _LINE = 4, 64
"""The number of warps ahead that a warp prefetches, and the bytes of a cache line."""
FRAGMENT_BYTES = 8192
"""The size of `%fragments`, in which matrices of a warp are passed to functions, in bytes."""


@define
class Pointers:
    """The host addresses of a group of accesses, without their offsets."""

    space: str
    stride: int = 0
    single: str = ""
    """The uniform address, or the first lane's address if the lanes' are consecutive, as i64."""
    near: str = ""
    """Whether the addresses are consecutive and all valid, as i1."""
    lanes: str = ""
    """The addresses of all lanes as i64, or for shared memory offsets as i32. Undefined if `near` is true."""
    prefetched: list[int] = field(factory=list)
    """The offsets of accesses whose data are prefetched."""


@define(slots=False)
class MemoryText(VectorMemory):
    """The part of a kernel's writer for checks, loads and stores."""

    sequences: Sequences
    static_shared: int
    """The bytes of shared memory that the kernel has in every launch."""
    groups: dict[int, Accesses] = field(factory=dict, init=False)
    """The group of accesses of each load and store in this segment, by the operation's index."""
    index: int = field(default=0, init=False)
    """The index of the operation in its segment."""
    site_count: int = field(default=0, init=False)
    escape: str = field(default="escape", init=False)
    """The label of the escape from the attempt that is being written."""
    needs_fragments: bool = field(default=False, init=False)
    word: int = field(default=0, init=False)
    """The size of a word of interleaved local memory in bytes, or 0 if each lane's local memory is contiguous."""
    _checked: dict[int, Pointers] = field(factory=dict, init=False)
    """The results of the checks that were written in this segment, by the id() of the group."""

    def begin_accesses(self, groups: dict[int, Accesses]) -> None:
        """Begin a segment, in which no group of accesses has been checked yet."""
        self.groups = groups
        self._checked.clear()

    def address(self, memory: Memory, shape: Shape, space: str) -> str:
        """Return the sum of a base and its offset as i64."""
        base, offset = memory.base, memory.offset
        if isinstance(base, Immediate):
            return shape.constant("i64", (base.value + offset) & (2**64 - 1))
        if not isinstance(base, Register):
            value = self.symbol(base, 64)
            return self.splat(self.op("add", "i64", value, str(offset)) if offset else value, "i64", shape)
        bits = self.register_bits(base.number)
        if bits < 32 or (bits == 32 and space == "const"):
            raise self.refuse("address")
        kind = shape.of(f"i{bits}")
        value = self.use(base, f"u{bits}", shape)
        if bits == 32:
            value = self.cast("zext", value, kind, shape.of("i64"))
        return self.op("add", shape.of("i64"), value, shape.constant("i64", offset)) if offset else value

    def _limits(self, space: str, site: int, nbytes: str | int) -> tuple[str, str]:
        """Return the lowest valid address, and how many addresses from it on are valid for `nbytes` bytes, as i64."""
        low, size = "0", f"%{space}_size"
        if space not in _OWN_SPACES:
            low = self.load("i64", self.field("%sites", 16 * site))
            size = self.load("i64", self.field("%sites", 16 * site + 8))
        return low, self.call("llvm.usub.sat.i64", "i64", ("i64", size), ("i64", str(int(nbytes) - 1)))

    def _host_base(self, space: str) -> str:
        return f"%{space}" if space in _OWN_SPACES else "%delta"

    def _is_static(self, group: Accesses) -> bool:
        """Return whether accesses are at constant offsets in the static shared memory, so that they need no check."""
        base = group.base.base
        if group.space != "shared" or isinstance(base, Register | Immediate):
            return False
        start = self.offsets.get((base.space, base.name), -1)
        offsets = [(start + base.offset + offset, nbytes) for offset, nbytes in group.sites]
        return start >= 0 and all(0 <= o <= self.static_shared - n and o % n == 0 for o, n in offsets)

    def check(self, group: Accesses, mask: str) -> Pointers:
        """Write the check of a group at the first of its accesses; return the host addresses."""
        if id(group) in self._checked:
            return self._checked[id(group)]
        if group.space == "local" and self.word:
            return self._check_local(group, mask)
        varies = self.plan.is_varying(group.base) or group.guarded or group.space in ("generic", "local")
        pointers = self._check_lanes(group, mask) if varies else self._check_single(group, mask)
        if not group.guarded:
            self._checked[id(group)] = pointers
        return pointers

    def _check_inside(self, group: Accesses, site: int, first: str, more: int) -> str:
        """Return whether the accesses at address `first`, and `more` bytes after them, are valid."""
        low, count = self._limits(group.space, site, group.high - group.low + more)
        start = self.op("add", "i64", first, str(group.low))
        inside = self.op("icmp ult", "i64", self.op("sub", "i64", start, low), count)
        if group.align == 1:
            return inside
        even = self.op("icmp eq", "i64", self.op("and", "i64", start, str(group.align - 1)), "0")
        return self.op("and", "i1", inside, even)

    def _check_single(self, group: Accesses, mask: str) -> Pointers:
        """Write the check of accesses at a uniform address; return their host address as a scalar."""
        address, base = self.address(group.base, SCALAR, group.space), self._host_base(group.space)
        if self._is_static(group):
            return Pointers(group.space, single=self.op("add", "i64", address, base))
        site, self.site_count = self.site_count, self.site_count + 1
        quick, slow, on = self.label("quick"), self.label("slow"), self.label("on")
        self.branch(self._check_inside(group, site, address, 0), quick, slow, LIKELY)
        self.place(quick)
        first = self.op("add", "i64", address, base)
        self.jump(on)
        self.place(slow)
        lowest = self.op("and", self.mask_type, mask, self.op("sub", self.mask_type, "0", mask))
        self.store(self.vector.of("i64"), self.splat(address, "i64", self.vector), "%scratch0")
        end = self._resolve(group, site, lowest)
        lane = self.call(f"llvm.cttz.{self.mask_type}", self.mask_type, (self.mask_type, mask), ("i1", "true"))
        lane = self.cast("zext", lane, self.mask_type, "i64")
        second = self.load("i64", self.value(f"getelementptr i64, ptr %scratch0, i64 {lane}"))
        self.continue_at(on)
        return Pointers(group.space, single=self.phi("i64", (first, quick), (second, end)))

    def _resolve(self, group: Accesses, site: int, mask: str) -> str:
        """Write the slow check of the addresses in %scratch0; return the label of the basic block after it."""
        name = f"@accesses{len(self.tables)}"
        items = [f"i64 {number}" for pair in sorted(group.sites) for number in pair]
        self.tables.append(f"{name} = private constant [{len(items)} x i64] [{', '.join(items)}]")
        assert self.operation is not None
        is_read = self.operation.name in ("ld", "ldu") or self.operation.one_of("test_wait", "try_wait", "inval")
        space = SPACE_NUMBERS[group.space] if is_read or group.space != "generic" else WRITTEN
        bad = self.call(
            "kernels_resolve",
            "i32",
            *(("ptr", "%ctx"), ("i64", str(site)), ("ptr", "%scratch0"), ("i32", self.as_word(mask))),
            *(("i32", str(space)), ("ptr", name), ("i32", str(len(group.sites)))),
        )
        return self.fault_unless_zero(bad)

    def fault_unless_zero(self, result: str) -> str:
        """Write the end of the kernel if a C function returned a fault; return the label of the block after it."""
        on = self.label("checked")
        self.branch(self.op("icmp ne", "i32", result, "0"), "fault", on, UNLIKELY)
        self.place(on)
        return on

    def escape_unless(self, truth: str) -> None:
        """Write the branch to the escape of an attempt, unless `truth` is true."""
        on = self.label("attempted")
        self.branch(truth, on, self.escape, LIKELY)
        self.place(on)

    def end_attempt(self) -> None:
        """Write the way from a successful attempt to the next segment, and begin the escape."""
        self.store(self.mask_type, self.current(), f"%m{self.at + 1}")
        self.jump(f"segment{self.at + 1}")
        self.place(self.escape)

    def _check_lanes(self, group: Accesses, mask: str) -> Pointers:
        """Write the check of accesses at each lane's own address; return the host addresses."""
        vector, kind, space = self.vector, self.vector.of("i64"), group.space
        address = self.address(group.base, vector, space)
        site, self.site_count = self.site_count, self.site_count + 1
        base = group.base.base
        stride = self.sequences.strides.get(base.number) if isinstance(base, Register) else None
        assert self.operation is not None
        is_near = stride == group.align and space != "local" and self.operation.name in ("ld", "ldu", "st")
        pointers = Pointers(group.space, stride if is_near and stride else 0)
        host, quick, slow, on = self._host_base(space), self.label("quick"), self.label("slow"), self.label("on")
        if pointers.stride:
            first, follow = self._first_address(group, address, mask, pointers.stride)
            inside = self._check_inside(group, site, first, (self.width - 1) * pointers.stride)
            good = pointers.near = self.op("and", "i1", follow, inside)
            pointers.single = self.op("add", "i64", first, host)
        else:
            good = self._check_all_inside(group, site, address, mask)
        self.branch(good, quick, slow, LIKELY)
        self.place(quick)
        first_way = "poison" if pointers.stride else self._to_host(address, space)
        self.jump(on)
        self.place(slow)
        self.store(kind, address, "%scratch0")
        end = self._resolve(group, site, mask)
        second_way = self.load(kind, "%scratch0")
        if space == "shared":
            second_way = self.op("sub", kind, second_way, self.splat("%shared", "i64", vector))
        self.continue_at(on)
        pointers.lanes = self.phi(kind, (first_way, quick), (second_way, end))
        if space == "shared":  # as i32, because more of them fit in a vector
            pointers.lanes = self.cast("trunc", pointers.lanes, kind, vector.of("i32"))
        return pointers

    def _to_host(self, address: str, space: str) -> str:
        """Return the host addresses of all lanes, or for shared memory the offsets."""
        kind = self.vector.of("i64")
        if space == "shared":
            return address
        address = self.op("add", kind, address, self.splat(self._host_base(space), "i64", self.vector))
        if space != "local":
            return address
        frames = self.op("mul", kind, sequence(self.width, "i64"), self.splat("%local_frame", "i64", self.vector))
        return self.op("add", kind, address, frames)

    def _first_address(self, group: Accesses, address: str, mask: str, stride: int) -> tuple[str, str]:
        """Return lane 0's address, and whether the lanes' addresses are consecutive."""
        base, kind = group.base.base, self.vector.of("i64")
        if isinstance(base, Register) and base.number in self.sequences.certain:
            self.first = True
            first = self.address(group.base, SCALAR, group.space)
            self.first = False
            return first, self.flag(base.number)
        first = self.value(f"extractelement {kind} {address}, i64 0")
        return first, self._follow(address, first, "i64", stride, mask)

    def _follow(self, values: str, first: str, element: str, stride: int, mask: str) -> str:
        """Return whether the values of the lanes in `mask` are the sequence first, first + stride, ..."""
        kind = self.vector.of(element)
        expected = self.op(
            "add", kind, self.splat(first, element, self.vector), sequence(self.width, element, stride)
        )
        odd = self.as_mask(self.op("icmp ne", kind, values, expected))
        return self.op("icmp eq", self.mask_type, self.op("and", self.mask_type, odd, mask), "0")

    def flag(self, number: int) -> str:
        """Return the flag of a certain sequence: whether it did not wrap before it was extended."""
        return self.load("i1", f"%e{number}") if number in self.sequences.flagged else "true"

    def _check_all_inside(self, group: Accesses, site: int, address: str, mask: str) -> str:
        """Return whether the accesses of all lanes are valid."""
        vector, element = self.vector, "i64"
        if self._is_narrow(group):
            element, low, start = "i32", "0", self.use(group.base.base, "u32", vector)
            count = self.intrinsic("usub.sat", "i32", SCALAR, "%shared32", str(group.high - 1))
        else:
            low, count = self._limits(group.space, site, group.high - group.low)
            own = vector.constant("i64", group.low)
            start = self.op("add", vector.of("i64"), address, own) if group.low else address
        kind = vector.of(element)
        above = start if low == "0" else self.op("sub", kind, start, self.splat(low, element, vector))
        bad = self.op("icmp uge", kind, above, self.splat(count, element, vector))
        if group.align > 1:
            rest = self.op("and", kind, start, vector.constant(element, group.align - 1))
            bad = self.op("or", vector.of("i1"), bad, self.op("icmp ne", kind, rest, "zeroinitializer"))
        bad = self.op("and", self.mask_type, self.as_mask(bad), mask)
        return self.op("icmp eq", self.mask_type, bad, "0")

    def _is_narrow(self, group: Accesses) -> bool:
        """Return whether a check may compare bases of 32 bits; twice as many of them fit in a vector."""
        base = group.base.base
        if (
            group.space != "shared"
            or not isinstance(base, Register)
            or self.register_bits(base.number) != BITS["u32"]
        ):
            return False
        return 0 <= group.low < group.high < _MAX_END and not group.low % group.align

    def host_addresses(self, pointers: Pointers, offset: int) -> str:
        """Return the host addresses of all lanes' accesses as a vector of i64."""
        vector, kind = self.vector, self.vector.of("i64")
        if not pointers.lanes:
            single = self.op("add", "i64", pointers.single, str(offset))
            return self.splat(single, "i64", vector)
        lanes = pointers.lanes
        if pointers.space == "shared":  # signed, because other blocks' memory may be before it
            lanes = self.op("add", vector.of("i32"), lanes, vector.constant("i32", offset))
            lanes = self.cast("sext", lanes, vector.of("i32"), kind)
            return self.op("add", kind, lanes, self.splat("%shared", "i64", vector))
        return self.op("add", kind, lanes, vector.constant("i64", offset)) if offset else lanes

    def _lane_pointers(self, pointers: Pointers, offset: int) -> str:
        vector = self.vector
        if pointers.space == "shared":
            index = self.op("add", vector.of("i32"), pointers.lanes, vector.constant("i32", offset))
            return self.value(f"getelementptr i8, ptr %shared_p, {vector.of('i32')} {index}")
        host = self.host_addresses(pointers, offset)
        return self.cast("inttoptr", host, vector.of("i64"), vector.of("ptr"))

    def _pointer(self, single: str, offset: int) -> str:
        return self.cast("inttoptr", self.op("add", "i64", single, str(offset)), "i64", "ptr")

    def order_before(self, operation: Operation) -> None:
        """Write the fence before an ordered access."""
        self.fence_compiler()
        if operation.one_of("release", "acq_rel"):
            self.line("fence release")

    def order_after(self, operation: Operation) -> None:
        """Write the fence after an ordered access."""
        if operation.one_of("acquire", "acq_rel"):
            self.line("fence acquire")
        self.fence_compiler()

    # --- loads

    def load_items(self, group: Accesses, offset: int, bits: int, count: int) -> tuple[list[str], Shape]:
        """Write a load of `count` consecutive elements at an offset; return their names and shape."""
        assert self.operation is not None
        ordered = is_ordered(self.operation)
        mask, size = self.active() if group.guarded else self.current(), bits // 8
        pointers = self.check(group, mask)
        if group.space == "local" and self.word:
            values = [self._load_local(pointers, offset + k * size, bits, mask) for k in range(count)]
            return values, self.vector
        if ordered:
            self.order_before(self.operation)
        if not pointers.lanes:
            volatile = "volatile " if ordered else ""
            places = [self._pointer(pointers.single, offset + k * size) for k in range(count)]
            values = [self.value(f"load {volatile}i{bits}, ptr {p}, align {size}") for p in places]
        elif pointers.stride:
            values = self._load_near_or_far(pointers, offset, bits, count, mask)
        else:
            values = [self._gather(pointers, offset + k * size, bits, mask) for k in range(count)]
        if ordered:
            self.order_after(self.operation)
        return values, self.vector if pointers.lanes else SCALAR

    def _load_near_or_far(self, pointers: Pointers, offset: int, bits: int, count: int, mask: str) -> list[str]:
        """Write a load that is quick if the addresses are consecutive, and otherwise gathers; return the values."""
        near, far, join = self.label("near"), self.label("far"), self.label("loaded")
        self.branch(pointers.near, near, far, LIKELY)
        self.place(near)
        self._prefetch(pointers, offset)
        first = self.load_near(self._pointer(pointers.single, offset), bits, count)
        self.jump(join)
        self.place(far)
        kind, size = self.vector.of(f"i{bits}"), bits // 8
        places = [self.host_addresses(pointers, offset + k * size) for k in range(count)]
        second = [self.gather_slowly(place, kind, size, mask) for place in places]
        self.continue_at(join)
        return [self.phi(kind, (a, near), (b, far)) for a, b in zip(first, second, strict=True)]

    def _prefetch(self, pointers: Pointers, offset: int) -> None:
        """Prefetch later warps' data, because processors recognise few strides, and a warp waits for each array."""
        if pointers.space == "global" and all(abs(offset - other) >= _LINE for other in pointers.prefetched):
            pointers.prefetched.append(offset)
            span = self.width * pointers.stride
            for line in range(offset + _WARPS_AHEAD * span, offset + (_WARPS_AHEAD + 1) * span, _LINE):
                place = "ptr", self._pointer(pointers.single, line)
                self.call("llvm.prefetch.p0", "void", place, ("i32", "0"), ("i32", "3"), ("i32", "1"))

    def _gather(self, pointers: Pointers, offset: int, bits: int, mask: str) -> str:
        places = self._lane_pointers(pointers, offset)
        if bits in _GATHERED_BITS:
            return self.gather_elements(places, bits, mask)
        # Processors gather only words. The aligned word that contains the element is in the same page of host memory.
        wide, word, kind = self.vector.of("i64"), self.vector.of("i32"), self.vector.of(f"i{bits}")
        address = self.cast("ptrtoint", places, self.vector.of("ptr"), wide)
        aligned = self.op("and", wide, address, self.vector.constant("i64", -4))
        places = self.cast("inttoptr", aligned, wide, self.vector.of("ptr"))
        by = self.cast("trunc", address, wide, word)
        by = self.op("shl", word, by, self.vector.constant("i32", 3))
        by = self.op("and", word, by, self.vector.constant("i32", 24))
        words = self.op("lshr", word, self.gather_elements(places, 32, mask), by)
        return self.cast("trunc", words, word, kind)

    # --- stores

    def store_items(self, group: Accesses, offset: int, type_name: str, values: list[Argument], bits: int) -> None:
        """Write a store of consecutive elements at an offset."""
        assert self.operation is not None
        ordered = is_ordered(self.operation)
        mask, size = self.active() if group.guarded else self.current(), bits // 8
        pointers = self.check(group, mask)
        if group.space == "local" and self.word:
            for k, value in enumerate(values):
                own = self.use(value, type_name, self.vector)
                self._store_local(pointers, offset + k * size, own, bits, mask)
            return
        if ordered:
            self.order_before(self.operation)
        if pointers.lanes:
            vectors = [self.use(value, type_name, self.vector) for value in values]
            self._store_lanes(pointers, offset, vectors, bits, mask)
        else:
            for k, value in enumerate(values):
                single = self.last_value(value, type_name, mask)
                place = self._pointer(pointers.single, offset + k * size)
                self.line(f"store {'volatile ' if ordered else ''}i{bits} {single}, ptr {place}, align {size}")
        if ordered:
            self.order_after(self.operation)

    def _store_lanes(self, pointers: Pointers, offset: int, values: list[str], bits: int, mask: str) -> None:
        """Write a store that is quick if the addresses are consecutive, and otherwise scatters."""
        kind, size, join = self.vector.of(f"i{bits}"), bits // 8, self.label("stored")
        if pointers.stride:
            near, far = self.label("near"), self.label("far")
            self.branch(pointers.near, near, far, LIKELY)
            self.place(near)
            self.store_near(self._pointer(pointers.single, offset), values, bits, mask)
            self.jump(join)
            self.place(far)
        for k, value in enumerate(values):
            at = offset + k * size
            if pointers.stride or bits not in _GATHERED_BITS:
                self.scatter_slowly(self.host_addresses(pointers, at), value, kind, size, mask)
            else:
                self.scatter_elements(self._lane_pointers(pointers, at), value, bits, mask)
        self.continue_at(join)

    # --- interleaved local memory

    def _check_local(self, group: Accesses, mask: str) -> Pointers:
        """Write the check of accesses to interleaved local memory; return their addresses, which count from 0."""
        varies = self.plan.is_varying(group.base)
        address = self.address(group.base, self.vector if varies else SCALAR, "local")
        slow, on = self.label("slow"), self.label("on")
        good = self._check_all_inside(group, 0, address, mask) if varies else self._check_inside(group, 0, address, 0)
        self.branch(good, on, slow, LIKELY)
        self.place(slow)
        lanes = address if varies else self.splat(address, "i64", self.vector)
        self.store(self.vector.of("i64"), lanes, "%scratch0")
        self._resolve(group, 0, mask)
        self.continue_at(on)
        if not varies:
            return Pointers(group.space, single=address)
        lane = self.call(f"llvm.cttz.{self.mask_type}", self.mask_type, (self.mask_type, mask), ("i1", "false"))
        lane = self.op("and", self.mask_type, lane, str(self.width - 1))  # a guard may leave no lanes
        first = self.value(f"extractelement {self.vector.of('i64')} {address}, {self.mask_type} {lane}")
        return Pointers(group.space, single=first, near=self._follow(address, first, "i64", 0, mask), lanes=address)

    def _place_local(self, address: str, shape: Shape) -> str:
        """Return a pointer to the words of all lanes at one address, or to each lane's word at its own address."""
        wide, kind = shape.of("i64"), shape.of("ptr")
        word = self.op("and", wide, address, shape.constant("i64", -self.word))
        place = self.op("mul", wide, word, shape.constant("i64", self.width))
        place = self.op("add", wide, place, self.splat("%local", "i64", shape))
        if shape.lanes:
            place = self.op("add", wide, place, sequence(self.width, "i64", self.word))
        return self.cast("inttoptr", place, wide, kind)

    def _bit_in_word(self, address: str) -> str:
        """Return, for each lane, the position of the element in the word at its address, in bits."""
        kind, words, element = self.vector.of("i64"), self.vector.of(f"i{8 * self.word}"), f"i{8 * self.word}"
        byte = self.cast("trunc", address, kind, words) if self.word < 8 else address
        byte = self.op("and", words, byte, self.vector.constant(element, self.word - 1))
        return self.op("shl", words, byte, self.vector.constant(element, 3))

    def _local_addresses(self, pointers: Pointers, offset: int) -> tuple[str, str]:
        """Return the first lane's address and all lanes' addresses at an offset, cut to 32 bits as in checks."""
        kind, whole = self.vector.of("i64"), (1 << 32) - 1
        first = self.op("and", "i64", self.op("add", "i64", pointers.single, str(offset)), str(whole))
        if not pointers.lanes:
            return first, self.splat(first, "i64", self.vector)
        lanes = self.op("add", kind, pointers.lanes, self.vector.constant("i64", offset))
        return first, self.op("and", kind, lanes, self.vector.constant("i64", whole))

    def _load_words(self, pointers: Pointers, offset: int, mask: str) -> str:
        """Write a load of whole words of local memory: one vector if the addresses are equal, otherwise a gather."""
        first, lanes = self._local_addresses(pointers, offset)
        bits = 8 * self.word
        if not pointers.lanes:
            return self.load_masked(self._place_local(first, SCALAR), bits, mask)
        near, far, end, join = self.label("near"), self.label("far"), self.label("gathered"), self.label("loaded")
        self.branch(pointers.near, near, far)
        self.place(near)
        same = self.load_masked(self._place_local(first, SCALAR), bits, mask)
        self.jump(join)
        self.place(far)
        own = self.gather_elements(self._place_local(lanes, self.vector), bits, mask)
        self.continue_at(end)
        self.continue_at(join)
        return self.phi(self.vector.of(f"i{bits}"), (same, near), (own, end))

    def _load_local(self, pointers: Pointers, offset: int, bits: int, mask: str) -> str:
        """Write a load of an element, at most a word, of each lane at an offset; return its name."""
        words = self.vector.of(f"i{8 * self.word}")
        value = self._load_words(pointers, offset, mask)
        if bits == 8 * self.word:
            return value
        by = self._bit_in_word(self._local_addresses(pointers, offset)[1])
        return self.cast("trunc", self.op("lshr", words, value, by), words, self.vector.of(f"i{bits}"))

    def _store_local(self, pointers: Pointers, offset: int, value: str, bits: int, mask: str) -> None:
        """Write a store of an element, at most a word, of each lane at an offset."""
        first, lanes = self._local_addresses(pointers, offset)
        element = f"i{8 * self.word}"
        words = self.vector.of(element)
        if bits < 8 * self.word:
            by = self._bit_in_word(lanes)
            part = self.op("shl", words, self.vector.constant(element, (1 << bits) - 1), by)
            others = self.op("xor", words, part, self.vector.constant(element, -1))
            others = self.op("and", words, self._load_words(pointers, offset, mask), others)
            value = self.cast("zext", value, self.vector.of(f"i{bits}"), words)
            value = self.op("or", words, self.op("shl", words, value, by), others)
        near, far, join = self.label("near"), self.label("far"), self.label("stored")
        self.branch(pointers.near or "true", near, far)
        self.place(near)
        self.store_masked(self._place_local(first, SCALAR), value, self.vector, 8 * self.word, mask)
        self.jump(join)
        self.place(far)
        if pointers.lanes:
            self.scatter_elements(self._place_local(lanes, self.vector), value, 8 * self.word, mask)
        self.continue_at(join)
