"""The machine on which a session is replayed: an emulated copy of the recorded one, or this machine with its GPUs.

With scripts/test-gpu, the sessions that were recorded on one H200 run on this machine's GPU. The names of this
machine's GPUs replace the recorded ones, and a few steps are played otherwise (on_gpu.toml has them and the reasons).

With PYMPSD_TEST_CONFORMANCE=vendor the daemon leads the driver's own server, the clients are programs of
cuda.bindings, and on_vendor.toml has the differences. Sessions that were recorded on four GPUs then run on two.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Final

import tested_driver
from fake_mps import devices
from tested_machine import gpus, on_gpu, rehearses, with_machine

from tests.gpu.cuda_programs import running

HERE = Path(__file__).parent
LEADS: Final = os.environ.get("PYMPSD_TEST_CONFORMANCE") == "vendor"
"""Whether the servers are the driver's own (in a rehearsal, the fakes)."""
SUPPORT: Final = HERE.parent / "support"
CLIENT: Final = str(SUPPORT / ("fake_recorded_client.py" if LEADS and rehearses() else "recorded_client.py"))
"""The program of the clients."""
RECORDED: Final = {
    name: tomllib.loads((HERE / f"{name}.toml").read_text())["device"] for name in ("one-h200", "four-h200")
}
SHORT: Final = (22, 12)
"""The lengths of the two prefixes of a UUID in recordings: the one that ps shows, and the one that operators give."""
PREFIX: Final = len("GPU-")


def settings(machine: str, copy: Path) -> dict[str, str]:
    """Return a daemon's settings for its machine; ``copy`` is a machine description that every user can read."""
    if LEADS:
        settings = running.settings(copy.parent)
        if machine == "four-h200":
            settings["CUDA_VISIBLE_DEVICES"] = "0,1"
        return settings
    if on_gpu() and machine == "one-h200":
        return {**with_machine({}), "PYMPSD_DRIVER": "580"}
    return {"PYMPSD_EMULATED_DEVICES": str(copy)}


def why_not(plan: str) -> str:
    """Return why a replay cannot be rehearsed, and an empty text if it can."""
    cannot = LEADS and rehearses() and plan in ("terminate, faults, kills", "connection limit")
    return "the fake client has no such lines" if cannot else ""


def clients_settings() -> dict[str, str]:
    """Return the variables that clients have in addition to the daemon's environment."""
    return {tested_driver.VARIABLE: "bindings", **with_machine({})} if LEADS else {}


def names() -> dict[str, str]:
    """Return the names that replace recorded ones on a GPU, by the recorded name."""
    if not on_gpu():
        return {}
    replacements = {f"count CUDA_SUCCESS {len(RECORDED['four-h200'])}": f"count CUDA_SUCCESS {len(gpus())}"}
    for recorded in RECORDED.values():
        for ordinal, (old, new) in enumerate(zip(recorded, gpus(), strict=False)):
            uuid = devices.uuid_text(ordinal) if LEADS and rehearses() else new.uuid
            replacements |= {old["uuid"]: uuid, **{old["uuid"][:length]: uuid[:length] for length in SHORT}}
            replacements |= {old["uuid"][PREFIX:]: uuid[PREFIX:], old["pci"]: new.pci, "NVIDIA H200": new.name}
    return replacements


def as_here(text: str) -> str:
    """Return a recorded text with this machine's names."""
    for recorded, name in names().items():
        text = text.replace(recorded, name)
    return text


def played(session: str, step: dict[str, Any]) -> dict[str, Any]:
    """Return a step with the changes for this machine's GPU and for the driver's own server, where they apply."""
    for table in ("on_gpu.toml",) * on_gpu() + ("on_vendor.toml",) * LEADS:
        for entry in tomllib.loads((HERE / table).read_text()).get("step", []):
            if (entry["session"], entry["number"]) == (session, step["number"]):
                more = {key: value for key, value in entry.items() if key not in ("session", "reason")}
                lists = {key: step.get(key, []) + value for key, value in more.items() if key in ("lacks", "adds")}
                step = {**step, **more, **lists}
    return {**step, "either": True} if LEADS else step
