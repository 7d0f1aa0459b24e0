"""The loop of every client of a soak: it works until its time is over or its context is lost.

It reports each step in a line (client_protocol). A line on standard input names the fault to cause next. The steps
depend on the driver: pympsd's own functions (client), or the fake driver (driver_client).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from tests.chaos.client_protocol import read_command, step, write_line

TERMINATED: Final = 810
NOT_READY: Final = 807
MAX_CONTEXTS: Final = 4
LINGERS: Final = 0.3
LINGER_SECONDS: Final = 5.0
"""Seconds after an error in which some clients try again; nothing may succeed in contexts that the error ended."""
PAUSES: Final = (0, 0, 0.02, 0.1, 0.3)
"""Seconds between steps: clients are not always busy, and other programs use the machine too."""


class Bench(Protocol):
    """A context, and steps in it: methods that return the number of wrong values, or raise Failed."""

    device: int

    def enter(self) -> None:
        """Make the context current."""

    def close(self) -> int:
        """Destroy the context."""

    def synchronize(self) -> int:
        """Wait for the context's work."""

    def fault(self, name: str) -> int:
        """Cause a fault that ends the context."""


class Client:
    """The work of one process.

    ``start`` calls cuInit, ``make`` makes a context on a device, and ``proof`` is the name of a step in a context.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        steps: tuple[str, ...],
        start: Callable[[], int],
        make: Callable[[int, int], Bench],
        proof: str,
    ) -> None:
        devices, seconds, seed = plan["devices"], plan["seconds"], plan["seed"]
        self.steps = steps
        self.start = start
        self.make = make
        self.proof = proof
        self.devices: list[int] = devices
        self.source = random.Random(seed)
        self.until = time.monotonic() + seconds
        self.benches: dict[int, Bench] = {}
        self.contexts = 0

    def run(self) -> None:
        """Run the client to its end."""
        if step("init", -1, -1, self.start):
            return
        for device in self.devices:
            if self.open(device):
                break
        going = bool(self.benches)
        while going and time.monotonic() < self.until:
            command = read_command(self.source.choice(PAUSES))
            if command == "end":
                break
            code = self.work(command)
            going = code == 0 or (code == TERMINATED and self.begin_again())
        for context in list(self.benches):
            self.close(context)

    def open(self, device: int) -> int:
        """Make one more context on a device."""
        self.contexts += 1
        number = self.contexts

        def make() -> int:
            self.benches[number] = self.make(device, self.source.getrandbits(32))
            return 0

        return step("open", device, number, make)

    def close(self, number: int) -> int:
        """Destroy a context."""
        bench = self.benches.pop(number)
        return step("close", bench.device, number, bench.close)

    def work(self, command: str) -> int:
        """Do one step in a context of this client; if it fails, do more steps, whose results the judge checks."""
        number = self.source.choice(sorted(self.benches))
        name = self.source.choice(self.steps)
        if not command and name == "contexts":
            return self.other_context()
        code = self.step_in(number, f"fault {command}" if command else name)
        if code:
            self.in_all("synchronize")
            if self.source.random() < LINGERS:
                read_command(LINGER_SECONDS)
                self.in_all(self.proof)
        return code

    def in_all(self, name: str) -> None:
        """Do a step in every context, whatever the results."""
        for bench in sorted(self.benches):
            self.step_in(bench, name)

    def step_in(self, number: int, name: str) -> int:
        """Do a step in a context."""
        bench = self.benches[number]
        method, *words = name.split()

        def work() -> int:
            bench.enter()
            return int(getattr(bench, method)(*words))

        return step(name, bench.device, number, work)

    def other_context(self) -> int:
        """Make one more context, or destroy one."""
        if len(self.benches) < MAX_CONTEXTS and (len(self.benches) == 1 or self.source.random() < 0.5):
            code = self.open(self.source.choice(self.devices))
            # A server that is not ready refuses the new context; the other contexts remain usable.
            return 0 if code == NOT_READY else code
        return self.close(self.source.choice(sorted(self.benches)))

    def begin_again(self) -> bool:
        """Make a new context after a termination, which a process is allowed to do; return whether that succeeded."""
        for number in list(self.benches):
            self.close(number)
        return self.open(self.source.choice(self.devices)) == 0


def report_end() -> None:
    """Report the client's end."""
    write_line(doing="leaving")
