"""Which errors a client may see: one table, and the judge that holds every step of a client against it.

The sources are the contract (MPS documents 2.3.3.2 and 4.1.2.8 among them) and what the recorded sessions show. What
is not in the table is a failure: an error that nobody's doing explains, a success where there must be none.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from .episodes import RETRY_SECONDS, Episode, episodes
from .history import FOR_EVER, History, Incident, Life, Step
from .schedule import Kind

HANG_SECONDS: Final = 60.0
"""Every client has an answer after so long, whatever happened; what it or its server was stopped for comes on top."""

OUT_OF_MEMORY, ILLEGAL_ADDRESS, MISALIGNED_ADDRESS, LAUNCH_FAILED = 2, 700, 716, 719
CONNECTION_FAILED, RPC_FAILURE, SERVER_NOT_READY, CLIENT_TERMINATED = 805, 806, 807, 810

FAULT_CODES: Final = {
    "wild_store": ILLEGAL_ADDRESS,
    "wild_load": ILLEGAL_ADDRESS,
    "misaligned": MISALIGNED_ADDRESS,
    "trap": LAUNCH_FAILED,
}


class Role(Enum):
    """What a client is to an incident."""

    VICTIM = "the process it was done to"
    SAME_DEVICE = "in a context on the very device"
    CONNECTED = "on a device that shared clients connect with it"
    SERVED = "served by the server it was done to"
    KNOCKING = "in cuInit meanwhile"
    OPENING = "asking for a context on an affected device meanwhile"


CULPRITS: Final = -1
"""In the table: the culprit's own code."""

TABLE: Final[dict[Kind, dict[Role, frozenset[int]]]] = {
    Kind.CLIENT_KILL: {},
    Kind.CLIENT_STOP: {},
    Kind.CLIENT_FAULT: {
        Role.VICTIM: frozenset({CULPRITS}),
        Role.SAME_DEVICE: frozenset({CULPRITS}),
        Role.CONNECTED: frozenset({LAUNCH_FAILED}),
        Role.KNOCKING: frozenset({SERVER_NOT_READY}),
        Role.OPENING: frozenset({SERVER_NOT_READY}),
    },
    Kind.CLIENT_TERMINATE: {Role.VICTIM: frozenset({CLIENT_TERMINATED})},
    Kind.EXECUTOR_KILL: {
        Role.SAME_DEVICE: frozenset({LAUNCH_FAILED}),
        Role.CONNECTED: frozenset({LAUNCH_FAILED}),
        Role.KNOCKING: frozenset({SERVER_NOT_READY}),
        Role.OPENING: frozenset({SERVER_NOT_READY}),
    },
    Kind.EXECUTOR_STOP: {},
    Kind.SERVER_KILL: {
        Role.SERVED: frozenset({RPC_FAILURE}),
        Role.KNOCKING: frozenset({CONNECTION_FAILED}),
    },
    Kind.SERVER_STOP: {},
    Kind.DAEMON_STOP: {},
    # Adopted, all go on; a client that knocks tries again for some time before it gives up.
    Kind.DAEMON_KILL: {Role.KNOCKING: frozenset({CONNECTION_FAILED})},
    Kind.DAEMON_REPLACE: {Role.KNOCKING: frozenset({CONNECTION_FAILED})},
    Kind.DAEMON_TERM: {
        Role.SERVED: frozenset({RPC_FAILURE}),
        Role.KNOCKING: frozenset({CONNECTION_FAILED}),
    },
    Kind.QUIT: {
        Role.SERVED: frozenset({RPC_FAILURE}),
        Role.KNOCKING: frozenset({CONNECTION_FAILED}),
    },
    Kind.SHUTDOWN_SERVER: {},
    Kind.SHUTDOWN_SERVER_FORCED: {
        Role.SERVED: frozenset({RPC_FAILURE}),
        Role.KNOCKING: frozenset({CONNECTION_FAILED}),
    },
    Kind.START_SERVER: {},
    Kind.QUERIES: {},
    Kind.LIMITS: {},
}
"""Kind of chaos -> who may get which CUresults of it."""
STOPS: Final = frozenset({Kind.CLIENT_STOP, Kind.EXECUTOR_STOP, Kind.SERVER_STOP, Kind.DAEMON_STOP})
FAULTS: Final = frozenset({Kind.CLIENT_FAULT, Kind.EXECUTOR_KILL})


