"""The protocol of a soak's client: it reports each step as a line of JSON before and after, and reads commands."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any


class Failed(Exception):
    """Raised when a driver call did not succeed."""

    def __init__(self, call: str, code: int, why: str) -> None:
        super().__init__(call)
        self.call = call
        self.code = code
        self.why = why


def write_line(**fields: Any) -> None:
    """Write the fields and the time to standard output, as one line of JSON."""
    print(json.dumps({"t": time.monotonic(), **fields}), flush=True)


def step(name: str, device: int, context: int, work: Callable[[], int]) -> int:
    """Do a step, which returns the number of wrong values; report it before and after; return its CUresult."""
    began = time.monotonic()
    write_line(doing=name, device=device, context=context)
    report: dict[str, Any] = {"name": name, "began": began, "device": device, "context": context, "code": 0}
    try:
        report["wrong"] = work()
    except Failed as failed:
        report |= {"code": failed.code, "call": failed.call, "why": failed.why}
    write_line(doing="between", step=report)
    return int(report["code"])


def read_command(seconds: float) -> str:
    """Return the command that arrives within that many seconds: a fault's name, "end" at the end of input, or ""."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    return sys.stdin.readline().strip() or "end"
