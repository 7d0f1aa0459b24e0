"""A client of a soak, run by path with its plan as JSON: does its work until its time is over or its context is lost.

It reports each step in a line (client_protocol). A line on standard input names a kernel that faults, to be run next.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pympsd_client import driver as cuda
from tests.chaos.client_protocol import asked, check, say, step
from tests.chaos.client_work import Bench

STEPS: Final = {
    "copies": ("copies",),
    "kernels": ("add", "tally", "reduce"),
    "contexts": ("contexts", "add", "contexts", "copies"),
    "streams": ("streams",),
    "memory": ("memory", "copies"),
    "callbacks": ("callbacks", "add"),
    "mixed": ("copies", "add", "tally", "reduce", "streams", "memory", "callbacks", "contexts"),
    "endless": ("endless",),
    "probe": ("idle",),
}
TERMINATED: Final = 810
NOT_READY: Final = 807
MOST_CONTEXTS: Final = 4
LINGERS: Final = 0.3
LINGER_SECONDS: Final = 5.0
"""How long after an error some clients try again: by then nothing may succeed in what the error ended."""
PAUSES: Final = (0, 0, 0.02, 0.1, 0.3)
"""Seconds between steps: a client is not always busy, and the machine is not ours alone."""


class Client:
    """One process's work."""

    def __init__(self, work: str, devices: list[int], seconds: float, seed: int) -> None:
        self.steps = STEPS[work]
        self.devices = devices
        self.source = random.Random(seed)
        self.until = time.monotonic() + seconds
        self.benches: dict[int, Bench] = {}
        self.contexts = 0

    def run(self) -> None:
        """All of it."""
        if step("init", -1, -1, lambda: int(check(cuda.cuInit, 0) or 0)):
            return
        for device in self.devices:
            if self.open(device):
                break
        going = bool(self.benches)
        while going and time.monotonic() < self.until:
            command = asked(self.source.choice(PAUSES))
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
            self.benches[number] = Bench(device, self.source.getrandbits(32))
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
                asked(LINGER_SECONDS)
                self.in_all("copies")
        return code

    def in_all(self, name: str) -> None:
        """Do a step in every context, whatever comes of it."""
        for each in sorted(self.benches):
            self.step_in(each, name)

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
        if len(self.benches) < MOST_CONTEXTS and (len(self.benches) == 1 or self.source.random() < 0.5):
            code = self.open(self.source.choice(self.devices))
            # The others are as they were.
            return 0 if code == NOT_READY else code
        return self.close(self.source.choice(sorted(self.benches)))

    def begin_again(self) -> bool:
        """After a termination: a process may make a new context."""
        for number in list(self.benches):
            self.close(number)
        return self.open(self.source.choice(self.devices)) == 0


def main(text: str) -> None:
    """Run the plan."""
    plan: dict[str, Any] = json.loads(text)
    Client(plan["work"], plan["devices"], plan["seconds"], plan["seed"]).run()
    say(doing="leaving")


if __name__ == "__main__":
    main(sys.argv[1])
