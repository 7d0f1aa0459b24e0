"""Commands of protocol 2 at a daemon that speaks 3: those that keep their meaning, and what the others are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import evolve, frozen

from pympsd.commands.registry import LEFT_OUT, REGISTRY, Caller, Decision
from pympsd.state_machine.state.daemon import Daemon, Defaults
from pympsd.state_machine.state.named_server import Namespace
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.namespaces import DEFAULT, server_of_user

CHANGES: Final = ("quit", "terminate_client", "shutdown_server")
KEPT: Final = frozenset(
    {
        *("get_server_list", "get_server_status", "get_client_list", "get_device_client_list", "get_waiting_list"),
        *("ps", "device_query"),
        *CHANGES,
    }
)
"""Commands that protocol 3 understands too: probes and scripts use them, and they have one meaning in both."""

DEFAULTS: Final = frozenset(
    {
        "get_default_active_thread_percentage",
        "get_default_device_pinned_mem_limit",
        "get_default_client_priority",
    }
)
"""The same, but they are about the asking user's server."""

OF_SERVERS: Final = frozenset({"get_active_thread_percentage", "get_device_pinned_mem_limit"})
"""The same of the server whose PID they name."""

KNOWN: Final = KEPT | DEFAULTS | OF_SERVERS
"""All that are answered."""


@frozen
class _Translation:
    """A command of protocol 3, with {0}, {1} for the words of the other; ``unless_given``: what stands for them."""

    text: str
    unless_given: tuple[str, ...] = ()


_TRANSLATIONS: Final = {
    "start_server": _Translation("server create --uid={1}", ("-uid", "U")),
    "set_default_active_thread_percentage": _Translation(
        "namespace set default --server=NAME --active-thread-percentage={0}", ("P",)
    ),
    "set_active_thread_percentage": _Translation("server set NAME --active-thread-percentage={1}", ("PID", "P")),
    "set_default_device_pinned_mem_limit": _Translation(
        "namespace set default --server=NAME --pinned-memory-limit={0}={1}", ("DEVICE", "L")
    ),
    "set_device_pinned_mem_limit": _Translation(
        "server set NAME --pinned-memory-limit={1}={2}", ("PID", "DEVICE", "L")
    ),
    "set_default_client_priority": _Translation("namespace set default --server=NAME --client-priority={0}", ("N",)),
    "sm_partition": _Translation("sm-partition create P --server=NAME --device=UUID --chunks=N"),
}


def refusal_of_other(words: Sequence[str]) -> Answer | None:
    """Return the refusal of a command of protocol 2, with its name in protocol 3; None if it is none."""
    known = _TRANSLATIONS.get(words[0])
    if known is None:
        return None
    given = words[1:]
    arguments = (*given, *known.unless_given[len(given) :])
    text = known.text.format(*arguments)
    if words[0] == "start_server" and "-mlopart" in given:
        text += f" (-mlopart has no counterpart here: {LEFT_OUT['-mlopart']})"
    if given and words[0] == "sm_partition" and given[0] == "rm":
        text = "sm-partition delete P --server=NAME --device=UUID"
    return refusal(diagnostic=f"{words[0]} is a command of protocol 2; this daemon speaks 3: {text}")


def default_of_user(daemon: Daemon, caller: Caller, words: Sequence[str]) -> Decision:
    """Answer with the limits of namespace ``default`` of the user's server; the daemon's own if there is none."""
    default = _default(daemon, server_of_user(daemon.options.serving_uid(caller.uid)))
    if default is not None:
        limits = Defaults(default.thread_percentage, default.client_priority, dict(default.pinned_memory))
        daemon = evolve(daemon, defaults=limits)
    return REGISTRY[words[0]].run(daemon, caller, words[1:])


def default_of_server(daemon: Daemon, caller: Caller, words: Sequence[str]) -> Decision:
    """Answer with the limits of namespace ``default`` of the server with a PID, unless that may not be seen."""
    servers = {}
    for serial, server in daemon.servers.items():
        default = _default(daemon, server.name)
        if default is not None:
            limits = dict(default.pinned_memory)
            servers[serial] = evolve(server, thread_percentage=default.thread_percentage, memory_limits=limits)
    return REGISTRY[words[0]].run(evolve(daemon, servers=servers), caller, words[1:])


def _default(daemon: Daemon, server: str) -> Namespace | None:
    """Return the namespace ``default`` of a server, if both are there and may be seen."""
    named = daemon.named_servers.get(server)
    return named.namespaces.get(DEFAULT) if named is not None else None
