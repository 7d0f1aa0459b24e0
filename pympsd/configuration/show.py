"""Write the daemon's servers and namespaces as a configuration file that recreates them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pympsd.configuration.cgroups import render_cgroups
from pympsd.configuration.plan import Features, FileContext
from pympsd.configuration.reader import SCHEMA
from pympsd.configuration.rules import render_conditions
from pympsd.state_machine.state.named_server import NamedServer, Source
from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.limit_table import OWN, VENDORS, WITH_MAXIMUM, LimitRow, Limits
from pympsd.vocabulary.limits import CgroupLimits
from pympsd.vocabulary.partitions import chunk_count
from pympsd.vocabulary.rules import Rule
from pympsd.vocabulary.shares import TABLE
from pympsd.vocabulary.texts import CONTAINMENTS


def render_file(
    servers: Mapping[str, NamedServer],
    context: FileContext,
    rules: Sequence[Rule] = (),
    features: Features = Features(),  # noqa: B008 - frozen
    cgroups: CgroupLimits | None = None,
    shares: Mapping[str, int] | None = None,
    commands: Sequence[str] = (),
) -> str:
    """Return the text of a file that recreates the configuration, with ``commands`` as comments.

    Servers that were created for clients that named none are left out, because the first clients create them again.
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
            *render_conditions(rule),
            *_limits(rule.limits, VENDORS, range(len(context.devices))),
        ]
    lines += render_cgroups(cgroups or {}, len(context.devices))
    for name, server in sorted(servers.items()):
        warnings = [*_namespaces(server, context), *_partitions(server, context)]
        if server.source is Source.AUTO and not warnings:
            continue
        tables = [f"[servers.{name}]", *_render_server(server, context), *warnings]
        if server.allowed_devices == ():
            # As a comment: a file with a server without devices is refused, and without allowed_devices the server
            # would have all.
            tables = [f"# None of the devices of server '{name}' is there:", *(f"# {line}" for line in tables)]
        lines += ["", *tables]
    if commands:
        lines += ["", "# Commands that set the defaults of protocol 2:", *(f"# {line}" for line in commands)]
    return "\n".join(lines)


def _namespaces(server: NamedServer, context: FileContext) -> Iterator[str]:
    ordinals = _ordinals(server, context)
    for name in sorted(server.namespaces, key=lambda other: (other != DEFAULT, other)):
        namespace = server.namespaces[name]
        limits, own = [*_limits(namespace.limits, VENDORS, ordinals)], [*_limits(namespace.limits, OWN, ordinals)]
        if namespace.clients_only:
            own.insert(0, "clients_only = true")
        if name != DEFAULT or limits:
            yield from (f"[servers.{server.name}.namespaces.{name}]", *limits)
        if own:
            yield from (f"[servers.{server.name}.namespaces.{name}.pympsd]", *own)


def _ordinals(server: NamedServer, context: FileContext) -> Sequence[int]:
    """Return the ordinals of a server's devices; if it has none, of all devices."""
    every = range(len(context.devices))
    return server.ordinals(len(every)) or every


def _render_server(server: NamedServer, context: FileContext) -> Iterator[str]:
    if server.uid != context.uid:
        yield f"uid = {server.uid}"
    if server.allowed_devices is not None:
        uuids = (context.devices[ordinal].uuid for ordinal in server.allowed_devices)
        yield f'allowed_devices = "{",".join(uuids)}"'
    if server.maximum != Limits() or server.contains_partitions:
        yield f"[servers.{server.name}.pympsd]"
        yield from _limits(server.maximum, WITH_MAXIMUM, _ordinals(server, context), "max_")
        if server.contains_partitions:
            yield f'contain = "{CONTAINMENTS[True]}"'


def _partitions(server: NamedServer, context: FileContext) -> Iterator[str]:
    for device in sorted({partition.device for partition in server.partitions}):
        device_properties = context.devices[device]
        yield from (f"[[servers.{server.name}.devices]]", f'uuid = "{device_properties.uuid}"')
        for partition in server.partitions:
            if partition.device == device:
                remainder = chunk_count(device_properties) in partition.chunks
                yield f"[[servers.{server.name}.devices.sm_partitions]]"
                yield from (f'name = "{partition.name}"', f"chunks = {len(partition.chunks) - remainder}")
                if remainder:
                    yield "include_remainder = true"


def _limits(limits: Limits, rows: Iterable[LimitRow], ordinals: Sequence[int], prefix: str = "") -> Iterator[str]:
    """Yield the lines of limits; ``ordinals``: the daemon's ordinals of the devices, in the server's order."""
    for row in rows:
        if row.of(limits) is not None:
            yield f'{prefix}{row.key} = "{row.text(limits, ordinals)}"'
