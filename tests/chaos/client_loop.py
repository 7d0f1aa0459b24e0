"""What every client of a soak does: its work until its time is over or its context is lost.

It reports each step in a line (client_protocol). A line on standard input names a fault, to be done next. What a step
is, its driver says: ours (client), or the fake one (driver_client).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from tests.chaos.client_protocol import read_command, say, step

TERMINATED: Final = 810
NOT_READY: Final = 807
MAX_CONTEXTS: Final = 4
LINGERS: Final = 0.3
LINGER_SECONDS: Final = 5.0
"""How long after an error some clients try again: by then nothing may succeed in what the error ended."""
PAUSES: Final = (0, 0, 0.02, 0.1, 0.3)
"""Seconds between steps: a client is not always busy, and the machine is not ours alone."""


class Bench(Protocol):
    """A context, and steps in it: methods that return how much was wrong, or raise Failed."""

    device: int

    def enter(self) -> None:
        """Make it current."""

    def close(self) -> int:
        """Destroy it."""

    def synchronize(self) -> int:
        """Wait for its work."""

    def fault(self, name: str) -> int:
        """Do something that ends it."""


class Client:
    """One process's work: ``start`` is cuInit, ``make`` a context on a device, ``proof`` a step that needs one."""

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
        """All of it."""
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
        """Do one step in a context of this client's; when it fails, see that all of the context fails from now on."""
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
        """Do a step in every context, whatever comes of it."""
        for bench in sorted(self.benches):
            self.step_in(bench, name)

    def step_in(self, number: int, name: str) -> int:
        """Do a step in a context."""
        bench = self.benches[number]
        method, *words = name.split()

        def do() -> int:
            bench.enter()
            return int(getattr(bench, method)(*words))

        return step(name, bench.device, number, do)

    def other_context(self) -> int:
        """Destroy a context and make another one."""
        if len(self.benches) < MAX_CONTEXTS and (len(self.benches) == 1 or self.source.random() < 0.5):
            code = self.open(self.source.choice(self.devices))
            # The others are as they were.
            return 0 if code == NOT_READY else code
        return self.close(self.source.choice(sorted(self.benches)))

    def begin_again(self) -> bool:
        """After a termination: a process may make a new context."""
        for number in list(self.benches):
            self.close(number)
        return self.open(self.source.choice(self.devices)) == 0


def say_goodbye() -> None:
    """Report the end."""
    say(doing="leaving")
