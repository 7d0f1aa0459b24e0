"""The history of a soak: what was done to which client and when, and what all clients reported."""

from __future__ import annotations

from typing import Any

from attrs import define, field, frozen

from tests.chaos.identity import ProcessKey
from tests.chaos.schedule import Backend, ClientPlan, Containment, Kind

FOR_EVER = float("inf")
HORIZON = 120.0
"""Seconds after which a past event has no consequences: clients live for about ten."""


CONNECTING_STEPS = ("init", "unresponsive", "open")
"""Steps in which a client of the driver's server talks with the daemon."""


@frozen
class Step:
    """A client's step and its result, the first code other than 0. Times are of the monotonic clock."""

    name: str
    began: float
    ended: float
    device: int
    """The device, -1 if there is none."""
    context: int
    """The number that the client gives its context, -1 if there is none."""
    code: int
    call: str = ""
    why: str = ""
    wrong: int = 0
    """The number of wrong values."""


@define
class Span:
    """A context: the times between which it may have existed."""

    number: int
    device: int
    began: float
    opened: float = FOR_EVER
    """The time at which the context had been made."""
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
    """Whether the soak killed it."""
    hung: bool = False
    heard: float = 0.0
    """The time of the last report on its standard output."""
    doing: str = "starting"
    attached: float = FOR_EVER
    """The time at which its cuInit had succeeded."""
    init_began: float = FOR_EVER
    """The time at which its cuInit began."""
    steps: list[Step] = field(factory=list)
    contexts: dict[int, Span] = field(factory=dict)
    complaint: str = ""
    """Its output to standard error."""
    born: int = 0
    """When its process started, in clock ticks since boot."""
    silent_until: float = 0.0
    """The time until which a server may be waiting for its first packet."""

    @property
    def process(self) -> ProcessKey:
        """Its process."""
        return ProcessKey(self.pid, self.born)

    @property
    def is_connecting(self) -> bool:
        """Whether the client may be talking with the daemon, or beginning to talk with a server."""
        return self.doing in ("starting", *CONNECTING_STEPS)

    def hear(self, report: dict[str, Any]) -> None:
        """Record a line of the client."""
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
        """Return the devices on which the client may have had a context in a period."""
        spans = self.contexts.values()
        return frozenset(
            span.device for span in spans if span.began <= until and min(span.ended, self.ended) >= since
        )


@define
class Incident:
    """An action, from before it to after it. ``pid`` and ``uid`` are the target's, if it has them.

    ``client`` is the number of the client that is the target, because another client may get the same PID.
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
    """The number that the culprit gives the context, if the action is a fault."""
    code: int = 0
    """The CUresult of a fault."""
    note: str = ""


@define
class History:
    """All clients and incidents."""

    lives: list[Life] = field(factory=list)
    incidents: list[Incident] = field(factory=list)
    containment: Containment = Containment.DEVICE
    backend: Backend = Backend.EMULATED

    def around(self, life: Life) -> History:
        """Return the part of the history that may matter to a client: what was not over long before it started."""
        since = life.started - HORIZON
        return History(
            [other for other in self.lives if other.ended >= since and other.started <= life.ended],
            [incident for incident in self.incidents if incident.ended >= since and incident.began <= life.ended],
            self.containment,
            self.backend,
        )
