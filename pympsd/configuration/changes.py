"""Compute the changes that bring the daemon's state to a plan, and no others.

Theory of operation
===================

A configuration file is applied in three steps. `reader.read_plan` makes a `Plan` of the text, or reports all errors
in it. `changes` compares the plan with the daemon's `State` and returns a list of changes, as values. Then the
command ``config apply`` (pympsd/commands/v3/config.py) carries out the list, with one part of a compound command for
each change. With ``--check`` it does so on a copy of the state and only prints the texts.

    text --read_plan--> Plan --+
                               +--changes--> [CreateServer, SetNamespace, ...] --> instructions
    Daemon --state_of--> State +

As in a declarative tool, applying a file a second time changes nothing, and ``config status`` can make the same
comparison at any time. The ``str`` of a change is the line that the operator sees, so ``--check`` and the real run
print the same lines.

A plan changes only what it states: a key that is absent is None in the plan and is never compared. With ``prune`` the
servers, namespaces and SM partitions that a file does not name are deleted first, because others may need their SMs.
A change that would disturb running clients (of devices, chunks or the owner, or a deletion) is `Impossible`, with the
command that an operator can use instead.

Invariants: each change can be carried out after the ones before it. A server of a user whom the file does not name is
never changed, because its owner could lift all limits again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from attrs import evolve, field, frozen

from pympsd.configuration.cgroups import count as count_cgroups
from pympsd.configuration.plan import Features, FileContext, PartitionPlan, Plan, ServerPlan
from pympsd.configuration.rules import count
from pympsd.state_machine.state.named_server import NamedServer, Source
from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.limit_table import LIMITS, Limits
from pympsd.vocabulary.limits import CgroupLimits
from pympsd.vocabulary.partitions import SmPartition, chunk_count
from pympsd.vocabulary.rules import Rule
from pympsd.vocabulary.shares import RESOURCES, Shares
from pympsd.vocabulary.texts import CONTAINMENTS

MAX_NAMED: Final = 3
"""The maximum number of differing entries that a change's line names."""


@frozen
class Change(ABC):
    """One change; its ``str`` is the line that `config apply` prints for it."""

    @abstractmethod
    def __str__(self) -> str: ...


@frozen
class CreateServer(Change):
    """Create a server, with its namespaces."""

    server: ServerPlan
    uid: int

    def __str__(self) -> str:
        return f"created server '{self.server.name}'"


@frozen
class CreateNamespace(Change):
    """Create a namespace."""

    server: str
    name: str
    limits: Limits
    clients_only: bool = False

    def __str__(self) -> str:
        return f"created namespace '{self.server}/{self.name}'"


@frozen
class SetNamespace(Change):
    """Set the limits of a namespace."""

    server: str
    name: str
    limits: Limits
    """The limits that the file states; other limits stay as they are."""
    differences: tuple[str, ...]

    def __str__(self) -> str:
        return f"set namespace '{self.server}/{self.name}': {', '.join(self.differences)}"


@frozen
class SetServer(Change):
    """Set the maximum limits of a server's clients, and which partitions a fault affects."""

    server: str
    maximum: Limits
    """The maximum limits that the file states; other maximum limits stay as they are."""
    contains_partitions: bool | None
    differences: tuple[str, ...]

    def __str__(self) -> str:
        return f"set server '{self.server}': {', '.join(self.differences)}"


@frozen
class DeleteServer(Change):
    """Delete a server that the file does not name."""

    name: str

    def __str__(self) -> str:
        return f"deleted server '{self.name}'"


@frozen
class DeleteNamespace(Change):
    """Delete a namespace that the file does not name."""

    server: str
    name: str

    def __str__(self) -> str:
        return f"deleted namespace '{self.server}/{self.name}'"


@frozen
class CreatePartition(Change):
    """Create a static SM partition."""

    server: str
    partition: PartitionPlan
    index: int
    """The index of the partition's device, as the server's clients see it."""

    def __str__(self) -> str:
        return f"created SM partition '{self.server}/{self.partition.name}' on device {self.index}"


@frozen
class DeletePartition(Change):
    """Delete a static SM partition that the file does not name."""

    server: str
    partition: SmPartition
    index: int
    """The index of the partition's device, as the server's clients see it."""

    def __str__(self) -> str:
        return f"deleted SM partition '{self.server}/{self.partition.name}' from device {self.index}"


@frozen
class SetRules(Change):
    """Set the rules."""

    rules: tuple[Rule, ...]
    before: tuple[Rule, ...] | None

    def __str__(self) -> str:
        """Return the number of rules before and after, and at most MAX_NAMED rules that differ."""
        before, after = self.before or (), self.rules
        differing = (
            [*(rule for rule in after if rule not in before), *before[len(after) :]] if before and after else []
        )
        return f"set rules: {count(before)} -> {count(after)}{_list_changed([str(rule) for rule in differing])}"


