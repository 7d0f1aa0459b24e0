"""Commands for pinned device memory limits: the defaults of the next server, and each server's own.

Invalid values that the vendor stores (``1T``, ``abc``, an unknown device) are refused here, on standard error;
standard output stays as recorded, empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from pympsd.commands.arguments import read_loose_pid
from pympsd.commands.privileges import may_change_settings
from pympsd.commands.registry import Caller, Decision, command
from pympsd.commands.v2.records import limit_record
from pympsd.commands.volta import volta_only
from pympsd.state_machine.limit_resolution import UnknownDevice, device_named, limits_update
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, Part, lines, refusal
from pympsd.vocabulary.limits import BadLimit, PinnedMemory


@frozen
class _Setting:
    """The device and limit of a set command, as given."""

    device: str
    value: str


def _format(usage: str) -> Answer:
    part = Part("Invalid command format.", printed=False)
    return Answer((part,), diagnostic=f"Invalid command format: {usage}", refused=True)


def _default_setting(words: Sequence[str]) -> _Setting | Answer:
    if len(words) < 2:
        return _format("set_default_device_pinned_mem_limit DEVICE VALUE, such as 0 10G")
    return _Setting(words[0], words[1])


def _default_device(words: Sequence[str]) -> str | Answer:
    return words[0] if words else _format("get_default_device_pinned_mem_limit DEVICE")


def _server_setting(words: Sequence[str]) -> tuple[int, _Setting] | Answer:
    if len(words) < 3:
        return _format("set_device_pinned_mem_limit PID DEVICE VALUE, such as 1024 0 900M")
    pid = read_loose_pid(words)
    return pid if isinstance(pid, Answer) else (pid, _Setting(words[1], words[2]))


def _server_device(words: Sequence[str]) -> tuple[int, str] | Answer:
    if len(words) < 2:
        return _format("get_device_pinned_mem_limit PID DEVICE")
    pid = read_loose_pid(words)
    return pid if isinstance(pid, Answer) else (pid, words[1])


def _unknown(error: UnknownDevice, *before: Part) -> Answer:
    bad_format = () if error.well_formed else (_logged(f"Invalid device identifier format: {error.word}"),)
    return Answer((*before, *bad_format), diagnostic=str(error), refused=True)


def _logged(text: str) -> Part:
    return Part(text, printed=False)


def _set(daemon: Daemon, limits: dict[int, PinnedMemory], setting: _Setting, *before: Part) -> Answer:
    try:
        ordinal = device_named(daemon.devices, setting.device)
        limit = PinnedMemory.parse(setting.value)
    except UnknownDevice as error:
        return _unknown(error, *before)
    except BadLimit as error:
        return Answer(before, diagnostic=str(error), refused=True)
    if limit is None:
        limits.pop(ordinal, None)
    else:
        limits[ordinal] = limit
    return Answer(before)


@command("set_default_device_pinned_mem_limit", setting=_default_setting)
@volta_only("device memory limits have")
def set_default(daemon: Daemon, caller: Caller, setting: _Setting) -> Decision:
    """Set how much memory of DEVICE (ordinal or UUID) each client of the next server may hold: 10G, 900M, 0: all."""
    if (denied := may_change_settings(daemon, caller)) is not None:
        return Decision(denied)
    logged = _logged(f"set_default_device_pinned_mem_limit {setting.device} {setting.value}.")
    return Decision(_set(daemon, daemon.defaults.memory_limits, setting, logged))


@command("get_default_device_pinned_mem_limit", takes=r"\S+", device=_default_device)
@volta_only("device memory limits have")
def get_default(daemon: Daemon, caller: Caller, device: str) -> Decision:
    """Print how much memory of DEVICE each client of the next server may hold; nothing when there is no limit."""
    try:
        ordinal = device_named(daemon.devices, device)
    except UnknownDevice as error:
        return Decision(_unknown(error))
    limit = daemon.defaults.memory_limits.get(ordinal)
    none = Answer((_logged("No default pinned memory limit set for the device!"),))
    return Decision(none if limit is None else lines(str(limit)), data=limit_record(ordinal, limit))


@command("set_device_pinned_mem_limit", given=_server_setting)
@volta_only("device memory limits have")
def set_of_server(daemon: Daemon, caller: Caller, given: tuple[int, _Setting]) -> Decision:
    """Set how much memory of DEVICE each later client of the server PID may hold: 10G, 900M, 0: all."""
    if (denied := may_change_settings(daemon, caller)) is not None:
        return Decision(denied)
    pid, setting = given
    server = daemon.server_by_pid(pid)
    if server is None:
        return Decision(refusal(f"Server {pid} not found"))
    answer = _set(daemon, server.memory_limits, setting)
    return Decision(answer, () if answer.refused else (limits_update(server),))


@command("get_device_pinned_mem_limit", takes=r"\S+ \S+", given=_server_device)
@volta_only("device memory limits have")
def get_of_server(daemon: Daemon, caller: Caller, given: tuple[int, str]) -> Decision:
    """Print how much memory of DEVICE each later client of the server PID may hold; nothing when not limited."""
    pid, device = given
    server = daemon.server_by_pid(pid)
    if server is None:
        return Decision(refusal(f"Server {pid} not found"))
    ordinals = daemon.ordinals_of(server)
    try:
        shown = device_named([daemon.devices[ordinal] for ordinal in ordinals], device)
    except UnknownDevice as error:
        return Decision(_unknown(error))
    limit = server.memory_limits.get(ordinals[shown])
    return Decision(lines(str(limit)) if limit is not None else lines(), data=limit_record(shown, limit))
