"""The recorded machine and the one that a session is replayed on: the same, but for scripts/test-gpu.

There sessions that were recorded on one H200 run on this machine's GPU: its names stand for the recorded ones, and a
few steps are played otherwise (on_gpu.toml says which and why).
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from tested_machine import gpu, on_gpu, with_machine

HERE = Path(__file__).parent
RECORDED: Final = tomllib.loads((HERE / "one-h200.toml").read_text())["device"][0]
SHORT: Final = 22
"""The number of characters of a UUID that ps shows."""


def settings(machine: str, copy: Path) -> dict[str, str]:
    """Return a daemon's settings of its machine; ``copy`` is a description that every user can read."""
    if on_gpu() and machine == "one-h200":
        return with_machine({})
    return {"PYMPSD_EMULATED_DEVICES": str(copy)}


def names() -> dict[str, str]:
    """Return recorded names and those of this machine's GPU for them."""
    if not on_gpu():
        return {}
    recorded = RECORDED["uuid"]
    return {
        recorded: gpu().uuid,
        recorded[:SHORT]: gpu().uuid[:SHORT],
        RECORDED["pci"]: gpu().pci,
        "NVIDIA H200": gpu().name,
    }


def as_here(text: str) -> str:
    """Return a recorded text with this machine's names."""
    for recorded, name in names().items():
        text = text.replace(recorded, name)
    return text


def played(session: str, step: dict[str, Any]) -> dict[str, Any]:
    """Return a step as it is played here."""
    if on_gpu():
        for each in tomllib.loads((HERE / "on_gpu.toml").read_text())["step"]:
            if (each["session"], each["number"]) == (session, step["number"]):
                return {**step, **{key: value for key, value in each.items() if key not in ("session", "reason")}}
    return step