def problems(history: History, life: Life) -> Iterator[str]:
    """Yield what is wrong with a client that has ended, each in a sentence."""
    who = f"client {life.plan.number} (PID {life.pid}, uid {life.uid}, {life.plan.work})"
    if life.hung:
        yield f"{who} hangs in {life.doing!r}"
    elif not life.killed and life.status != 0:
        yield f"{who} ended with status {life.status} in {life.doing!r}: {life.complaint.strip()[-500:]}"
    history = history.around(life)
    found = episodes(history, life.uid)
    for step in life.steps:
        if step.wrong:
            yield f"{who}: {step.wrong} wrong in {step.name!r} at {step.ended:.3f}"
        if step.code and not explanation(history, found, life, step):
            yield f"{who}: {step.code} of {step.call} in {step.name!r} at {step.ended:.3f} has no cause ({step.why})"
        elif not step.code and (ended := _ended_before(history, life, step)) is not None:
            yield f"{who}: {step.name!r} at {step.began:.3f} goes on in a context terminated at {ended:.3f}"


def explanation(history: History, found: list[Episode], life: Life, step: Step) -> Incident | None:
    """Return what was done that a step's error may come of; None: nothing."""
    for incident in history.incidents:
        if incident.began > step.ended:
            continue
        for role in _roles(incident, found, life, step):
            allowed = TABLE[incident.kind].get(role, frozenset())
            if step.code in {incident.code if one == CULPRITS else one for one in allowed}:
                return incident
    return None


def _roles(incident: Incident, found: list[Episode], life: Life, step: Step) -> Iterator[Role]:
    is_init = step.name == "init"
    if incident.kind in FAULTS:
        if incident.uid == life.uid:
            yield from _roles_in_fault(incident, found, life, step)
        return
    if incident.client == life.plan.number and incident.kind is Kind.CLIENT_TERMINATE:
        yield Role.VICTIM
    if is_init and _overlap(incident, step) and _is_at_the_door(incident, life):
        yield Role.KNOCKING
    if not is_init and incident.uid in (life.uid, -1) and life.attached <= incident.ended:
        yield Role.SERVED


def _roles_in_fault(incident: Incident, found: list[Episode], life: Life, step: Step) -> Iterator[Role]:
    episode = next(each for each in found if incident in each.faults)
    if step.name == "init":
        if step.began <= episode.ended and step.ended >= incident.began:
            yield Role.KNOCKING
        return
    if life.plan.number in episode.clients:
        if incident.client == life.plan.number and incident.kind is Kind.CLIENT_FAULT:
            yield Role.VICTIM
        # A process that a fault has reached gets no context any more: its sticky error instead.
        if step.device == incident.device or step.name == "open":
            yield Role.SAME_DEVICE
        yield Role.CONNECTED
    if step.name == "open" and step.device in episode.devices and step.began <= episode.ended:
        yield Role.OPENING


def _overlap(incident: Incident, step: Step) -> bool:
    return step.began <= incident.ended and step.ended >= incident.began


def _is_at_the_door(incident: Incident, life: Life) -> bool:
    if incident.kind in (Kind.DAEMON_KILL, Kind.DAEMON_REPLACE):
        return incident.ended - incident.began > RETRY_SECONDS
    return incident.uid in (life.uid, -1)


def _ended_before(history: History, life: Life, step: Step) -> float | None:
    """Return when the step's context was terminated for sure, if it was."""
    span = life.contexts.get(step.context)
    if span is None or step.name in ("open", "close"):
        return None
    for incident in history.incidents:
        done = incident.kind is Kind.CLIENT_TERMINATE and incident.client == life.plan.number and incident.note == "0"
        if done and span.opened < incident.began and step.began > incident.ended:
            return incident.ended
    return None


def patience(history: History, life: Life, now: float) -> float:
    """Return how many seconds a client may still be silent."""
    since = max(life.heard, life.started)
    stopped = sum(
        min(incident.ended, now) - max(incident.began, since)
        for incident in history.incidents
        if incident.kind in STOPS and min(incident.ended, now) > since and incident.ended != FOR_EVER
    )
    return HANG_SECONDS + stopped - (now - since)
