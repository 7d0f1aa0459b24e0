"""Compute the hash of a daemon's configuration in force, and find the settings that differ from its file.

The daemon keeps the text of the last applied file, not only its plan: after a restart, devices may have other
indices, for which the text is read again. A plan is computed once for each set of devices and settings, because
readiness probes query repeatedly.

An administrator can compute the hash without the daemon. In protocol 3 it is the hash of the file (``sha256sum
FILE``). A daemon of protocol 2 is configured by commands, so there it is the hash of the output of ``config show``,
which has the defaults (``pympsd config show | sha256sum``).
"""

from hashlib import sha256
from typing import cast

from attrs import evolve

from pympsd.configuration.changes import State, changes
from pympsd.configuration.plan import Features, FileContext, Plan
from pympsd.configuration.reader import BadFile, read_plan
from pympsd.configuration.show import render_file
from pympsd.state_machine.named_servers import clients
from pympsd.state_machine.partitions import clients_in
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.limits import ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.partitions import SmPartition

Defaults = tuple[ThreadPercentage, ClientPriority, dict[int, PinnedMemory]]


def context_of(daemon: Daemon) -> FileContext:
    """Return the context in which a file is checked for this daemon."""
    return FileContext(
        daemon.devices,
        daemon.options.uid,
        daemon.options.multiuser,
        daemon.options.pipe_directory,
        daemon.options.protocol,
        daemon.options.has_own_servers,
        {name: {partition.name for partition in server.partitions} for name, server in daemon.named_servers.items()},
        {
            name: server.allowed_devices
            for name, server in daemon.named_servers.items()
            if server.allowed_devices is not None
        },
    )


def state_of(daemon: Daemon, context: FileContext) -> State:
    """Return the daemon's state in the form with which a plan is compared."""

    def count_clients(server: str, name: str | None) -> int:
        return len(clients(daemon, server, name))

    def count_clients_in(server: str, partition: SmPartition) -> int:
        return len(clients_in(daemon, server, partition))

    return State(
        daemon.named_servers,
        context,
        count_clients,
        count_clients_in,
        daemon.process_limits.rules,
        _features(daemon),
        daemon.process_limits.cgroups,
        daemon.usage.shares,
    )


def find_differences(daemon: Daemon) -> list[str]:
    """Return the lines that ``config apply --check`` would print for the last applied file, without "no change".

    The list is empty without a file, or if its text is unknown.
    """
    if not daemon.configuration.text:
        return []
    context = context_of(daemon)
    try:
        plan = _read_once(daemon, context)
    except BadFile as error:
        return [problem.render(daemon.configuration.source) for problem in error.problems]
    return [str(change) for change in changes(plan, state_of(daemon, context))]


def render(daemon: Daemon) -> str:
    """Return the daemon's state as a configuration file."""
    return render_file(
        daemon.named_servers,
        context_of(daemon),
        daemon.process_limits.rules or (),
        _features(daemon),
        daemon.process_limits.cgroups,
        daemon.usage.shares.configured,
        (
            f"set_default_active_thread_percentage {daemon.defaults.thread_percentage}",
            f"set_default_client_priority {daemon.defaults.client_priority}",
            *(
                f"set_default_device_pinned_mem_limit {device} {limit}"
                for device, limit in sorted(daemon.defaults.memory_limits.items())
            ),
        )
        if daemon.options.protocol == 2
        else (),
    )


def compute_hash(daemon: Daemon) -> str:
    """Return the SHA-256 of the configuration in force, in hexadecimal; empty without a configuration or if it is
    unknown.
    """
    if daemon.options.protocol == 2:
        return sha256(f"{render(daemon)}\n".encode("utf-8", "surrogateescape")).hexdigest()
    text = daemon.configuration.text
    return "" if text is None else sha256(text).hexdigest()


def defaults_of(daemon: Daemon) -> Defaults:
    """Return the defaults that commands of protocol 2 can set, with their present values."""
    return daemon.defaults.thread_percentage, daemon.defaults.client_priority, dict(daemon.defaults.memory_limits)


def count_change(daemon: Daemon, before: Defaults) -> None:
    """Begin a new generation of the configuration if a command has changed a default of protocol 2."""
    if defaults_of(daemon) != before:
        daemon.configuration = evolve(daemon.configuration, generation=daemon.configuration.generation + 1)


def _features(daemon: Daemon) -> Features:
    return Features(
        daemon.named_servers.default_socket,
        daemon.process_limits.accounts_cgroups,
        daemon.process_limits.audits_memory,
    )


def _read_once(daemon: Daemon, context: FileContext) -> Plan:
    """Return the plan of the last applied file; raise BadFile."""
    configuration = daemon.configuration
    if configuration.plan is None or configuration.plan[0] != context:
        plan, _ = read_plan(configuration.text or b"", context)
        daemon.configuration = evolve(configuration, plan=(context, plan))
        return plan
    return cast(Plan, configuration.plan[1])
