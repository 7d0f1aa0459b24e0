"""The table of the errors that a client may get, and the judge that compares every step of a client with it.

The sources are the contract (MPS documents 2.3.3.2 and 4.1.2.8 among them) and the recorded sessions. An error that
no action explains is a failure, and so is a success in a context that must have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum
from typing import Final

from tests.chaos.ended_contexts import (
    CLIENT_TERMINATED,
    ILLEGAL_ADDRESS,
    LAUNCH_FAILED,
    MISALIGNED_ADDRESS,
    RPC_FAILURE,
    find_earlier_end,
)
from tests.chaos.history import CONNECTING_STEPS, FOR_EVER, History, Incident, Life, Step
from tests.chaos.recoveries import SLACK, Recovery, recoveries
from tests.chaos.schedule import STOPS, TAKEOVER, Backend, Containment, Kind

HANG_SECONDS: Final = 60.0
"""The longest time between two reports of a client, in addition to the time for which a process was stopped."""
STARTS: Final = 15.0
"""Seconds for which a new daemon may wait for the servers of the previous one."""

NO_DEVICE, CONNECTION_FAILED, SERVER_NOT_READY = 100, 805, 807
FIRST_ANSWER_SECONDS: Final = 0.8
"""Seconds; the daemon may treat a client that is stopped for longer as silent (after a second)."""
TEARDOWN_SECONDS: Final = 4.0
"""Seconds; an executor that is stopped for longer may be killed while it tears contexts down (it has 5 s)."""
RETURN_SECONDS: Final = 9.0
"""Seconds; a server that is stopped for longer may be killed while a new daemon waits for it (for 10 s)."""

FAULT_CODES: Final = {
    "wild_store": ILLEGAL_ADDRESS,
    "wild_load": ILLEGAL_ADDRESS,
    "misaligned": MISALIGNED_ADDRESS,
    "trap": LAUNCH_FAILED,
}


class Role(Enum):
    """The relation of a client to an incident."""

    VICTIM = "the process it was done to"
    SILENCED = "made silent where it had to answer its server"
    SAME_DEVICE = "in a context on the very device"
    CONNECTED = "on a device that shared clients connect with it"
    SERVED = "served by the server it was done to"
    CONNECTING = "in cuInit during it"
    OPENING = "asking for a context on an affected device during it"


CULPRITS: Final = -1
"""Stands in the table for the code of the culprit's fault."""

