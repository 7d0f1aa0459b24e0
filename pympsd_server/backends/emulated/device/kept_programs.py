"""Translated programs: some are kept for the next load, and the memory of each user's programs is limited.

Programs are kept because contexts and clients load the same libraries again and again. A kernel is translated when it
is first looked up, so a kept program grows. One of 28 KB of PTX may grow to 350 MB, and kept programs outlive the
client that has loaded them. So the kept programs have a maximum number, and a maximum size after they have grown.
Before a program is added, those that were loaded least recently are dropped.

The programs of loaded modules cannot be dropped. The memory of each user's programs has a maximum, above which no
more kernels are translated for the user.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections import defaultdict
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError
from pympsd_server.ptx.loading.program import Kernels, Program, load_program

_PAUSE_SECONDS: Final = 1.0
"""The minimum time between two searches for garbage. All clients wait for a search, and a user at the maximum could
cause any number of them."""
MAX_PROGRAMS: Final = 32
MAX_IMAGE_BYTES: Final = 1 << 20
"""The size in bytes of the largest image whose program is kept."""
MAX_KEPT_BYTES: Final = 200 << 20
"""The maximum memory of all kept programs, in bytes."""
_MACHINE_BYTES: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MAX_USER_BYTES: Final = max(1 << 30, _MACHINE_BYTES // 4)
"""The maximum memory of the programs of one user's modules, in bytes."""


@define(eq=False)
class KeptPrograms:
    """The programs that a process keeps, by their images, in the order of their last load."""

    _programs: dict[bytes, Program] = field(factory=dict, init=False)
    _lock: Lock = field(factory=Lock, init=False)

    def load(self, image: bytes) -> Program:
        """Return the program of an image, perhaps one that was returned before; raise what `load_program` raises."""
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
        total = sum(program.kernels.nbytes for program in self._programs.values())
        while self._programs and (total > MAX_KEPT_BYTES or len(self._programs) >= MAX_PROGRAMS):
            oldest = next(iter(self._programs))
            total -= self._programs.pop(oldest).kernels.nbytes


@define(eq=False)
class UsedPrograms:
    """The programs of each user's modules, and the limit on their memory. Safe to use from several threads."""

    _kernels: defaultdict[int, WeakValueDictionary[int, Kernels]] = field(
        factory=lambda: defaultdict(WeakValueDictionary), init=False
    )
    """The kernels of each user, by the kernels' id(). The next check drops a user who has none."""
    _lock: Lock = field(factory=Lock, init=False)
    _collected_at: float = field(default=-math.inf, init=False)

    def check(self, user: int, kernels: Kernels) -> None:
        """Count a program as a user's as long as it exists.

        Raises:
            BackendError: OUT_OF_MEMORY if the user's programs take more than MAX_USER_BYTES, so that one user cannot
                use up the memory for other users' programs.
        """
        with self._lock:
            for other in [other for other, own in self._kernels.items() if not own]:
                del self._kernels[other]
            self._kernels[user][id(kernels)] = kernels
        total = self._total(user)
        if total > MAX_USER_BYTES and time.monotonic() - self._collected_at >= _PAUSE_SECONDS:
            gc.collect()  # destroyed contexts may still hold programs
            self._collected_at, total = time.monotonic(), self._total(user)
        if total > MAX_USER_BYTES:
            raise BackendError(
                Result.ERROR_OUT_OF_MEMORY,
                f"the kernels of user {user}'s modules take {total >> 20} MiB of the emulated device's "
                f"process, of at most {MAX_USER_BYTES >> 20} MiB: unload modules that are not needed",
            )

    def _total(self, user: int) -> int:
        with self._lock:
            return sum(kernels.nbytes for kernels in self._kernels[user].values())
