"""A client of a soak with our own driver functions, run by path with its plan as JSON (client_loop)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pympsd_client import driver as cuda
from tests.chaos.client_loop import Client, report_end
from tests.chaos.client_work import Bench, check

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


def main(text: str) -> None:
    """Run the plan."""
    plan = json.loads(text)
    Client(plan, STEPS[plan["work"]], lambda: int(check(cuda.cuInit, 0) or 0), Bench, "copies").run()
    report_end()


if __name__ == "__main__":
    main(sys.argv[1])
