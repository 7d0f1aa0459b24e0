"""What scripts/bench vendor measures where there is no GPU: a fake CUDA program with the commands of its clients.

``PTX``: begins immediately, and knows ``launch`` (baseline.c). ``PTX join``: waits for the line ``join`` (join.c).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from fake_mps.client import Program

now = time.monotonic_ns


def succeeds(program: Program, *words: str) -> None:
    """Do a line; end the process if it fails."""
    output = program.run(*words)
    if not output.endswith("CUDA_SUCCESS"):
        sys.exit(output)


def join(program: Program) -> list[int]:
    """Connect; return the four times."""
    times = [now()]
    for words in (("init",), ("ctx", "0"), ("launch",)):
        succeeds(program, *words)
        times.append(now())
    return times


def launch(program: Program, batch: int, begin: int, finish: int, stop: int) -> float:
    """Launch until the last moment; return the launches per second."""
    count = 0
    while now() < stop:
        for _ in range(batch):
            succeeds(program, "launch")
        count += batch
    return count * 1e9 / (now() - begin)


def main() -> None:
    """Do commands until the end of the input."""
    program = Program()
    if sys.argv[2:] != ["join"]:
        join(program)
    print("ok", flush=True)
    for line in sys.stdin:
        name, *words = line.split()
        if name == "join":
            print("ok", *join(program), flush=True)
        else:
            assert name == "launch", name
            print("ok", launch(program, *map(int, words[3:])), flush=True)
    program.end()


main()
