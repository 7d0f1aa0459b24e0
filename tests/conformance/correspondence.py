"""Which of our processes stands for which recorded one: PIDs are mapped one to one, and are never masked."""

from __future__ import annotations

import re

from attrs import define, field

NUMBER = re.compile(r"(?<![\w.])(?<!version: )(\d+)(?![\w])( *)")
"""A number that may be a PID. A number after "version: " is the driver's version, even if it equals a PID."""


@define
class Correspondence:
    """The pairs of PIDs known by now.

    ``recorded`` are all PIDs of the recording. ``words`` has our words by the recorded ones, ``ours`` our PIDs by the
    recorded ones, and ``theirs`` the recorded PIDs by ours.
    """

    recorded: frozenset[int]
    words: dict[str, str] = field(factory=dict)
    ours: dict[int, int] = field(factory=dict)
    theirs: dict[int, int] = field(factory=dict)

    def bind(self, recorded: int, ours: int) -> bool:
        """Let one of our processes stand for a recorded one; return whether that agrees with the known pairs."""
        return self.ours.setdefault(recorded, ours) == ours and self.theirs.setdefault(ours, recorded) == recorded

    def agrees(self, recorded: str, ours: str) -> bool:
        """Whether our text is the recorded one but for the PIDs; if it is, keep the new pairs of PIDs."""
        pattern, pids = self._pattern(recorded)
        match = re.fullmatch(pattern, ours, re.DOTALL)
        if match is None:
            return False
        before = dict(self.ours), dict(self.theirs)
        for pid, output in zip(pids, match.groups(), strict=True):
            if not self.bind(pid, int(output)):
                self.ours, self.theirs = before
                return False
        return True

    def translated(self, text: str) -> str:
        """Return a recorded command with our PIDs; a PID that has no pair yet stays."""
        return NUMBER.sub(lambda result: f"{self.ours.get(int(result[1]), result[1])}{result[2]}", text)

    def original(self, text: str) -> str:
        """Return one of our commands with the recorded PIDs."""
        return NUMBER.sub(lambda result: f"{self.theirs.get(int(result[1]), result[1])}{result[2]}", text)

    def _pattern(self, recorded: str) -> tuple[str, list[int]]:
        for word, ours in self.words.items():
            recorded = recorded.replace(word, ours)
        pids: list[int] = []
        pattern, end = "", 0
        for number in NUMBER.finditer(recorded):
            if int(number[1]) not in self.recorded:
                continue
            pids.append(int(number[1]))
            pattern += re.escape(recorded[end : number.start()])
            # A number with several spaces after it is in a column, which is as wide as the recorded one.
            width = len(number[0])
            pattern += rf"(?=[0-9 ]{{{width}}}(?! ))([0-9]+) *" if len(number[2]) > 1 else rf"([0-9]+){number[2]}"
            end = number.end()
        return pattern + re.escape(recorded[end:]), pids
