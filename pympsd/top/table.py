"""Make the table of ``pympsd top`` from the daemon's answers. This module neither queries the daemon nor draws.

    Answers.of(control.query(*QUERIES))    one consistent set of servers, clients and waiting clients
    rows(answers, sort, filter)            a row for each server, client and waiting client
    lines(rows)                            text with a head, each column as wide as its widest cell

Launches per second need two answers, so `Rates` keeps the counts of the previous one. Texts from clients, such as
command lines, are made printable, so that they cannot control the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from attrs import define, field, frozen

from pympsd.control.records import Device, Machine, Server, Waiting, convert
from pympsd.vocabulary.texts import format_memory_in_use, limit_of_memory_text
from pympsd.vocabulary.untrusted import printable

REPORT_SECONDS: Final = 1.5
"""Seconds after which the rate of a server whose count has not changed is 0: a server that launches kernels reports
once a second.
"""
WAITING: Final = ("WAITING", "HELD")
"""The statuses of a client that waits for its turn, and of a client that a drain holds."""
QUERIES: Final = ("get_server_list", "get_waiting_list", "device_query")


class ClientRow(NamedTuple):
    """A row: a client, a server (``server`` is 0), or a waiting client (status WAITING or HELD)."""

    pid: int
    uid: int
    server: int
    status: str
    percentage: float | dict[int, float] | None
    """The client's percentage of SMs; by device if its devices differ."""
    contexts: int
    memory: int | None
    command: str
    launches: float | None = None
    """The number of kernels that the server starts per second."""
    namespace: str = ""
    """The client's namespace (protocol 3 only)."""
    memory_limits: Mapping[int, int] = MappingProxyType({})
    """The maximum number of bytes that the client may hold, by device."""
    priority: int | None = None
    """The client's priority: 0 normal, 1 below normal."""

    @property
    def cells(self) -> dict[str, str]:
        """The text of each cell, by the column's heading."""
        return {column.heading: printable(column.cell(self)) for column in COLUMNS}


@frozen
class TableColumn:
    """A column of the table."""

    heading: str
    width: int
    """The minimum width in characters, so that the table keeps its shape when cells change."""
    cell: Callable[[ClientRow], str]
    meaning: str
    """The explanation of the column in the help."""
    is_left_aligned: bool = False


COLUMNS: Final = (
    TableColumn("PID", 8, lambda row: str(row.pid), "of a client or a server"),
    TableColumn("UID", 6, lambda row: str(row.uid), "its user"),
    TableColumn("SERVER", 8, lambda row: str(row.server or "-"), "the PID of a client's server"),
    TableColumn("NAMESPACE", 12, lambda row: row.namespace or "-", "a client's, in protocol 3", True),
    TableColumn(
        "STATUS",
        8,
        lambda row: row.status,
        "a client with contexts is ACTIVE; WAITING clients have no server yet; DRAINING and HELD ones are of a drain",
        True,
    ),
    TableColumn("SM %", 5, lambda row: _percentages(row.percentage), "active thread percentage"),
    TableColumn("CTX", 4, lambda row: str(row.contexts), "contexts"),
    TableColumn("MEMORY", 9, lambda row: format_memory_in_use(row.memory), "device memory in use, in MiB"),
    TableColumn(
        "LIMIT",
        6,
        lambda row: _memory_limits(row.memory_limits),
        "the most memory that a client may hold on a device, or on each",
    ),
    TableColumn(
        "PRIO",
        4,
        lambda row: "-" if row.priority is None else str(row.priority),
        "a client's priority: 0 normal, 1 below normal",
    ),
    TableColumn(
        "LAUNCH/S",
        8,
        lambda row: "-" if row.launches is None else f"{row.launches:.0f}",
        "kernels that a server starts in a second",
    ),
    TableColumn("COMMAND", 7, lambda row: row.command, "the program", True),
)


def lines(table_rows: Iterable[ClientRow], counts_launches: bool = True) -> list[str]:
    """Return the heading and a line for each row; a column is as wide as its widest cell.

    The columns of namespaces and of memory limits are left out if no row has one.
    """
    table_rows = list(table_rows)
    absent = set() if any(row.namespace for row in table_rows) else {"NAMESPACE"}
    absent |= set() if any(row.memory_limits for row in table_rows) else {"LIMIT"}
    absent |= set() if counts_launches else {"LAUNCH/S"}
    columns = [column for column in COLUMNS if column.heading not in absent]
    table = [
        [column.heading for column in columns],
        *([row.cells[column.heading] for column in columns] for row in table_rows),
    ]
    widths = [
        max(column.width, *map(len, cells)) for column, cells in zip(columns, zip(*table, strict=True), strict=True)
    ]
    return [
        "  ".join(
            cell.ljust(width) if column.is_left_aligned else cell.rjust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ).rstrip()
        for cells in table
    ]


