"""Makes the tables of steps (sessions/NAME.json) from the recorded sessions and what was decided of each step.

``recorded/NAME.txt`` is the recording, ``sessions/NAME.toml`` the review by hand: which steps belong to a replay,
which are deliberately different and why, which cannot be replayed and why, and what the recorder did without saying
so. Run it after a change of either (``python tests/conformance/extract.py``): a test fails while a table is old.

A step of the review has its numbers, its mark and, unless it is equal, its reason; and what more it needs:
environment, uid, at: whose client or daemon it is; do, pid, step, result, stdin ... instead of what the recording
reports in words; ours (and ours_status): what ours answers where it is different; lacks and adds: the lines of a log
that only the recording, or only ours, has (lacks_for_each: with % for the PID of each); reordered: the same lines in
another order; some: a log of which only some lines are shown; until: done again until it is so; rows: only how many
rows there are; row: only that one.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

HERE = Path(__file__).parent
NAMES: Final = (
    "no-daemon",
    "start-up",
    "servers-and-clients",
    "faults-and-shutdown",
    "several-gpus",
    "multiuser-and-limits",
)
MARKS: Final = ("equal", "different", "not_replayable")
PLAIN: Final = {"steps", "mark", "reason", "each", "lacks_for_each"}
RUN = re.compile(
    r"\$ (?:printf '(?P<stdin>.*)' \| )?ctl(?: (?P<arguments>.*?))?\s+\[rc=(?P<rc>\w+) [^]]*?(?:uid=(?P<uid>\d+))?\]"
)
CLIENT = re.compile(r"   client (?P<pid>\d+): (?P<step>.*?) -> (?P<result>.*?)\s+\([0-9.]+ ms\)")
OUTPUT = re.compile(r"  (out|err|log)\| ?(.*)", re.DOTALL)
ELIDED: Final = "  ... (more lines of this shape)"
"""What is left out of a log reports it, and is not a step; how such a log is compared the review reports (elided)."""
TIMES = re.compile(r" [0-9]+\.[0-9]{6}(?= |$)")
"""How long a client's step took; the recorder wrote seconds."""


def parsed(text: str) -> list[dict[str, Any]]:
    """Return the steps of a recording, numbered from 1."""
    steps: list[dict[str, Any]] = []
    section = ""
    for line in text.split("\n")[1:]:
        if line.startswith("==== "):
            section = line[5:]
        elif line.startswith("# ") or not line.strip() or line == ELIDED:
            continue
        elif (output := OUTPUT.fullmatch(line)) and steps:
            steps[-1].setdefault({"out": "stdout", "err": "stderr", "log": "lines"}[output[1]], []).append(output[2])
        elif line.startswith("   ") and steps and steps[-1]["do"] == "listing" and " uid=" in line:
            steps[-1].setdefault("lines", []).append(line.strip())
        else:
            steps.append({"number": len(steps) + 1, "section": section, **_step(line)})
    return steps


def _step(line: str) -> dict[str, Any]:
    if match := RUN.fullmatch(line):
        stdin = (match["stdin"] or "").replace("\\n", "\n")
        arguments = (match["arguments"] or "").split()
        return {
            "do": "run",
            "stdin": stdin,
            "arguments": arguments,
            "uid": int(match["uid"] or 0),
            "status": match["rc"] if match["rc"] == "timeout" else int(match["rc"]),
        }
    if match := CLIENT.fullmatch(line):
        return {
            "do": "client",
            "pid": int(match["pid"]),
            "step": match["step"],
            "result": TIMES.sub("", match["result"]),
        }
    for name in ("control.log", "server.log"):
        if line.startswith(f"-- {name}"):
            return {"do": name}
    if line == "-- listing $PIPE":
        return {"do": "listing"}
    return {"do": "note", "text": line.strip()}


def reviewed(steps: list[dict[str, Any]], review: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps with their marks and reasons; every step that no replay reaches has a reason."""
    for step in steps:
        step["mark"] = "equal"
    covered: set[int] = set()
    for unit in review.get("replay", []):
        covered |= set(range(unit["first"], unit["last"] + 1))
    for step in steps:
        if step["number"] not in covered:
            step |= {"mark": "not_replayable", "reason": ""}
    for decision in review.get("step", []):
        for number in numbers(decision["steps"]):
            assert decision["mark"] in MARKS, decision
            extra = {name: value for name, value in decision.items() if name not in PLAIN}
            if "each" in decision:
                # In a line that is lacking for each of several clients % stands for its PID.
                lines = [
                    text.replace("%", str(pid)) for pid in decision["each"] for text in decision["lacks_for_each"]
                ]
                extra["lacks"] = [*decision.get("lacks", []), *lines]
            steps[number - 1] |= {"mark": decision["mark"], "reason": decision.get("reason", ""), **extra}
    for step in steps:
        assert step["mark"] == "equal" or step["reason"], f"step {step['number']} has no reason: {step}"
    return steps


def numbers(text: str) -> list[int]:
    """Read ``3, 7-9``."""
    listed: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        listed += range(int(first), int(last or first) + 1)
    return listed


def table(name: str) -> str:
    """Return the text of a session's table."""
    # Not every byte of a recording is text.
    steps = parsed((HERE / "recorded" / f"{name}.txt").read_text("utf-8", "surrogateescape"))
    review = tomllib.loads((HERE / "sessions" / f"{name}.toml").read_text())
    for step in steps:
        # What was printed and logged stays in the recording.
        for output in ("stdout", "stderr", "lines"):
            step.pop(output, None)
    rows = ",\n".join(json.dumps(step) for step in reviewed(steps, review))
    return f'{{"replays": {json.dumps(review.get("replay", []))},\n"steps": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    for each in NAMES:
        (HERE / "sessions" / f"{each}.json").write_text(table(each))