TABLE: Final[dict[Kind, dict[Role, frozenset[int]]]] = {
    Kind.CLIENT_KILL: {},
    Kind.CLIENT_STOP: {},
    Kind.CLIENT_FAULT: {
        Role.VICTIM: frozenset({CULPRITS}),
        Role.SAME_DEVICE: frozenset({CULPRITS}),
        Role.CONNECTED: frozenset({LAUNCH_FAILED}),
        Role.CONNECTING: frozenset({SERVER_NOT_READY}),
        Role.OPENING: frozenset({SERVER_NOT_READY}),
    },
    Kind.CLIENT_TERMINATE: {Role.VICTIM: frozenset({CLIENT_TERMINATED})},
    Kind.EXECUTOR_KILL: {
        Role.SAME_DEVICE: frozenset({LAUNCH_FAILED}),
        Role.CONNECTED: frozenset({LAUNCH_FAILED}),
        Role.CONNECTING: frozenset({SERVER_NOT_READY}),
        Role.OPENING: frozenset({SERVER_NOT_READY}),
    },
    Kind.EXECUTOR_STOP: {},
    Kind.SERVER_KILL: {
        Role.SERVED: frozenset({RPC_FAILURE}),
        Role.CONNECTING: frozenset({CONNECTION_FAILED}),
    },
    Kind.SERVER_STOP: {},
    Kind.DAEMON_STOP: {},
    # Clients get no error, however long there is no daemon: the keeper holds its sockets, servers keep running, and
    # new clients wait.
    Kind.DAEMON_KILL: {},
    Kind.DAEMON_REPLACE: {},
    Kind.KEEPER_KILL: {},
    Kind.KEEPER_STOP: {},
    Kind.BOTH_KILL: {
        Role.SERVED: frozenset({RPC_FAILURE}),
        Role.CONNECTING: frozenset({CONNECTION_FAILED}),
    },
    Kind.DAEMON_TERM: {
        Role.SERVED: frozenset({RPC_FAILURE}),
        Role.CONNECTING: frozenset({CONNECTION_FAILED}),
    },
    Kind.QUIT: {
        Role.SERVED: frozenset({RPC_FAILURE}),
        Role.CONNECTING: frozenset({CONNECTION_FAILED}),
    },
    Kind.SHUTDOWN_SERVER: {},
    Kind.SHUTDOWN_SERVER_FORCED: {
        Role.SERVED: frozenset({RPC_FAILURE}),
        Role.CONNECTING: frozenset({CONNECTION_FAILED}),
    },
    Kind.START_SERVER: {},
    Kind.DRAIN: {},
    Kind.SERVER_MISBEHAVES: {},
    Kind.LISTS: {},
    Kind.QUERIES: {},
    Kind.LIMITS: {},
}
"""Kind of chaos -> role -> the CUresults that it may get, on devices from Volta on that do not contain faults."""
WITHIN_THE_CLIENT: Final = {Role.VICTIM: frozenset({CULPRITS})}
"""The results of a client's fault on a machine that contains faults: the fault reaches only its context."""
THE_WHOLE_SERVER: Final = {
    **TABLE[Kind.CLIENT_FAULT],
    # A client may see the server's end before it gets the error of the fault.
    Role.SERVED: frozenset({LAUNCH_FAILED, RPC_FAILURE}),
    Role.CONNECTING: frozenset({SERVER_NOT_READY, CONNECTION_FAILED}),
    Role.OPENING: frozenset({SERVER_NOT_READY, RPC_FAILURE}),
}
"""The results of a client's fault before Volta: like the loss of an executor, it ends the server and all clients."""
_CUT_OFF: Final = {
    Role.SERVED: frozenset({CONNECTION_FAILED, RPC_FAILURE}),
    Role.CONNECTING: frozenset({CONNECTION_FAILED, RPC_FAILURE}),
}
_NO_DAEMON: Final = {
    Role.SERVED: _CUT_OFF[Role.SERVED] | {NO_DEVICE},
    Role.CONNECTING: _CUT_OFF[Role.CONNECTING] | {NO_DEVICE},
}
VENDOR_TABLE: Final[dict[Kind, dict[Role, frozenset[int]]]] = {
    # The clients of every device that clients connect with the culprit's get the same code.
    Kind.CLIENT_FAULT: {
        **dict.fromkeys((Role.VICTIM, Role.SAME_DEVICE, Role.CONNECTED), frozenset({CULPRITS})),
        **dict.fromkeys((Role.CONNECTING, Role.OPENING), frozenset({SERVER_NOT_READY})),
    },
    Kind.CLIENT_TERMINATE: TABLE[Kind.CLIENT_TERMINATE],
    # The daemon frees the server from a silent client (docs/decisions/013).
    Kind.CLIENT_STOP: {Role.SILENCED: frozenset({RPC_FAILURE})},
    Kind.SERVER_KILL: _CUT_OFF,
    Kind.BOTH_KILL: _NO_DAEMON,
    Kind.DAEMON_TERM: _NO_DAEMON,
    Kind.QUIT: _NO_DAEMON,
    Kind.SHUTDOWN_SERVER_FORCED: _CUT_OFF,
    Kind.SERVER_MISBEHAVES: _CUT_OFF,
}
"""The same as TABLE for the fake driver's server and clients. Kinds that are not listed must not affect clients.

These clients see the end of a server while they connect to it, and the end of the daemon when they make a context.
"""
KILLED_SERVER: Final = TABLE[Kind.SERVER_KILL]
FAULTS: Final = frozenset({Kind.CLIENT_FAULT, Kind.EXECUTOR_KILL})


def problems(history: History, life: Life) -> Iterator[str]:
    """Yield what is wrong with a client that has ended, each in a sentence."""
    name = f"client {life.plan.number} (PID {life.pid}, uid {life.uid}, {life.plan.work})"
    if life.hung:
        yield f"{name} hangs in {life.doing!r}"
    elif not life.killed and life.status != 0:
        yield f"{name} ended with status {life.status} in {life.doing!r}: {life.complaint.strip()[-500:]}"
    history = history.around(life)
    repairs = recoveries(history, life.uid)
    for step in life.steps:
        if step.wrong:
            yield f"{name}: {step.wrong} wrong in {step.name!r} at {step.ended:.3f}"
        if step.code and not explanation(history, repairs, life, step):
            yield f"{name}: {step.code} of {step.call} in {step.name!r} at {step.ended:.3f} has no cause ({step.why})"
        elif not step.code and (why := find_earlier_end(history, life, step)) is not None:
            yield f"{name}: {step.name!r} at {step.began:.3f} continues in {why}"


def explanation(history: History, repairs: list[Recovery], life: Life, step: Step) -> Incident | None:
    """Return the action that may have caused a step's error; None if there is none."""
    for incident in history.incidents:
        if incident.began > step.ended:
            continue
        table = allowances(history, incident)
        for role in _roles(history, incident, repairs, life, step):
            allowed = table.get(role, frozenset())
            if step.code in {incident.code if code == CULPRITS else code for code in allowed}:
                return incident
    return None


