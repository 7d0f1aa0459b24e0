"""Finds steps that succeed in contexts that must have ended, with the reason why they must have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.chaos.history import History, Incident, Life, Span, Step
from tests.chaos.recoveries import end_of_interval, find_culprit_error
from tests.chaos.schedule import Backend, Containment, Kind

ILLEGAL_ADDRESS, MISALIGNED_ADDRESS, LAUNCH_FAILED = 700, 716, 719
RPC_FAILURE, CLIENT_TERMINATED = 806, 810
FATAL: Final = frozenset({ILLEGAL_ADDRESS, MISALIGNED_ADDRESS, LAUNCH_FAILED})
CONTAINED_SECONDS: Final = 4.0
"""Seconds after a fault is detected until everything that it reaches has ended, on a busy machine."""
STICKY: Final = FATAL | {RPC_FAILURE, CLIENT_TERMINATED}
"""Errors after which a context returns only errors; after 806, all contexts of the process.

(A client of the fake driver can have contexts of the next server, so there 806 ends only the one context.)
"""


def find_earlier_end(history: History, life: Life, step: Step) -> str | None:
    """Return why a step's context must have ended before the step began; None if it need not have."""
    span = life.contexts.get(step.context)
    if span is None or step.name in ("open", "close"):
        return None
    return next(_ends(history, life, step, span), None)


def _ends(history: History, life: Life, step: Step, span: Span) -> Iterator[str]:
    for earlier in life.steps:
        if not earlier.code or earlier.ended > step.began:
            continue
        if earlier.context == step.context and earlier.code in STICKY:
            yield f"a context that answered with {earlier.code} at {earlier.ended:.3f}"
        elif earlier.code == RPC_FAILURE and history.backend is Backend.EMULATED:
            yield f"a process that learnt of its server's end at {earlier.ended:.3f}"
        elif earlier.code in FATAL and _all_of_it_ends(history) and _is_past(history, earlier.ended, step):
            yield f"a process that a fatal fault ({earlier.code}) had reached at {earlier.ended:.3f}"
    for incident in history.incidents:
        if span.opened < incident.began < step.began:
            yield from _ends_by(history, life, step, span, incident)


def _ends_by(history: History, life: Life, step: Step, span: Span, incident: Incident) -> Iterator[str]:
    if incident.kind is Kind.CLIENT_TERMINATE:
        done = incident.client == life.plan.number and incident.note == "0"
        if done and step.began > incident.ended:
            yield f"a context terminated at {incident.ended:.3f}"
        return
    met = _find_met(history, life, span, incident)
    if met is not None and _is_past(history, met, step):
        yield f"a context that a fatal fault ({incident.kind}) at {incident.began:.3f} must have reached"


def _find_met(history: History, life: Life, span: Span, incident: Incident) -> float | None:
    """Return when a fault was detected, if it surely reaches a context; None if it need not."""
    if incident.uid != life.uid:
        return None
    same_device = incident.device == span.device
    if incident.kind is Kind.EXECUTOR_KILL and same_device:
        return incident.ended
    if incident.kind is Kind.CLIENT_FAULT and _all_of_it_ends(history):
        reached = same_device or history.containment is Containment.SERVER
        return _culprits_error(history, incident) if reached else None
    return None


def _culprits_error(history: History, incident: Incident) -> float | None:
    """Return when the culprit got the error of its fault; None if it got none, or another error first."""
    met = find_culprit_error(history.lives, incident)
    codes = {
        step.code for life in history.lives for step in life.steps
        if life.plan.number == incident.client and step.ended == met and step.context == incident.context
    }  # fmt: skip
    return met if codes & FATAL else None


def _all_of_it_ends(history: History) -> bool:
    """Whether a fault in one context of a process ends all contexts of the process."""
    return history.containment is not Containment.CLIENT


def _is_past(history: History, met: float, step: Step) -> bool:
    return step.began > end_of_interval(history.incidents, met, CONTAINED_SECONDS)
