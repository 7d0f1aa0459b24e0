"""The daemon's servers and namespaces as a configuration file that makes them again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pympsd.configuration.cgroups import shown_cgroups
from pympsd.configuration.plan import Features, Surroundings
from pympsd.configuration.reader import SCHEMA
from pympsd.configuration.rules import shown_conditions
from pympsd.state_machine.state.named_server import NamedServer, Namespace, Source
from pympsd.vocabulary.limit_table import OWN, VENDORS, WITH_MAXIMUM, LimitRow, Limits
from pympsd.vocabulary.limits import CgroupLimits
from pympsd.vocabulary.namespaces import DEFAULT
from pympsd.vocabulary.partitions import chunk_count
from pympsd.vocabulary.rules import Rule
from pympsd.vocabulary.shares import TABLE
from pympsd.vocabulary.texts import CONTAINMENTS


def shown(
    servers: Mapping[str, NamedServer],
    surroundings: Surroundings,
    rules: Sequence[Rule] = (),
    features: Features = Features(),  # noqa: B008 - frozen
    cgroups: CgroupLimits | None = None,
    shares: Mapping[str, int] | None = None,
    commands: Sequence[str] = (),
) -> str:
    """Return the text of a file; ``commands`` are in it as comments.

    Servers of users that named none are left out, because they are created with their first clients.
    """
    lines = [f'schema_version = "{SCHEMA}"']
    if not features.default_socket:
        lines += ["", "[features.context-share]", 'default_socket = "off"']
    if not features.accounts_cgroups or features.audits_memory:
        lines += ["", "[features.memacct]"]
        lines += ["enabled = false"] * (not features.accounts_cgroups)
        lines += ["audit_log = true"] * bool(features.audits_memory)
    if shares:
        lines += ["", f"[{TABLE}]", *(f"{name} = {value}" for name, value in shares.items())]
    for rule in rules:
        lines += [
            "",
            "[[rules]]",
            *shown_conditions(rule),
            *_limits(rule.limits, VENDORS, range(len(surroundings.devices))),
        ]
    lines += shown_cgroups(cgroups or {}, len(surroundings.devices))
    for name, server in sorted(servers.items()):
        said = [*_namespaces(server, surroundings), *_partitions(server, surroundings)]
        if server.source is Source.AUTO and not said:
            continue
        tables = [f"[servers.{name}]", *_of_server(server, surroundings), *said]
        if server.allowed_devices == ():
            # A file with a server that has no device is refused, and without allowed_devices it would have all.
            tables = [f"# None of the devices of server '{name}' is there:", *(f"# {line}" for line in tables)]
        lines += ["", *tables]
    if commands:
        lines += ["", "# Commands that set the defaults of protocol 2:", *(f"# {line}" for line in commands)]
    return "\n".join(lines)


def _namespaces(server: NamedServer, surroundings: Surroundings) -> Iterator[str]:
    ordinals = _ordinals(server, surroundings)
    for name in sorted(server.namespaces, key=lambda other: (other != DEFAULT, other)):
        namespace = server.namespaces[name]
        limits, own = [*_limits(namespace.limits, VENDORS, ordinals)], [*_own_keys(namespace, ordinals)]
        if name != DEFAULT or limits:
            yield from (f"[servers.{server.name}.namespaces.{name}]", *limits)
        if own:
            yield from (f"[servers.{server.name}.namespaces.{name}.pympsd]", *own)


def _ordinals(server: NamedServer, surroundings: Surroundings) -> Sequence[int]:
    """Return the ordinals of a server's devices; if it has none, of those to which its limits for all apply."""
    every = range(len(surroundings.devices))
    return server.ordinals(len(every)) or every


def _of_server(server: NamedServer, surroundings: Surroundings) -> Iterator[str]:
    if server.uid != surroundings.uid:
        yield f"uid = {server.uid}"
    if server.allowed_devices is not None:
        uuids = (surroundings.devices[ordinal].uuid for ordinal in server.allowed_devices)
        yield f'allowed_devices = "{",".join(uuids)}"'
    if server.maximum != Limits() or server.contains_partitions:
        yield f"[servers.{server.name}.pympsd]"
        yield from _limits(server.maximum, WITH_MAXIMUM, _ordinals(server, surroundings), "max_")
        if server.contains_partitions:
            yield f'contain = "{CONTAINMENTS[True]}"'


def _partitions(server: NamedServer, surroundings: Surroundings) -> Iterator[str]:
    for device in sorted({one.device for one in server.partitions}):
        facts = surroundings.devices[device]
        yield from (f"[[servers.{server.name}.devices]]", f'uuid = "{facts.uuid}"')
        for one in server.partitions:
            if one.device == device:
                remainder = chunk_count(facts) in one.chunks
                yield f"[[servers.{server.name}.devices.sm_partitions]]"
                yield from (f'name = "{one.name}"', f"chunks = {len(one.chunks) - remainder}")
                if remainder:
                    yield "include_remainder = true"


def _own_keys(namespace: Namespace, ordinals: Sequence[int]) -> Iterator[str]:
    if namespace.clients_only:
        yield "clients_only = true"
    yield from _limits(namespace.limits, OWN, ordinals)


def _limits(limits: Limits, rows: Iterable[LimitRow], ordinals: Sequence[int], prefix: str = "") -> Iterator[str]:
    """Yield the lines of limits; ``ordinals``: those of the devices, in the order in which the table counts them."""
    for row in rows:
        if row.of(limits) is not None:
            yield f'{prefix}{row.key} = "{row.text(limits, ordinals)}"'
