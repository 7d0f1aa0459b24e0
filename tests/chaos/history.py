"""What happened in a soak, as values: what was done to which client and when, and what all clients reported."""

from __future__ import annotations

from typing import Any

from attrs import define, field, frozen

from tests.chaos.identity import ProcessKey
from tests.chaos.schedule import Backend, ClientPlan, Containment, Kind

FOR_EVER = float("inf")
HORIZON = 120.0
"""Seconds after which nothing that was over has a consequence any more: clients live for some ten."""


CONNECTING_STEPS = ("init", "unresponsive", "open")
"""Steps in which a client of the driver's talks with the daemon."""


@frozen
class Step:
    """What a client did and got: its result is the first code that was not 0. Times are of the monotonic clock."""

    name: str
    began: float
    ended: float
    device: int
    """-1: of no device."""
    context: int
    """The client's own number of its context, -1: of none."""
    code: int
    call: str = ""
    why: str = ""
    wrong: int = 0
    """How many values differed from what they had to be."""


@define
class Span:
    """A context: the times between which it may have been there."""

    number: int
    device: int
    began: float
    opened: float = FOR_EVER
    """When its cuInit was answered."""
    ended: float = FOR_EVER


@define
class Life:
    """A client from its start to its end."""

    plan: ClientPlan
    pid: int
    uid: int
    started: float
    ended: float = FOR_EVER
    status: int | None = None
    killed: bool = False
    """Whether it was this tool that ended it."""
    hung: bool = False
    heard: float = 0.0
    """When it said something last."""
    doing: str = "starting"
    attached: float = FOR_EVER
    """When its cuInit had succeeded."""
    init_began: float = FOR_EVER
    """When its cuInit began."""
    steps: list[Step] = field(factory=list)
    contexts: dict[int, Span] = field(factory=dict)
    complaint: str = ""
    """What it wrote to its standard error."""
    born: int = 0
    """When its process started, in clock ticks since boot."""
    silent_until: float = 0.0
    """Until then a server may be waiting for its first words."""

    @property
    def process(self) -> ProcessKey:
        """Its process."""
        return ProcessKey(self.pid, self.born)

    @property
    def is_connecting(self) -> bool:
        """Whether it may be talking with the daemon, or beginning to talk with a server."""
        return self.doing in ("starting", *CONNECTING_STEPS)

    def hear(self, report: dict[str, Any]) -> None:
        """Take in a line of the client's."""
        self.heard = report["t"]
        self.doing = report["doing"]
        if report["doing"] in ("init", "unresponsive"):
            self.init_began = report["t"]
        if report["doing"] == "open":
            self.contexts[report["context"]] = Span(report["context"], report["device"], report["t"])
        if "step" in report:
            self._done(Step(ended=report["t"], **report["step"]))

    def _done(self, step: Step) -> None:
        self.steps.append(step)
        if step.name == "init" and not step.code:
            self.attached = step.ended
        span = self.contexts.get(step.context)
        if span is None:
            return
        if step.name == "open":
            if step.code:
                span.ended = step.ended
            else:
                span.opened = step.ended
        if step.name == "close":
            span.ended = step.ended

    def on_devices(self, since: float, until: float) -> frozenset[int]:
        """Return the devices on which it may have had a context in a time."""
        spans = self.contexts.values()
        return frozenset(
            span.device for span in spans if span.began <= until and min(span.ended, self.ended) >= since
        )


@define
class Incident:
    """Something that was done, from before it to after it. ``pid`` and ``uid`` of the target, where it has them.

    ``client`` is the number of a client it was done to (a PID may come again).
    """

    kind: Kind
    number: int
    began: float
    ended: float = FOR_EVER
    pid: int = 0
    client: int = 0
    uid: int = -1
    device: int = -1
    context: int = -1
    """Of a fault: the culprit's own number of the context."""
    code: int = 0
    """A fault's CUresult."""
    note: str = ""


@define
class History:
    """All of it."""

    lives: list[Life] = field(factory=list)
    incidents: list[Incident] = field(factory=list)
    containment: Containment = Containment.DEVICE
    backend: Backend = Backend.EMULATED

    def around(self, life: Life) -> History:
        """Return what may matter to a client: in an hour most of it has long been over."""
        since = life.started - HORIZON
        return History(
            [other for other in self.lives if other.ended >= since and other.started <= life.ended],
            [incident for incident in self.incidents if incident.ended >= since and incident.began <= life.ended],
            self.containment,
            self.backend,
        )
