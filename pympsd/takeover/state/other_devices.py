"""Adapt the state to a daemon with other devices: values by index follow their device, or are lost with it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import define, evolve, field, frozen

from pympsd.takeover.state.records import PersistentNamedServer, PersistentState
from pympsd.vocabulary.limit_table import BY_DEVICE, Limits
from pympsd.vocabulary.limits import ALL_DEVICES
from pympsd.vocabulary.partitions import SmPartition
from pympsd.vocabulary.rules import Rule

V = TypeVar("V")


@frozen
class OtherDevices:
    """The devices of an earlier daemon and of this one: for each, in order, a text that begins with its UUID."""

    before: tuple[str, ...]
    now: tuple[str, ...]

    @property
    def places(self) -> dict[int, int]:
        """The present ordinal of each device that still exists, by its earlier ordinal."""
        return {old: self.now.index(key) for old, key in enumerate(self.before) if key in self.now}


def move(saved: PersistentState, devices: OtherDevices) -> tuple[PersistentState, list[tuple[str, str]]]:
    """Return the state for the present devices, and the settings lost with missing devices: owner and UUID.

    A limit for all devices stays a limit for all present devices.
    """
    moves = _Move(devices.places, devices.before, len(devices.now))
    state = evolve(
        saved,
        memory_limits=None
        if saved.memory_limits is None
        else moves.memory(saved.memory_limits, "The default limits"),
        cgroup_limits=moves.move_cgroups(saved.cgroup_limits),
        cgroup_soft_limits=moves.move_cgroups(saved.cgroup_soft_limits),
        rules=saved.rules and tuple(map(moves.rule, saved.rules)),
        named_servers=tuple(map(moves.server, saved.named_servers)),
        partitions=moves.partitions(saved.partitions, ""),
    )
    return state, moves.lost


@define
class _Move:
    places: Mapping[int, int]
    before: Sequence[str]
    count: int
    lost: list[tuple[str, str]] = field(factory=list)

    def memory(self, limits: Mapping[int, V], what: str) -> dict[int, V]:
        """Return a limit by device for the present devices."""
        values = list(limits.values())
        if (
            ALL_DEVICES not in limits
            and len(limits) >= len(self.before)
            and all(value == values[0] for value in values)
        ):
            return dict.fromkeys(range(self.count), values[0])
        places = {**self.places, ALL_DEVICES: ALL_DEVICES}
        self._note(what, limits.keys() - {ALL_DEVICES})
        return {places[old]: limit for old, limit in limits.items() if old in places}

    def move_cgroups(self, limits: Mapping[str, dict[int, int]]) -> dict[str, dict[int, int]]:
        return {path: self.memory(limit, f"The limits of cgroup {path}") for path, limit in limits.items()}

    def rule(self, rule: Rule) -> Rule:
        return evolve(rule, limits=self.limits(rule.limits, f"The limits of rule {rule}"))

    def limits(self, limits: Limits, what: str) -> Limits:
        values = {row.field: value for row in BY_DEVICE if (value := row.of(limits)) is not None}
        changes: Any = {name: self.memory(value, what) for name, value in values.items()}
        return evolve(limits, **changes)

    def server(self, server: PersistentNamedServer) -> PersistentNamedServer:
        """Return the record of a named server for the present devices, and note what is lost."""
        allowed, who = server.allowed_devices, f"Server '{server.name}'"
        if allowed is not None:
            self._note(who, allowed)
            allowed = tuple(self.places[old] for old in allowed if old in self.places)
        partitions = self.partitions(server.partitions, f" of server '{server.name}'")
        return evolve(
            server,
            allowed_devices=allowed,
            namespaces=tuple(
                evolve(namespace, limits=self.limits(namespace.limits, f"Namespace '{server.name}/{namespace.name}'"))
                for namespace in server.namespaces
            ),
            maximum=self.limits(server.maximum, who),
            partitions=partitions,
        )

    def partitions(self, partitions: Sequence[SmPartition], ownership: str) -> tuple[SmPartition, ...]:
        for partition in partitions:
            self._note(f"SM partition '{partition.name}'{ownership}", (partition.device,))
        return tuple(
            evolve(partition, device=self.places[partition.device])
            for partition in partitions
            if partition.device in self.places
        )

    def _note(self, what: str, ordinals: Iterable[int]) -> None:
        missing_names = (self.before[old].partition(" ")[0] for old in ordinals if old not in self.places)
        self.lost += [(what, device) for device in missing_names if (what, device) not in self.lost]
