"""Pages of the program that an executor shares, so that kernels reach memory that the program registers.

They are replaced in place by shared ones, which the executor has too, and on unregistering by private ones again; the
bytes stay. A page is replaced at once for Python, but not for native threads: what such a thread writes to it at that
moment may be lost. Around a fork they are private, so that parent and child do not write to each other's memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from pympsd.channel.mapping import map_nothing, unmap
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._objects.shared_pinned_memory import SharedPages

try:
    from pympsd_client.native import _pages
except ImportError:  # it was installed without a C compiler
    _pages = None  # type: ignore[assignment]

_LINE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ (\S+ [0-9]+) *(.*)\n")
_PRIVATE: Final = "rw-p"


@frozen(eq=False)
class RegisteredPages:
    """``pages`` of an executor, which lie at ``start`` in the program, too."""

    start: int
    pages: SharedPages

    @property
    def end(self) -> int:
        """Where they end in the program."""
        return self.start + self.pages.size

    def put_in_place(self) -> None:
        """Replace the program's pages for the first time; raise CudaError. NOT_SUPPORTED for pages that it shares."""
        if _pages is None:
            raise _refused("this client was installed without a C compiler, and cannot replace pages")
        at = self.start
        for low, high, mode, _, name in _mappings():
            if low <= at < high and at < self.end:
                if mode != _PRIVATE or name.startswith("[stack"):
                    raise _refused(
                        f"{at:#x} is in a mapping {mode} {name}".rstrip() + ", not private memory to write to"
                    )
                at = high
        if at < self.end:
            raise invalid_value(f"nothing is mapped at {at:#x}")
        self.share([(self.start, self.end)])

    def share(self, ranges: list[tuple[int, int]]) -> None:
        """Replace the program's pages in some ranges by the shared ones; raise CudaError, and change none."""
        for low, high in ranges:
            try:
                done = _pages.replace(low, self.pages.address + low - self.start, high - low, True)
            except ValueError as error:
                raise _refused(f"{low:#x}: {error}") from None
            if done < high - low:
                self.make_private()
                raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"the system maps no {high - low} bytes anew")

    def make_private(self) -> list[tuple[int, int]]:
        """Put private pages in place, in the ranges where the shared ones still are; return these."""
        ours = next((file for low, high, _, file, _ in _mappings() if low <= self.pages.address < high), None)
        ranges = [
            (max(low, self.start), min(high, self.end))
            for low, high, _, file, _ in _mappings()
            if file == ours and low < self.end and self.start < high
        ]
        for low, high in ranges:
            others = map_nothing(high - low)
            done = _pages.replace(low, others, high - low, False)
            if done < high - low:  # the rest stays shared
                unmap(others + done, high - low - done)
        return ranges


def _mappings() -> Iterator[tuple[int, int, str, str, str]]:
    """Yield start, end, mode, device and inode, and name of every mapping of this process (proc(5), maps)."""
    with open(f"/proc/{os.getpid()}/maps", encoding="utf-8", errors="replace") as lines:
        for found in map(_LINE.fullmatch, lines):
            if found is not None:
                yield int(found[1], 16), int(found[2], 16), found[3], found[4], found[5]


def _refused(reason: str) -> CudaError:
    return CudaError(
        Result.ERROR_NOT_SUPPORTED,
        f"kernels do not reach this memory: {reason}. Allocate it with cuMemHostAlloc, or copy it",
    )
