"""Which of the suite's tests run on a GPU: by the table choice.toml and the abilities of this machine."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from attrs import frozen
from tested_machine import gpu, gpus, rehearses

TESTS = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("choice.toml")
OTHER_USERS = "PYMPSD_TEST_OTHER_USERS"
"""``no``: users other than root cannot reach the interpreter that the tests run with."""
RECORDED = "NVIDIA H200"
MULTIPROCESSORS = 132
"""The multiprocessors of the GPU in protocol 3's sequences; an H100 has as many as an H200."""


@frozen
class Choice:
    """The table, by file, and the reasons for which this machine leaves tests out, by key of the table."""

    files: dict[str, dict[str, Any]]
    machine: dict[str, str]

    @classmethod
    def here(cls) -> Choice:
        """Read the table for this machine."""
        entries = tomllib.loads(TABLE.read_text())["file"]
        machine = {}
        if os.geteuid() != 0 or os.environ.get(OTHER_USERS) == "no":
            machine["other_users"] = "only root, with an interpreter that all users can reach, starts their clients"
        if gpu().name != RECORDED:
            machine["figures"] = f"its figures are of an {RECORDED}, not of a {gpu().name}"
        if gpu().multiprocessors != MULTIPROCESSORS:
            machine["multiprocessors"] = f"its figures are of a GPU with {MULTIPROCESSORS} multiprocessors"
        if len(gpus()) < 2:
            machine["two_gpus"] = "it is about two devices"
        if os.environ.get("PYMPSD_TEST_CONFORMANCE") != "vendor" or len(gpus()) < 2:
            machine["two_led_gpus"] = "it is replayed on two GPUs with the driver's own server"
        if rehearses():
            machine["real_gpu"] = "this is a rehearsal"
        return cls({entry["path"]: entry for entry in entries}, machine)

    def reason(self, path: Path, name: str) -> str:
        """Return why a test is left out; nothing if it runs. ``name`` is its function's, with the parameters."""
        if TESTS not in path.parents:
            return ""
        entry = self.files.get(str(path.relative_to(TESTS)), {})
        for key, why in self.machine.items():
            if any(meets(pattern, name) for pattern in entry.get(key, [])):
                return why
        if "reason" in entry:
            return str(entry["reason"])
        omissions = entry.get("left_out", [])
        left_out = (omission for omission in omissions if any(meets(pattern, name) for pattern in omission["tests"]))
        return next((str(entry["reason"]) for entry in left_out), "")


def meets(pattern: str, name: str) -> bool:
    """Whether a name in the table selects a test: by all its cases, one of them, or a beginning of its name."""
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return pattern in (name, name.partition("[")[0])