@frozen
class SetCgroupLimits(Change):
    """Replace the limits of all cgroups."""

    limits: CgroupLimits
    before: CgroupLimits

    def __str__(self) -> str:
        """Return the number of limits before and after, and at most MAX_NAMED cgroups that differ."""
        before, after = self.before, self.limits
        paths = sorted({*before, *after}) if before and after else []
        suffix = _list_changed([path for path in paths if before.get(path) != after.get(path)])
        return f"set limits of {count_cgroups(before)} -> {count_cgroups(after)}{suffix}"


@frozen
class SetShares(Change):
    """Replace all shares of users."""

    shares: dict[str, int]
    before: Shares

    def __str__(self) -> str:
        """Return the shares that change, with the values before and after."""
        after = evolve(self.before, configured=self.shares)
        differing = [
            f"{resource.name} {self.before.share(resource)} -> {after.share(resource)}"
            for resource in RESOURCES
            if self.before.share(resource) != after.share(resource)
        ]
        return f"set shares: {', '.join(differing) or 'as they were, now by the file'}"


@frozen
class SetFeature(Change):
    """Set a feature of the daemon, by its name in `Features`."""

    name: str
    on: bool

    def __str__(self) -> str:
        title, off, on = _FEATURES[self.name]
        return f"set {title}: {off} -> {on}" if self.on else f"set {title}: {on} -> {off}"


_FEATURES: Final = {
    "default_socket": ("default_socket", "off", "on"),
    "accounts_cgroups": ("memacct", "disabled", "enabled"),
    "audits_memory": ("audit_log", "false", "true"),
}


@frozen
class Impossible(Change):
    """A change that cannot be made now, and the reason."""

    reason: str

    def __str__(self) -> str:
        return self.reason


CountClients = Callable[[str, str | None], int]
"""The type of a function that returns the number of clients of a server, or of one of the server's namespaces."""


@frozen
class State:
    """The daemon's servers, and the numbers of their clients, with which a plan is compared."""

    servers: Mapping[str, NamedServer]
    context: FileContext
    count_clients: CountClients = field(default=lambda server, namespace: 0)
    count_clients_in: Callable[[str, SmPartition], int] = field(default=lambda server, partition: 0)
    """The function that returns the number of clients of an SM partition."""
    rules: tuple[Rule, ...] | None = None
    features: Features = field(factory=Features)
    cgroups: CgroupLimits = field(factory=dict)
    shares: Shares = field(factory=Shares)


def changes(plan: Plan, state: State, *, prune: bool = False, force: bool = False) -> list[Change]:
    """Return the changes in the order in which to make them.

    ``prune``: delete everything that the plan does not name; ``force``: even if it has clients.
    """
    result: list[Change] = []
    rules = plan.rules if plan.rules is not None or not prune else ()
    if rules is not None and rules != (state.rules or ()):
        result.append(SetRules(rules, state.rules))
    cgroups = plan.cgroups if plan.cgroups is not None or not prune else {}
    if cgroups is not None and cgroups != state.cgroups:
        result.append(SetCgroupLimits(cgroups, state.cgroups))
    shares = plan.shares if plan.shares is not None or not prune else {}
    if shares is not None and shares != state.shares.configured:
        result.append(SetShares(shares, state.shares))
    for name in _FEATURES:
        requested, present = getattr(plan.features, name), getattr(state.features, name)
        if requested not in (None, present):
            result.append(SetFeature(name, requested))
    if prune:  # delete partitions first, because others may need their chunks
        # Servers that were created for users who named none are independent of the file.
        listed_names = sorted(name for name, server in state.servers.items() if server.source is not Source.AUTO)
        for name in (name for name in listed_names if name not in plan.servers):
            clients = 0 if force else state.count_clients(name, None)
            result.append(_keep_if_used(DeleteServer(name), f"server '{name}' stays", clients))
        for name, server in sorted(plan.servers.items()):
            if name in state.servers and _may_be_changed(server, state):
                result += _prune_partitions(server, state.servers[name], state, force)
    for name, server in sorted(plan.servers.items()):
        present = state.servers.get(name)
        if present is None:
            result.append(CreateServer(server, state.context.uid if server.uid is None else server.uid))
        elif server.uid is None and not _may_be_changed(server, state):
            result.append(
                Impossible(
                    f"server '{name}' belongs to user {present.uid}, and the file does not name that user: "
                    f"write uid = {present.uid} into [servers.{name}] to take it as it is, or delete the server"
                )
            )
        elif present.deleted:
            result.append(Impossible(f"server '{name}' is being deleted: apply the file again when it is gone"))
        else:
            result += _compare_server(server, present, state)
            if prune and _may_be_changed(server, state):
                for namespace in sorted(present.namespaces.keys() - server.namespaces.keys() - {DEFAULT}):
                    clients = 0 if force else state.count_clients(name, namespace)
                    result.append(
                        _keep_if_used(
                            DeleteNamespace(name, namespace), f"namespace '{name}/{namespace}' stays", clients
                        )
                    )
    return result


