"""Commands for limits: active thread percentages, memory of devices, client priorities.

Each limit has a default, with which the next server starts, and a value for the next clients of each server. The
priority is that of all later connections. Invalid values that the vendor's daemon stores (``1T``, ``abc``, an unknown
device) are refused here, on standard error; standard output stays empty, as recorded.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from attrs import evolve

from pympsd.commands.grammar import recorded
from pympsd.commands.grammar.privileges import Caller, check_one_percentage, limits_seen_by
from pympsd.commands.grammar.registry import Decision, Handler, command
from pympsd.commands.grammar.syntax import Argument, Syntax
from pympsd.commands.v2.records import find_server, limit_record
from pympsd.state_machine.limit_resolution import UnknownDevice, device_named, limits_update
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, AnswerPart, lines, refusal
from pympsd.vocabulary.identities import server_of_user
from pympsd.vocabulary.limits import BadLimit, ClientPriority, PinnedMemory, ThreadPercentage

INVALID: Final = "Invalid percentage, expected between (0.0, 100.0]"
_PERCENTAGE: Final = Argument("percentage", recorded.read_percentage, "PERCENTAGE")
_VALUE: Final = Argument("value", recorded.read_word, "VALUE")


def volta_only(what: str) -> Callable[[Handler], Handler]:
    """Let a handler add a note on standard error if no device is known to be Volta or newer.

    A refusal keeps its own text on standard error.
    """

    def make(handler: Handler) -> Handler:
        @wraps(handler)
        def answer(daemon: Daemon, caller: Caller, **arguments: Any) -> Decision:
            decision = handler(daemon, caller, **arguments)
            if (
                decision.answer is None
                or decision.answer.refused
                or any(device.is_volta_or_newer for device in daemon.devices)
            ):
                return decision
            if daemon.devices:
                note = f"{what} no effect: the devices of this daemon are older than Volta (compute capability 7.0)"
            else:
                note = f"{what} an effect on Volta or newer only; the first server reports which devices there are"
            return evolve(decision, answer=evolve(decision.answer, diagnostic=note))

        return answer

    return make


# --- active thread percentages


def _print_percentage(in_force: ThreadPercentage, note: str) -> Answer:
    return evolve(lines(str(in_force)), diagnostic=note)


def _refuse_percentage(in_force: ThreadPercentage) -> Answer:
    """Return a refusal, which logs the complaint and prints the value in force (recorded)."""
    parts = (AnswerPart(INVALID, printed=False), AnswerPart(str(in_force)))
    return Answer(parts, diagnostic=f"{INVALID}; {in_force} stays in force", refused=True)


@command(
    Syntax("set_default_active_thread_percentage", required=(_PERCENTAGE,)),
    in_protocol_3="namespace set default --server=NAME --active-thread-percentage={0}",
    owner_only=True,
)
@volta_only("active thread percentages have")
def set_default_percentage(daemon: Daemon, caller: Caller, percentage: recorded.LoosePercentage) -> Decision:
    """Set the active thread percentage that the next server starts with: above 0, up to 100."""
    if percentage.value is None:
        return Decision(_refuse_percentage(daemon.defaults.thread_percentage))
    daemon.defaults.thread_percentage = percentage.value
    return Decision(_print_percentage(percentage.value, percentage.note))


@command(Syntax("get_default_active_thread_percentage"), view=limits_seen_by)
@volta_only("active thread percentages have")
def get_default_percentage(daemon: Daemon, caller: Caller) -> Decision:
    """Print the active thread percentage that the next server starts with."""
    name = server_of_user(daemon.options.find_serving_uid(caller.uid))
    check_one_percentage(daemon, name, "get_default_active_thread_percentage")
    return _decide_percentage(daemon.defaults.thread_percentage)


@command(
    Syntax("set_active_thread_percentage", required=(recorded.PID, _PERCENTAGE)),
    in_protocol_3="server set NAME --active-thread-percentage={1}",
    owner_only=True,
)
@volta_only("active thread percentages have")
def set_percentage(daemon: Daemon, caller: Caller, pid: int, percentage: recorded.LoosePercentage) -> Decision:
    """Set the active thread percentage of new clients of the server PID."""
    server = find_server(daemon, pid)
    if percentage.value is None:
        return Decision(_refuse_percentage(server.thread_percentage))
    server.thread_percentage = percentage.value
    return Decision(_print_percentage(percentage.value, percentage.note), (limits_update(server),))


@command(Syntax("get_active_thread_percentage", required=(recorded.PID,)), view=limits_seen_by)
@volta_only("active thread percentages have")
def get_percentage(daemon: Daemon, caller: Caller, pid: int) -> Decision:
    """Print the active thread percentage of new clients of the server PID."""
    server = find_server(daemon, pid)
    check_one_percentage(daemon, server.name, "get_active_thread_percentage")
    return _decide_percentage(server.thread_percentage)


def _decide_percentage(percentage: ThreadPercentage) -> Decision:
    return Decision(lines(str(percentage)), data={"active_thread_percentage": percentage.value})


# --- memory of devices


def _refuse_device(error: UnknownDevice, *before: AnswerPart) -> Answer:
    bad_format = () if error.well_formed else (_log_only(f"Invalid device identifier format: {error.word}"),)
    return Answer((*before, *bad_format), diagnostic=str(error), refused=True)


def _log_only(text: str) -> AnswerPart:
    return AnswerPart(text, printed=False)


def _set_memory(
    daemon: Daemon, limits: dict[int, PinnedMemory], device: str, value: str, *before: AnswerPart
) -> Answer:
    """Set or remove a device's memory limit in ``limits``; return the answer, which begins with ``before``."""
    try:
        ordinal = device_named(daemon.devices, device)
        limit = PinnedMemory.parse(value)
    except UnknownDevice as error:
        return _refuse_device(error, *before)
    except BadLimit as error:
        return Answer(before, diagnostic=str(error), refused=True)
    if limit is None:
        limits.pop(ordinal, None)
    else:
        limits[ordinal] = limit
    return Answer(before)


