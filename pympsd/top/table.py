"""The table of ``pympsd top``, from the answers of the daemon's queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from attrs import define, field

REPORT_SECONDS: Final = 1.5
"""A server that launches reports it once a second; after this long without a change it launches nothing."""
QUERIES: Final = ("get_server_list", "get_waiting_list", "device_query")
HEADING: Final = (
    f"{'PID':>8} {'UID':>6} {'SERVER':>8} {'STATUS':<12} {'SM %':>6} {'CTX':>4} {'MEMORY':>10} "
    f"{'LAUNCH/S':>9}  COMMAND"
)


class Row(NamedTuple):
    """A client, a server (``server`` is 0), or one who waits (status WAITING)."""

    pid: int
    uid: int
    server: int
    status: str
    percentage: float | None
    contexts: int
    memory: int | None
    command: str
    launches: float | None = None
    """Kernels started in a second; of a server."""

    @property
    def text(self) -> str:
        """The line."""
        share = "-" if self.percentage is None else f"{self.percentage:.1f}"
        rate = "-" if self.launches is None else f"{self.launches:.0f}"
        command = "".join(c if c.isprintable() else "?" for c in self.command)
        return (
            f"{self.pid:>8} {self.uid:>6} {self.server or '-':>8} {self.status:<12} {share:>6} "
            f"{self.contexts:>4} {_mebibytes(self.memory):>10} {rate:>9}  {command}"
        )


SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    "server": lambda row: (row.status == "WAITING", row.server or row.pid, row.server > 0),
    "memory": lambda row: -(row.memory or 0),
    "contexts": lambda row: -row.contexts,
    "launches": lambda row: -(row.launches or 0),
    "uid": lambda row: row.uid,
    "pid": lambda row: row.pid,
}


def summary(answers: list[Any]) -> str:
    """Return the first line."""
    servers, waiting, machine = answers
    clients = sum(len(server["clients"]) for server in servers)
    names = [device["name"] for device in machine["devices"]]
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return f"servers {len(servers)}, clients {clients}, waiting {len(waiting)}; {counted}"


@define
class Rates:
    """What servers launch in a second, from what they have launched until now and until some time before."""

    _counted: dict[int, tuple[float, int]] = field(factory=dict, init=False)
    """By PID: when its number changed last, as far as was seen, and the number."""
    _rates: dict[int, float] = field(factory=dict, init=False)

    def of(self, servers: list[Any], now: float) -> dict[int, float]:
        """Return launches a second by PID, of the servers that were there before and report it."""
        totals = {server["pid"]: sum(server["launches"].values()) for server in servers if server["launches"]}
        for pid, total in totals.items():
            before, count = self._counted.get(pid, (now, total))
            # Reported once a second: between two reports the last rate stands.
            if total == count and now - before < REPORT_SECONDS and pid in self._counted:
                continue
            if pid in self._counted and now > before:
                self._rates[pid] = (total - count) / (now - before)
            self._counted[pid] = now, total
        return {pid: rate for pid, rate in self._rates.items() if pid in totals}


def rows(
    answers: list[Any], sort: str = "server", wanted: str = "", rates: Mapping[int, float] = MappingProxyType({})
) -> list[Row]:
    """Return the rows in the order of ``sort``, a key of SORTS; those only whose line has the text ``wanted``.

    ``rates``: launches a second, by server.
    """
    found = [row for row in _rows(answers, rates) if wanted.casefold() in row.text.casefold()]
    return sorted(found, key=SORTS[sort])


def _rows(answers: list[Any], rates: Mapping[int, float]) -> Iterator[Row]:
    servers, waiting, _ = answers
    for server in servers:
        share = server["active_thread_percentage"]
        clients = [
            Row(
                each["pid"],
                each["uid"],
                server["pid"],
                "ACTIVE" if each["contexts"] else "IDLE",
                share,
                len(each["contexts"]),
                sum(each["memory_bytes"].values()) if each["memory_bytes"] else None,
                each["command"],
            )
            for each in server["clients"]
        ]
        known = [client.memory for client in clients if client.memory is not None]
        contexts = sum(client.contexts for client in clients)
        memory = sum(known) if known else None
        pid, rate = server["pid"], rates.get(server["pid"])
        yield Row(pid, server["uid"], 0, server["status"], share, contexts, memory, server["name"], rate)
        yield from clients
    for each in waiting:
        yield Row(each["pid"], each["uid"], 0, "WAITING", None, 0, None, each["command"] or "start_server")


def _mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1048576:.1f}M"