def _may_be_changed(server: ServerPlan, state: State) -> bool:
    """Return whether a server is missing, or belongs to the user that the file states, by default the daemon's.

    The owner of any other server could lift all limits that the file sets.
    """
    present = state.servers.get(server.name)
    return present is None or present.uid == (state.context.uid if server.uid is None else server.uid)


def _compare_server(server: ServerPlan, present: NamedServer, state: State) -> Iterator[Change]:
    """Yield the changes that bring an existing server to its plan."""
    name = server.name
    if server.uid not in (None, present.uid):
        yield Impossible(
            f"server '{name}' stays that of user {present.uid}: 'server set {name} --uid={server.uid}' changes it"
        )
        return  # its owner is not the file's user, and could lift all limits again
    ordinals = present.ordinals(len(state.context.devices))
    if server.devices not in (None, ordinals):
        yield Impossible(f"server '{name}' keeps its devices: delete the server first to give it others")
    own = [f"max-{difference}" for difference in _differences(present.maximum, server.maximum, ordinals)]
    contains, before = server.contains_partitions, present.contains_partitions
    if contains not in (None, before):
        own.append(f"contain {CONTAINMENTS[before]} -> {CONTAINMENTS[not before]}")
    if own:
        yield SetServer(name, server.maximum, contains, tuple(own))
    for namespace_name, limits in sorted(server.namespaces.items()):
        namespace = present.namespaces.get(namespace_name)
        if namespace is None:
            yield CreateNamespace(name, namespace_name, limits, server.clients_only.get(namespace_name, False))
            continue
        if server.clients_only.get(namespace_name, namespace.clients_only) != namespace.clients_only:
            kind = "for clients only" if namespace.clients_only else "open to operators"
            yield Impossible(f"namespace '{name}/{namespace_name}' stays {kind}: delete it first")
        if differences := _differences(namespace.limits, limits, ordinals):
            yield SetNamespace(name, namespace_name, limits, differences)
    for partition in (candidate for candidate in server.partitions if candidate.device in ordinals):
        yield from _compare_partition(partition, present, state)


def _differences(present: Limits, target: Limits, ordinals: tuple[int, ...]) -> tuple[str, ...]:
    """Return the differences between limits and those of a file, as texts.

    Limits by device are compared on ``ordinals``.
    """
    return tuple(
        f"{row.name} {row.text(present, ordinals)} -> {row.text(target, ordinals)}"
        for row in LIMITS
        if row.of(target) is not None and row.differs(present, target, ordinals)
    )


def _compare_partition(plan: PartitionPlan, present: NamedServer, state: State) -> Iterator[Change]:
    existing = {(partition.name, partition.device): partition for partition in present.partitions}.get(
        (plan.name, plan.device)
    )
    index = present.ordinals(len(state.context.devices)).index(plan.device)
    if existing is None:
        yield CreatePartition(present.name, plan, index)
        return
    remainder = chunk_count(state.context.devices[plan.device])
    chunks = sum(chunk != remainder for chunk in existing.chunks)
    if (chunks, remainder in existing.chunks) != (plan.chunks, plan.include_remainder):
        reason = f"SM partition '{present.name}/{plan.name}' keeps its SMs on device {index}"
        yield Impossible(f"{reason}: delete the partition first to give it others")


def _prune_partitions(server: ServerPlan, present: NamedServer, state: State, force: bool) -> Iterator[Change]:
    planned = {(partition.name, partition.device) for partition in server.partitions}
    for partition in present.partitions:
        if (partition.name, partition.device) in planned:
            continue
        index = present.ordinals(len(state.context.devices)).index(partition.device)
        stays = f"SM partition '{server.name}/{partition.name}' stays on device {index}"
        clients = 0 if force else state.count_clients_in(server.name, partition)
        yield _keep_if_used(DeletePartition(server.name, partition, index), stays, clients)


def _keep_if_used(change: Change, stays: str, clients: int) -> Change:
    """Return a deletion; if clients prevent it, return `Impossible` with the sentence ``stays``."""
    if not clients:
        return change
    it_has = "it has 1 active client; --force terminates it"
    return Impossible(
        f"{stays}: {it_has if clients == 1 else f'it has {clients} active clients; --force terminates them'}"
    )


def _list_changed(differing: Sequence[str]) -> str:
    """Return the end of a sentence that lists new, missing and different entries; empty without any."""
    more = len(differing) - MAX_NAMED
    suffix = f" and {more} more" if more > 0 else ""
    return f" (changed: {', '.join(differing[:MAX_NAMED])}{suffix})" if differing else ""
