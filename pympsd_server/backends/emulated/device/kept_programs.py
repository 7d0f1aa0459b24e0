"""Translated programs that are kept, because contexts and clients load the same libraries.

A kernel is translated when it is first looked up, so a kept program grows. One of 28 KB of PTX may grow to 350 MB,
and what is kept outlives the client that has loaded it. So the programs are bounded in number, and in what they have
grown to: before a program is added, the ones that were not loaded for longest are dropped.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from attrs import define, field

from pympsd_server.ptx.loading.program import Program, load_program

MAX_PROGRAMS: Final = 32
MAX_IMAGE_BYTES: Final = 1 << 20
"""The longest image whose program is kept."""
MAX_SOURCE: Final = 50_000_000
"""The maximum characters of Python code of all kept programs, of which each takes 3 to 4 bytes of memory."""


@define(eq=False)
class KeptPrograms:
    """The programs of a process by their images, the one that was loaded last at the end."""

    _programs: dict[bytes, Program] = field(factory=dict, init=False)
    _lock: Lock = field(factory=Lock, init=False)

    def load(self, image: bytes) -> Program:
        """Return the program of an image; it may be one that was returned before. Raises as `load_program`."""
        if len(image) > MAX_IMAGE_BYTES:
            return load_program(image)
        with self._lock:
            if (program := self._programs.pop(image, None)) is not None:
                self._programs[image] = program
                return program
        program = load_program(image)  # without the lock, so that others load theirs meanwhile
        with self._lock:
            self._drop_oldest()
            self._programs[image] = program
        return program

    def _drop_oldest(self) -> None:
        total = sum(program.kernels.source_characters for program in self._programs.values())
        while self._programs and (total > MAX_SOURCE or len(self._programs) >= MAX_PROGRAMS):
            oldest = next(iter(self._programs))
            total -= self._programs.pop(oldest).kernels.source_characters
