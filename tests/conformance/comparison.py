"""Compares what pympsd writes with what is recorded, texts and logs, with the recorded PIDs mapped to ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from tests.conformance import logs
from tests.conformance.correspondence import Correspondence


@frozen
class Comparison:
    """A comparison that uses the pairs of PIDs known by now, and adds the pairs that an equal text shows."""

    known: Correspondence

    def of_log(self, step: dict[str, Any], lines: list[str], commands: list[str], repeated: list[str]) -> str:
        """Compare the new lines of a log with a step's; return the differences, an empty text if there are none.

        ``commands`` are those that recorded steps gave since control.log was last compared. ``repeated`` are those
        that the replay gave again because the expected answer was not there yet, once for each time.
        """
        name = step["do"]
        entries = logs.without_vendors_only(logs.entries(step.get("lines", [])))
        if name == "server.log":
            entries = logs.without_garbage(entries)
        ours = logs.without_repeated(logs.entries(lines), repeated)
        if step.get("either"):
            # The server is the driver's own here, so our log has the lines that only the vendor's server writes.
            ours = logs.without_vendors_only(ours)
        if step.get("either") and name == "server.log":
            ours, entries = logs.without_refusals(logs.without_garbage(ours)), logs.without_refusals(entries)
            step = {**step, "lacks": [text for text in step.get("lacks", []) if not logs.is_of_refusal(text)]}
        if step.get("some"):
            return "\n".join(self._not_met(name, logs.without_nameless(entries), ours))
        entries, unmet = _struck_out(entries, step.get("lacks", []), str.__eq__)
        ours, more = _struck_out(ours, step.get("adds", []), self.known.agrees)
        voices = logs.VOICES[name]
        expected = voices(entries)
        our_lines = voices(ours)
        if name == "control.log":
            shown = [self.known.original(command) for command in commands]
            expected["operators"] = logs.without_unshown(expected["operators"], shown)
        else:
            our_lines = {self._voice(voice): output for voice, output in our_lines.items()}
        wrong = unmet + more
        for voice in sorted(expected.keys() | our_lines.keys()):
            recorded, actual = expected.get(voice, []), our_lines.get(voice, [])
            if step.get("either"):
                recorded, actual = logs.with_workers_first(recorded), logs.with_workers_first(actual)
            wrong += self._of_voice(
                voice, self._reordered(recorded, actual) if step.get("reordered") else recorded, actual
            )
        return "\n".join(wrong)

    def _reordered(self, recorded: list[logs.Entry], ours: list[logs.Entry]) -> list[logs.Entry]:
        """Return the recorded lines in the order of our equal lines; those that ours lack come last."""
        waiting, reordered = list(recorded), []
        for entry in ours:
            same = next((candidate for candidate in waiting if self.known.agrees(candidate.text, entry.text)), None)
            if same is not None:
                waiting.remove(same)
                reordered.append(same)
        return reordered + waiting

    def _not_met(self, name: str, recorded: list[logs.Entry], ours: list[logs.Entry]) -> list[str]:
        """Return a complaint of each voice of a partly shown log whose lines are not in ours, in their order."""
        our_lines = logs.VOICES[name](ours)
        wrong: list[str] = []
        for voice, output in sorted(logs.VOICES[name](recorded).items()):
            our_pid = str(self.known.ours.get(int(voice), "")) if voice.isdecimal() else voice
            # A recorded client that only this log names may be any of our clients that has no recorded PID yet.
            unknown_pids = [entry for entry in our_lines if entry.isdecimal() and int(entry) not in self.known.theirs]
            missing = [self._missing(output, our_lines[pid]) for pid in ([our_pid] if our_pid else unknown_pids)]
            wrong += min(missing, key=len, default=[f"no client of ours is left for {voice}"])
        return wrong

    def _missing(self, recorded: list[logs.Entry], ours: list[logs.Entry]) -> list[str]:
        waiting, before = list(ours), (dict(self.known.ours), dict(self.known.theirs))
        for entry in recorded:
            while waiting and not self.known.agrees(entry.text, waiting[0].text):
                del waiting[0]
            if not waiting:
                self.known.ours, self.known.theirs = before
                return [f"no line of ours says {entry.text!r} after what comes before it"]
            del waiting[0]
        return []

    def _voice(self, voice: str) -> str:
        return str(self.known.theirs.get(int(voice), voice)) if voice.isdecimal() else voice

    def _of_voice(self, voice: str, recorded: list[logs.Entry], ours: list[logs.Entry]) -> list[str]:
        def get_shown(entry: logs.Entry) -> str:
            return f"{entry.source} {entry.pid}] {entry.text}"

        return self.differences(f"the {voice}'s lines", [*map(get_shown, recorded)], [*map(get_shown, ours)])

    def differences(self, what: str, recorded: list[str], ours: list[str]) -> list[str]:
        wrong = []
        for place in range(max(len(recorded), len(ours))):
            expected = recorded[place] if place < len(recorded) else None
            entry = ours[place] if place < len(ours) else None
            if expected is None or entry is None or not self.known.agrees(expected, entry):
                wrong.append(f"{what}, {place}: ours is {entry!r}, recorded {expected!r}")
        return wrong


def _struck_out(
    entries: list[logs.Entry], texts: list[str], same: Callable[[str, str], bool]
) -> tuple[list[logs.Entry], list[str]]:
    """Leave out one line for each text; return the rest, and a complaint of each text that no line has.

    Each search begins where the last line was left out, because several clients may have lines of the same text.
    """
    kept, unmet, last = list(entries), [], 0
    for text in texts:
        places = [*range(last, len(kept)), *range(last)]
        place = next((at for at in places if same(text, kept[at].text)), None)
        if place is None:
            unmet.append(f"no line says {text!r}")
        else:
            del kept[place]
            last = place
    return kept, unmet
