"""The summary of a soak, which is written as JSON: the actions and their results over all rounds."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import asdict, define, field

from tests.chaos.schedule import Kind, Round
from tests.chaos.testbed import Testbed


@define
class Summary:
    """Adds up the counts and problems of rounds."""

    seed: int
    seconds: float
    pace: float
    kinds: list[Kind]
    counts: Counter[str] = field(factory=Counter)
    rounds: list[dict[str, Any]] = field(factory=list)
    problems: list[str] = field(factory=list)

    def add(self, part: Round, testbed: Testbed, judged: int, left: int) -> None:
        """Add a round that is over. ``judged`` is the number of clients judged, ``left`` that of leaks."""
        clients = len(testbed.history.lives)
        self.counts += testbed.counts
        self.counts += Counter(
            {
                "clients": clients,
                "clients judged": judged,
                "leaks": left,
                "daemons": len(testbed.logs.daemons),
                "servers": len(testbed.logs.servers),
            }
        )
        figures = {"seconds": part.seconds, "clients": clients, "steps": testbed.counts["steps"]}
        self.rounds.append({**asdict(part.setup), **figures, "problems": len(testbed.problems)})
        self.problems += [f"round {part.number}: {problem}" for problem in testbed.problems]

    def as_json(self) -> dict[str, Any]:
        """Return the summary as an object for JSON."""
        counts = self.counts
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "pace": self.pace,
            "kinds": self.kinds,
            "rounds": self.rounds,
            "clients": counts["clients"],
            "clients judged": counts["clients judged"],
            "clients by work": self._those("client "),
            "steps": counts["steps"],
            "chaos": {str(kind): counts[kind] for kind in Kind if counts[kind]},
            "faults": self._those("fault "),
            "errors": self._those("error "),
            "wrong results": counts["wrong results"],
            "hangs": counts["hangs"],
            "leaks": counts["leaks"],
            "daemons": counts["daemons"],
            "servers": counts["servers"],
            "tools": counts["tools"],
            "clients seen in lists": counts["clients seen in lists"],
            "commands of protocol 3": self._those("named "),
            "hostile": self._those("hostile "),
            "left out": self._those("left out: "),
            "problems": self.problems,
        }

    def _those(self, prefix: str) -> dict[str, int]:
        counts = {key.removeprefix(prefix): count for key, count in self.counts.items() if key.startswith(prefix)}
        return dict(sorted(counts.items()))
