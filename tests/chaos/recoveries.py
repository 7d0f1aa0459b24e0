"""The periods in which servers handle fatal faults: what each fault may have reached, and when that was over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import define, field

from tests.chaos.history import FOR_EVER, History, Incident, Life
from tests.chaos.schedule import DEVICES, STOPS, Containment, Kind

SLACK: Final = 2.0
"""Seconds until every process has detected an event, on a busy machine."""
NOTICED: Final = 5.0
"""Seconds after which the end of a killed executor is detected, even if its server was stopped."""


@define
class Recovery:
    """A period of overlapping faults of one user's clients; the devices and clients that they may have reached."""

    began: float
    ended: float
    devices: set[int] = field(factory=set)
    clients: set[int] = field(factory=set)
    faults: list[Incident] = field(factory=list)


def recoveries(history: History, uid: int) -> list[Recovery]:
    """Return a user's recoveries so far, in order; a recovery is over when all affected clients have gone."""
    recoveries: list[Recovery] = []
    lives = [life for life in history.lives if life.uid == uid]
    faults = [incident for incident in history.incidents if incident.kind in (Kind.CLIENT_FAULT, Kind.EXECUTOR_KILL)]
    for incident in sorted((fault for fault in faults if fault.uid == uid), key=lambda fault: fault.began):
        recovery = _recovery(history, lives, incident)
        if recoveries and recoveries[-1].ended >= recovery.began:
            last = recoveries[-1]
            last.ended = max(last.ended, recovery.ended)
            last.devices |= recovery.devices
            last.clients |= recovery.clients
            last.faults.append(incident)
        else:
            recoveries.append(recovery)
    return recoveries


def reach(lives: list[Life], device: int, since: float, until: float) -> tuple[set[int], list[Life]]:
    """Return the devices that clients may have connected with a device in a period, and these clients."""
    spread = {life.plan.number: (life, life.on_devices(since - SLACK, until)) for life in lives}
    devices, reached = {device}, {}
    while True:
        more = {context: life for context, (life, on) in spread.items() if on & devices and context not in reached}
        if not more:
            return devices, list(reached.values())
        reached |= more
        for context in more:
            devices |= spread[context][1]


def end_of_interval(incidents: Iterable[Incident], since: float, seconds: float) -> float:
    """Return when every process has had that many seconds since a time, which is later if one was stopped."""
    until = since + seconds
    for stop in sorted(
        (incident for incident in incidents if incident.kind in STOPS), key=lambda incident: incident.began
    ):
        if stop.began <= until and stop.ended >= since:
            until = max(until, stop.ended + seconds)
    return until


def find_culprit_error(lives: list[Life], incident: Incident) -> float | None:
    """Return when the culprit of a fault got an error; None if it has not."""
    for life in lives:
        if life.plan.number == incident.client:
            return next((step.ended for step in life.steps if step.code and step.ended >= incident.began), None)
    return None


def _recovery(history: History, lives: list[Life], incident: Incident) -> Recovery:
    until = _find_noticed(history, lives, incident)
    devices, clients = _find_reached(history, lives, incident, until)
    ended = max((life.ended for life in clients), default=until)
    # Then the executors are started again, or the server.
    over = FOR_EVER
    if ended != FOR_EVER:
        over = end_of_interval(history.incidents, max(ended, until), SLACK + NOTICED)
    return Recovery(incident.began, over, devices, {life.plan.number for life in clients}, [incident])


def _find_reached(
    history: History, lives: list[Life], incident: Incident, until: float
) -> tuple[set[int], list[Life]]:
    if history.containment is Containment.SERVER:
        return set(range(DEVICES)), [
            life for life in lives if life.init_began <= until and life.ended >= incident.began - SLACK
        ]
    if history.containment is Containment.CLIENT and incident.kind is Kind.CLIENT_FAULT:
        return set(), [life for life in lives if life.plan.number == incident.client]
    return reach(lives, incident.device, incident.began, until)


def _find_noticed(history: History, lives: list[Life], incident: Incident) -> float:
    """Return the time by which a fault was surely detected.

    That is some seconds after the culprit's error or end, or after the executor was killed.
    """
    if incident.kind is Kind.EXECUTOR_KILL:
        return end_of_interval(history.incidents, incident.began, NOTICED)
    met = find_culprit_error(lives, incident)
    ended = next((life.ended for life in lives if life.plan.number == incident.client), FOR_EVER)
    return end_of_interval(history.incidents, min(FOR_EVER if met is None else met, ended), SLACK)