@command(
    Syntax("set_default_device_pinned_mem_limit", required=(recorded.DEVICE, _VALUE)),
    in_protocol_3="namespace set default --server=NAME --pinned-memory-limit={0}={1}",
    owner_only=True,
)
@volta_only("device memory limits have")
def set_default_memory(daemon: Daemon, caller: Caller, device: str, value: str) -> Decision:
    """Set how much memory of DEVICE (index or UUID) each client of the next server may hold: 10G, 900M; 0 removes the
    limit.
    """
    logged = _log_only(f"set_default_device_pinned_mem_limit {device} {value}.")
    return Decision(_set_memory(daemon, daemon.defaults.memory_limits, device, value, logged))


@command(Syntax("get_default_device_pinned_mem_limit", required=(recorded.DEVICE,)), view=limits_seen_by)
@volta_only("device memory limits have")
def get_default_memory(daemon: Daemon, caller: Caller, device: str) -> Decision:
    """Print how much memory of DEVICE each client of the next server may hold; nothing if there is no limit."""
    try:
        ordinal = device_named(daemon.devices, device)
    except UnknownDevice as error:
        return Decision(_refuse_device(error))
    limit = daemon.defaults.memory_limits.get(ordinal)
    none = Answer((_log_only("No default pinned memory limit set for the device!"),))
    return Decision(none if limit is None else lines(str(limit)), data=limit_record(ordinal, limit))


@command(
    Syntax("set_device_pinned_mem_limit", required=(recorded.PID, recorded.DEVICE, _VALUE)),
    in_protocol_3="server set NAME --pinned-memory-limit={1}={2}",
    owner_only=True,
)
@volta_only("device memory limits have")
def set_memory(daemon: Daemon, caller: Caller, pid: int, device: str, value: str) -> Decision:
    """Set how much memory of DEVICE each new client of the server PID may hold: 10G, 900M; 0 removes the limit."""
    server = find_server(daemon, pid)
    answer = _set_memory(daemon, server.memory_limits, device, value)
    return Decision(answer, () if answer.refused else (limits_update(server),))


@command(Syntax("get_device_pinned_mem_limit", required=(recorded.PID, recorded.DEVICE)), view=limits_seen_by)
@volta_only("device memory limits have")
def get_memory(daemon: Daemon, caller: Caller, pid: int, device: str) -> Decision:
    """Print how much memory of DEVICE each new client of the server PID may hold; nothing if there is no limit."""
    server = find_server(daemon, pid)
    ordinals = daemon.ordinals_of(server)
    try:
        ordinal = device_named([daemon.devices[index] for index in ordinals], device)
    except UnknownDevice as error:
        return Decision(_refuse_device(error))
    limit = server.memory_limits.get(ordinals[ordinal])
    return Decision(lines(str(limit)) if limit is not None else lines(), data=limit_record(ordinal, limit))


# --- client priorities


@command(
    Syntax("set_default_client_priority", required=(Argument("level", recorded.read_priority, "0|1"),)),
    in_protocol_3="namespace set default --server=NAME --client-priority={0}",
    owner_only=True,
)
def set_default_client_priority(daemon: Daemon, caller: Caller, level: int | None) -> Decision:
    """Set the priority of new clients: 0 is normal, 1 below normal."""
    if level is None:
        # Recorded: nothing is printed. The vendor's daemon reads the word as 0; here nothing changes.
        return Decision(
            Answer(
                diagnostic=f"{recorded.PRIORITIES}; {daemon.defaults.client_priority} stays in force", refused=True
            )
        )
    try:
        daemon.defaults.client_priority = ClientPriority(level)
    except BadLimit:
        return Decision(refusal("Invalid priority value - must be 0 or 1!"))
    return Decision(lines())


@command(Syntax("get_default_client_priority"), view=limits_seen_by)
def get_default_client_priority(daemon: Daemon, caller: Caller) -> Decision:
    """Print the priority of new clients."""
    level = daemon.defaults.client_priority
    return Decision(lines(str(level)), data={"client_priority": level.level})
