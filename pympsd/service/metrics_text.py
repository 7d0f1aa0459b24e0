"""Describe the daemon as OpenMetrics text (OpenMetrics 1.0: names end in their unit, infos in _info, the text in #
EOF).

A limit that is the same on all devices has one sample without the label ``device``; a limit that differs has one for
each device. Counts by device always have the label.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from pympsd.configuration.in_force import compute_hash
from pympsd.process.version import CUDA_VERSIONS, VERSION
from pympsd.state_machine import drains, shares
from pympsd.state_machine.state.daemon import Count, Daemon
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.limit_table import combine, find_differing_percentages, percentage_on
from pympsd.vocabulary.limits import LimitsInForce
from pympsd.vocabulary.results import ServerStatus

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
COUNTERS: Final = (
    (Count.SERVERS, "server_starts", "Servers started; where users take turns, each is one."),
    (Count.FAULTS, "faults", "Fatal faults after which the server continued; before Volta it ends."),
    (Count.TERMINATED, "terminated_clients", "Client processes ended by terminate_client."),
    (Count.REFUSED, "refused_clients", "Connections of clients that were refused."),
)
ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
SUFFIXES: Final = {"counter": "_total", "info": "_info"}
"""The ends of samples' names, by the kind of their family."""
Sample = tuple[dict[str, object], float]


def metrics_text(daemon: Daemon, backend: str) -> str:
    """Return all metrics. Counters begin with the daemon or the server; the scraper computes rates."""
    parts = *_daemon(daemon, backend), *_shares(daemon), *_devices(daemon), *_servers(daemon)
    return "".join(f"{line}\n" for line in (*parts, "# EOF"))


def _daemon(daemon: Daemon, backend: str) -> Iterator[str]:
    """Yield the lines of the metrics of the daemon itself."""
    versions = {"version": VERSION, "cuda_version": CUDA_VERSIONS[daemon.options.driver]}
    selection = {"backend": backend, "protocol": daemon.options.protocol}
    yield from _family("pympsd", "info", "The daemon.", [({**versions, **selection}, 1)])
    configuration: dict[str, object] = {"source": daemon.configuration.source, "hash": compute_hash(daemon)}
    yield from _family(
        "pympsd_configuration",
        "info",
        "The configuration in force: the file applied last and its SHA-256; in protocol 2 that of 'config show'.",
        [(configuration, 1)],
    )
    yield from _family(
        "pympsd_configuration_generation",
        "gauge",
        "Counts the files applied, and in protocol 2 the changes of its defaults.",
        [({}, daemon.configuration.generation)],
    )
    waiting = Counter(entry.uid for entry in daemon.queue.all_entries)
    yield from _family(
        "pympsd_waiting_clients",
        "gauge",
        "Clients, and requests to start a server, that wait for their user's turn.",
        [({"uid": uid}, count) for uid, count in waiting.items()] or [({"uid": daemon.options.uid}, 0)],
    )
    yield from _drains(daemon)
    for count, name, help in COUNTERS:
        yield from _family(f"pympsd_{name}", "counter", help, [({}, daemon.lifetime.counts[count])])


def _drains(daemon: Daemon) -> Iterator[str]:
    """Yield the lines of the metrics of drains; nothing if no drain is in force."""
    held_counts = drains.count_held(daemon)
    running: list[Sample] = [({"target": drain.target}, len(drain.clients)) for drain in daemon.drains]
    holding: list[Sample] = [({"target": target}, count) for target, count in held_counts.items()]
    yield from _family("pympsd_drain_clients", "gauge", "Running clients of the drained target.", running)
    yield from _family("pympsd_drain_held_clients", "gauge", "New clients that the drain holds.", holding)


def _shares(daemon: Daemon) -> Iterator[str]:
    """Yield the shares of users and how much of them is used; users who use nothing are left out."""
    resources, users = shares.resources_of(daemon), shares.list_users(daemon)
    yield from _family(
        "pympsd_user_share",
        "gauge",
        "What one user may have of a resource of the daemon; root and the daemon's own user may have more.",
        [({"resource": resource.name}, daemon.usage.shares.share(resource)) for resource in resources],
    )
    yield from _family(
        "pympsd_user_used",
        "gauge",
        "The amount of the resource that the user has.",
        [
            ({"uid": uid, "resource": resource.name}, has)
            for uid in users
            for resource in resources
            if (has := shares.count_used(daemon, resource, uid))
        ],
    )
    yield from _family(
        "pympsd_user_refusals",
        "counter",
        "Refusals because the user's share was used up.",
        [({"uid": uid, "resource": name}, count) for (uid, name), count in sorted(daemon.usage.refusals.items())],
    )


def _devices(daemon: Daemon) -> Iterator[str]:
    labels = [{"device": n, "uuid": device.uuid, "name": device.name} for n, device in enumerate(daemon.devices)]
    for name, help, values in (
        ("multiprocessors", "Multiprocessors of the device.", [device.multiprocessors for device in daemon.devices]),
        ("memory_bytes", "Memory of the device.", [device.memory_bytes for device in daemon.devices]),
    ):
        yield from _family(f"pympsd_device_{name}", "gauge", help, list(zip(labels, values, strict=True)))


