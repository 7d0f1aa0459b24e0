"""Makes the tables of steps (sessions/NAME.json) from the recorded sessions and the review of their steps.

``recorded/NAME.txt`` is the recording. ``sessions/NAME.toml`` is the review, written by hand: which steps belong to a
replay, which are deliberately different and why, which cannot be replayed and why, and what the recorder did without
showing it. After a change of either, run ``python tests/conformance/extract.py``: a test fails while a table is old.

A step of the review has the numbers of the recorded steps, their mark and, unless that is ``equal``, the reason. What
else it may have:

- environment, uid, at: the client's environment and user, and the number of the daemon;
- do, pid, step, result, stdin and others: what the step is, where the recording only describes it;
- ours, ours_status: what pympsd answers where it is different;
- lacks, adds: the lines of a log that only the recording has, and those that only ours has;
- each, lacks_for_each: PIDs of clients, and the lines that lack for each of them, with % for the PID;
- reordered: the log has the same lines in another order;
- some: the recording shows only some lines of the log;
- until: the step is repeated until its result is the expected one;
- rows, row: only the number of rows is compared, or only that row.
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
"""Stands in a recording for lines of a log that are left out; it is not a step."""
TIMES = re.compile(r" [0-9]+\.[0-9]{6}(?= |$)")
"""Seconds that a client's step took, in its recorded result."""


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
    """Return the steps with their marks and reasons; every step that is not marked ``equal`` has a reason."""
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
                # A line that lacks for each of several clients has % in place of the PID.
                lines = [
                    text.replace("%", str(pid)) for pid in decision["each"] for text in decision["lacks_for_each"]
                ]
                extra["lacks"] = [*decision.get("lacks", []), *lines]
            steps[number - 1] |= {"mark": decision["mark"], "reason": decision.get("reason", ""), **extra}
    for step in steps:
        assert step["mark"] == "equal" or step["reason"], f"step {step['number']} has no reason: {step}"
    return steps


def numbers(text: str) -> list[int]:
    """Return the numbers that a text such as ``3, 7-9`` lists."""
    listed: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        listed += range(int(first), int(last or first) + 1)
    return listed


def table(name: str) -> str:
    """Return the text of a session's table."""
    # Not every byte of a recording is UTF-8.
    steps = parsed((HERE / "recorded" / f"{name}.txt").read_text("utf-8", "surrogateescape"))
    review = tomllib.loads((HERE / "sessions" / f"{name}.toml").read_text())
    for step in steps:
        # The table does not repeat what was printed and logged; the tests read that from the recording.
        for output in ("stdout", "stderr", "lines"):
            step.pop(output, None)
    rows = ",\n".join(json.dumps(step) for step in reviewed(steps, review))
    return f'{{"replays": {json.dumps(review.get("replay", []))},\n"steps": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    for each in NAMES:
        (HERE / "sessions" / f"{each}.json").write_text(table(each))