SORTS: Final[dict[str, Callable[[ClientRow], Any]]] = {
    # Waiting clients come last, in the order of the queue.
    "server": lambda row: (
        (True, 0, False) if row.status in WAITING else (False, row.server or row.pid, row.server > 0)
    ),
    "memory": lambda row: -(row.memory or 0),
    "contexts": lambda row: -row.contexts,
    "launches": lambda row: -(row.launches or 0),
    "uid": lambda row: row.uid,
    "pid": lambda row: row.pid,
}


@frozen
class Answers:
    """A daemon's answers to QUERIES."""

    servers: tuple[Server, ...]
    waiting: tuple[Waiting, ...]
    devices: tuple[Device, ...]

    @classmethod
    def of(cls, answers: list[Any]) -> Answers:
        """Check answers; raise CannotAsk if they are not a daemon's."""
        servers, waiting, machine = answers
        return cls(
            convert(tuple[Server, ...], servers),
            convert(tuple[Waiting, ...], waiting),
            convert(Machine, machine).devices,
        )


def summary(answers: Answers) -> str:
    """Return the line above the table: the numbers of servers, clients and waiting clients, and the devices."""
    clients = sum(len(server.clients) for server in answers.servers)
    names = [device.name for device in answers.devices]
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    total = f"servers {len(answers.servers)}, clients {clients}, waiting {len(answers.waiting)}"
    return printable(f"{total}; {counted}")


@define
class Rates:
    """Computes the launches per second of servers from their current and previous counts."""

    _counted: dict[int, tuple[float, int]] = field(factory=dict, init=False)
    """The time when a server's number of launches last changed, and the number, by the server's PID."""
    _rates: dict[int, float] = field(factory=dict, init=False)

    def measure(self, servers: Iterable[Server], now: float) -> dict[int, float]:
        """Return the launches per second, by PID, of servers that have reported a count before."""
        totals = {server.pid: sum(server.launches.values()) for server in servers if server.launches}
        for pid, total in totals.items():
            before, count = self._counted.get(pid, (now, total))
            # Servers report once a second; between two reports the last rate is shown.
            if total == count and now - before < REPORT_SECONDS and pid in self._counted:
                continue
            if pid in self._counted and now > before:
                self._rates[pid] = (total - count) / (now - before)
            self._counted[pid] = now, total
        return {pid: rate for pid, rate in self._rates.items() if pid in totals}


def rows(
    answers: Answers, sort: str = "server", text: str = "", rates: Mapping[int, float] = MappingProxyType({})
) -> list[ClientRow]:
    """Return the rows whose lines contain ``text`` (ignoring case), in the order of ``sort``, a key of SORTS.

    ``rates``: launches per second, by the server's PID.
    """
    matching = [row for row in _rows(answers, rates) if text.casefold() in " ".join(row.cells.values()).casefold()]
    return sorted(matching, key=SORTS[sort])


def _rows(answers: Answers, rates: Mapping[int, float]) -> Iterator[ClientRow]:
    for server in answers.servers:
        clients = [
            ClientRow(
                client.pid,
                client.uid,
                server.pid,
                "DRAINING" if client.draining else "ACTIVE" if client.contexts else "IDLE",
                client.active_thread_percentage,
                len(client.contexts),
                sum(client.memory_bytes.values()) if client.memory_bytes else None,
                client.command,
                namespace=client.namespace or "",
                memory_limits=client.memory_limits,
                priority=client.priority,
            )
            for client in server.clients
        ]
        memory_values = [client.memory for client in clients if client.memory is not None]
        yield ClientRow(
            server.pid,
            server.uid,
            0,
            server.status,
            server.active_thread_percentage,
            sum(client.contexts for client in clients),
            sum(memory_values) if memory_values else None,
            server.name,
            rates.get(server.pid),
        )
        yield from clients
    for client in answers.waiting:
        status = WAITING[client.held_by is not None]
        yield ClientRow(client.pid, client.uid, 0, status, None, 0, None, client.command or "start_server")


def _memory_limits(limits: Mapping[int, int]) -> str:
    """Return a single limit if it is the same on all devices that have one, otherwise one for each device."""
    texts = {device: limit_of_memory_text(limit) for device, limit in sorted(limits.items())}
    if len(set(texts.values())) > 1:
        return ",".join(f"{device}={text}" for device, text in texts.items())
    return next(iter(texts.values()), "-")


def _percentages(percentage: float | dict[int, float] | None) -> str:
    if isinstance(percentage, dict):
        return ",".join(f"{value:.1f}" for _, value in sorted(percentage.items()))
    return "-" if percentage is None else f"{percentage:.1f}"