def _label_by_device(counts: Mapping[int, float]) -> list[Sample]:
    return [({"device": device}, count) for device, count in sorted(counts.items())]


def _ratios(daemon: Daemon, server: Server) -> list[Sample]:
    """Return the share of multiprocessors for a server's next client: one number, or one for each device if they
    differ.

    In protocol 3, return the share for a client of namespace ``default``.
    """
    named_server, ordinals = daemon.named_servers.get(server.name), daemon.ordinals_of(server)
    limits = (
        server.limits
        if named_server is None
        else combine(named_server.namespace(DEFAULT).limits, named_server.maximum)
    )
    differing = find_differing_percentages(limits, ordinals)
    if differing:
        return _label_by_device({device: percentage / 100 for device, percentage in differing.items()})
    return [({}, percentage_on(limits, *ordinals[:1]).value / 100)]


def _read_from_clients(read: Callable[[LimitsInForce], list[Sample]]) -> Callable[[Daemon, Server], list[Sample]]:
    """Return a function that yields the samples of each client whose limits are known."""

    def read_server(_: Daemon, server: Server) -> list[Sample]:
        return [
            ({"pid": client.pid, "client": client.id, **labels}, value)
            for client in server.clients.values()
            if client.limits is not None
            for labels, value in read(client.limits)
        ]

    return read_server


def _ratios_of_client(limits: LimitsInForce) -> list[Sample]:
    by_device = {device: percentage / 100 for device, percentage in limits.device_percentages.items()}
    return _label_by_device(by_device) or [({}, limits.thread_percentage / 100)]


OF_SERVERS: Final[tuple[tuple[str, str, str, Callable[[Daemon, Server], list[Sample]]], ...]] = (
    (
        "server_status",
        "stateset",
        "The status of the server.",
        lambda _, server: [({"pympsd_server_status": status}, server.status == status) for status in ServerStatus],
    ),
    (
        "server_active_thread_ratio",
        "gauge",
        "The share of the multiprocessors that the next client of the server gets at most, by device if they differ.",
        _ratios,
    ),
    ("server_clients", "gauge", "Client processes of the server.", lambda _, server: [({}, len(server.clients))]),
    (
        "server_free_clients",
        "gauge",
        "How many more clients with one context fit on the server's device.",
        lambda daemon, server: _label_by_device(
            {ordinal: daemon.count_free(server, ordinal) for ordinal in daemon.ordinals_of(server)}
        ),
    ),
    (
        "server_contexts",
        "gauge",
        "Client contexts of the server on the device.",
        lambda _, server: _label_by_device(
            Counter(context.device for client in server.clients.values() for context in client.contexts.values())
        ),
    ),
    (
        "server_launches",
        "counter",
        "Kernels that the server has started on the device; the driver's own server does not report it.",
        lambda _, server: _label_by_device(server.launches),
    ),
    (
        "server_utilization_ratio",
        "gauge",
        "The share of the last second in which kernels of the server ran on the device; emulated devices only.",
        lambda _, server: [(device, percentage / 100) for device, percentage in _label_by_device(server.utilization)],
    ),
    (
        "client_memory_bytes",
        "gauge",
        "Memory that the client holds on the device; on the driver's own server as NVML reports it.",
        lambda _, server: [
            ({"pid": client.pid, "client": client.id, **device}, count)
            for client in server.clients.values()
            for device, count in _label_by_device(client.memory)
        ],
    ),
    (
        "client_active_thread_ratio",
        "gauge",
        "The share of the multiprocessors that the client gets at most, by device if they differ.",
        _read_from_clients(_ratios_of_client),
    ),
    (
        "client_multiprocessors",
        "gauge",
        "Multiprocessors of the device that the client may use.",
        _read_from_clients(lambda limits: _label_by_device(limits.multiprocessors)),
    ),
    (
        "client_memory_limit_bytes",
        "gauge",
        "Memory that the client may hold on the device; no sample without a limit.",
        _read_from_clients(lambda limits: _label_by_device(limits.memory)),
    ),
    (
        "client_priority",
        "gauge",
        "The priority of the client: 0 is normal, 1 below normal.",
        _read_from_clients(lambda limits: [({}, limits.priority)]),
    ),
)
"""The families of servers and their clients: name, kind, help, and the samples of a server without its labels."""


def _servers(daemon: Daemon) -> Iterator[str]:
    servers = [
        ({"server": server.name, "server_pid": server.pid, "uid": server.uid}, server)
        for server in daemon.list_running_servers()
    ]
    for name, kind, help, read in OF_SERVERS:
        samples = [
            ({**common, **labels}, value) for common, server in servers for labels, value in read(daemon, server)
        ]
        yield from _family(f"pympsd_{name}", kind, help, samples)


def _family(name: str, kind: str, help: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    if name.endswith(("_bytes", "_ratio")):
        yield f"# UNIT {name} {name.rpartition('_')[2]}"
    yield f"# HELP {name} {help}"
    suffix = SUFFIXES.get(kind, "")
    for labels, value in samples:
        escaped = {label: str(text).translate(ESCAPES) for label, text in labels.items()}
        text = ",".join(f'{label}="{escape}"' for label, escape in escaped.items())
        yield f"{name}{suffix}{{{text}}} {float(value) if value % 1 else int(value)}"
