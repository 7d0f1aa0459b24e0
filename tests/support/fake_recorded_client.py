"""A fake CUDA program with the lines of recorded_client.py, as far as the fake one has them."""

from __future__ import annotations

import sys

from fake_mps.client import Program


class Recorded(Program):
    """The recorded commands."""

    def __init__(self) -> None:
        super().__init__()
        self.poked = False

    def do_alloc(self, mebibytes: str) -> str:
        return f"{mebibytes} {self.result('alloc', bytes=int(mebibytes) << 20)}"

    def do_spin(self, milliseconds: str) -> str:
        return self.result("launch")

    def do_poke(self) -> str:
        self.poked = True
        return self.result("launch")

    def do_sync(self) -> str:
        poked, self.poked = self.poked, False
        return self.result("fault" if poked else "sync")

    def do_mem(self) -> str:
        return f"{self.result('sync')} free=0MiB total=0MiB"

    def result(self, request: str, **more: int) -> str:
        """Return the result of a request to the context."""
        return self.run("asked", request, *map(str, more.values())).partition(" ")[2]

    def do_asked(self, request: str, *sizes: str) -> str:
        return str(self._ask(request, **({"bytes": int(sizes[0])} if sizes else {}))["result"])


def main() -> None:
    """Execute commands until the end of the input."""
    program = Recorded()
    for line in sys.stdin:
        name, *words = line.split()
        if name == "exit":
            break
        print(program.run(name, *words) if hasattr(program, f"do_{name}") else f"{name} unknown", flush=True)
    program.end()


main()
