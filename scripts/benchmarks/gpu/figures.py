"""The figures by section and way, and those that could not be measured; kept as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from attrs import define, field

from gpu.clients import Failure


@define
class Figures:
    """Raw figures: nested dicts of numbers by section, way and more keys. ``conditions``: the machine, the worker."""

    sections: list[str]
    conditions: dict[str, Any] = field(factory=dict)
    values: dict[str, Any] = field(factory=dict)
    failures: list[dict[str, str]] = field(factory=list)
    left_out: list[dict[str, str]] = field(factory=list)

    def put(self, value: float, *keys: str) -> None:
        """Keep a figure."""
        place = self.values
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value

    def get(self, *keys: str) -> float | None:
        """Return a figure, None if it was not measured."""
        place: Any = self.values
        for key in keys:
            if not isinstance(place, dict) or key not in place:
                return None
            place = place[key]
        return float(place)

    def fail(self, cell: str, reason: str) -> None:
        """Note that a figure could not be measured."""
        self.failures.append({"cell": cell, "reason": reason})
        print(f"    {cell}: -  ({reason})", flush=True)

    def leave_out(self, cell: str, reason: str) -> None:
        """Note that a figure is not available on this machine."""
        self.left_out.append({"cell": cell, "reason": reason})
        print(f"    {cell}: left out ({reason})", flush=True)

    def save(self, path: Path) -> None:
        """Write all figures to a file."""
        output = {"sections": self.sections, **self.conditions, "failures": self.failures}
        output |= {"left_out": self.left_out, "figures": self.values}
        path.write_text(json.dumps(output, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Figures:
        """Read figures that were saved."""
        document = json.loads(path.read_text())
        sections, values = document.pop("sections"), document.pop("figures")
        failures, left_out = document.pop("failures"), document.pop("left_out")
        return cls(sections, document, values, failures, left_out)


@define
class Run:
    """One run: its figures, and its options."""

    figures: Figures
    seconds: float
    counts: tuple[int, ...]
    give_up: float
    """The end of the whole run (monotonic seconds)."""
    rehearsal: bool = False

    def check_time(self) -> None:
        """Raise Failure if no time is left."""
        if time.monotonic() > self.give_up:
            raise Failure("out of time")

    def is_requested(self, section: str) -> bool:
        """Whether a section is to be measured."""
        return section in self.figures.sections