def allowances(history: History, incident: Incident) -> dict[Role, frozenset[int]]:
    """Return the CUresults that an incident allows by role, on this machine and with the other incidents."""
    if history.backend is Backend.VENDOR:
        return VENDOR_TABLE.get(incident.kind, {})
    if incident.kind is Kind.SERVER_STOP and _lasts_over(incident, RETURN_SECONDS, TAKEOVER, history):
        return KILLED_SERVER
    if incident.kind in FAULTS and history.containment is Containment.SERVER:
        return THE_WHOLE_SERVER
    if incident.kind is Kind.CLIENT_FAULT and history.containment is Containment.CLIENT:
        return WITHIN_THE_CLIENT
    if incident.kind is Kind.CLIENT_FAULT and any(
        incident.kind is Kind.EXECUTOR_STOP and _lasts_over(incident, TEARDOWN_SECONDS, {Kind.CLIENT_FAULT}, history)
        for incident in history.incidents
    ):
        return {**TABLE[incident.kind], Role.SAME_DEVICE: frozenset({CULPRITS, LAUNCH_FAILED})}
    return TABLE[incident.kind]


def _lasts_over(stop: Incident, seconds: float, kinds: Collection[Kind], history: History) -> bool:
    """Whether a stop lasted that long, and one of those kinds began within it or shortly before."""
    return stop.ended - stop.began > seconds and any(
        incident.kind in kinds
        and incident.uid in (stop.uid, -1)
        and stop.began - STARTS <= incident.began <= stop.ended
        for incident in history.incidents
    )


def _roles(history: History, incident: Incident, repairs: list[Recovery], life: Life, step: Step) -> Iterator[Role]:
    is_init = step.name in ("init", "unresponsive")
    if incident.kind in FAULTS:
        if incident.uid == life.uid:
            yield from _roles_in_fault(history, incident, repairs, life, step)
        return
    if incident.client == life.plan.number and incident.kind is Kind.CLIENT_TERMINATE:
        yield Role.VICTIM
    if step.name in CONNECTING_STEPS and _silences(incident, life) and _overlap(incident, step):
        yield Role.SILENCED
    if is_init and _overlap(incident, step) and _is_connecting(incident, life):
        yield Role.CONNECTING
    # A client is served from the beginning of its cuInit, because it may be stopped before it reports the result.
    if not is_init and incident.uid in (life.uid, -1) and life.init_began <= incident.ended:
        yield Role.SERVED


def _roles_in_fault(
    history: History, incident: Incident, repairs: list[Recovery], life: Life, step: Step
) -> Iterator[Role]:
    recovery = next(entry for entry in repairs if incident in entry.faults)
    if step.name in ("init", "unresponsive"):
        if step.began <= recovery.ended and step.ended >= incident.began:
            yield Role.CONNECTING
        return
    if life.plan.number in recovery.clients:
        own = incident.client == life.plan.number and incident.kind is Kind.CLIENT_FAULT
        if own and (history.containment is not Containment.CLIENT or incident.context == step.context):
            yield Role.VICTIM
        # A process that a fault has reached gets its sticky error instead of a new context.
        if step.device == incident.device or step.name == "open" or _has_one_error(history, incident, life, step):
            yield Role.SAME_DEVICE
        if step.device != incident.device or step.name == "open":
            yield Role.CONNECTED
        if history.containment is Containment.SERVER:
            yield Role.SERVED
    # The driver's server refuses all clients while it handles a fault, whatever the device.
    refuses = step.device in recovery.devices or history.backend is Backend.VENDOR
    if step.name == "open" and refuses and step.began <= recovery.ended:
        yield Role.OPENING


def _has_one_error(history: History, incident: Incident, life: Life, step: Step) -> bool:
    """Whether all contexts of a process may get the error of a fault on one device.

    The last message of a server that ends has one error for all of them.
    """
    devices = life.on_devices(incident.began - SLACK, step.ended)
    return history.containment is Containment.SERVER and incident.device in devices


def _silences(incident: Incident, life: Life) -> bool:
    return incident.client == life.plan.number and incident.ended - incident.began > FIRST_ANSWER_SECONDS


def _overlap(incident: Incident, step: Step) -> bool:
    return step.began <= incident.ended and step.ended >= incident.began


def _is_connecting(incident: Incident, life: Life) -> bool:
    return incident.uid in (life.uid, -1)


def remaining_seconds(history: History, life: Life, now: float) -> float:
    """Return for how many more seconds a client may report nothing."""
    since = max(life.heard, life.started)
    stopped = sum(
        min(incident.ended, now) - max(incident.began, since)
        for incident in history.incidents
        if incident.kind in STOPS and min(incident.ended, now) > since and incident.ended != FOR_EVER
    )
    return HANG_SECONDS + stopped - (now - since)
