"""The commands of operators in a soak: queries, limits, and lists that are compared with the clients' reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import trio

from tests.chaos.identity import there
from tests.chaos.listings import differences, pids
from tests.chaos.log_history import ServerHistory
from tests.chaos.recoveries import SLACK
from tests.chaos.schedule import Action, Kind
from tests.chaos.testbed import Testbed, now

_Any = TypeVar("_Any")

UNKNOWN_WHILE: Final = frozenset({Kind.SERVER_STOP, Kind.SERVER_MISBEHAVES, Kind.EXECUTOR_STOP, Kind.EXECUTOR_KILL})
"""The kinds of chaos that keep a server from reporting its state."""
QUERIES: Final = (
    "ps", "get_server_list", "get_device_client_list", "device_query", "device_query --csv", "nonsense",
    "get_server_status {server}", "get_client_list {server}", "ps -p {server}", "get_client_list 1",
    "get_default_active_thread_percentage",
    "get_default_device_pinned_mem_limit 0", "get_active_thread_percentage {server}",
)  # fmt: skip
LIMITS: Final = (
    "set_default_active_thread_percentage 50", "set_default_active_thread_percentage 100",
    "set_default_device_pinned_mem_limit 0 3G", "set_default_device_pinned_mem_limit 1 4G",
    "set_active_thread_percentage {server} 75", "set_device_pinned_mem_limit {server} 2 2G",
    "set_default_client_priority 1", "set_default_client_priority 0",
    "set_default_device_pinned_mem_limit 0 nonsense",
)  # fmt: skip


def pick(among: Sequence[_Any], share: float) -> _Any | None:
    """Return the value at a share, 0 to 1, of a sequence; None if it is empty."""
    return among[min(int(share * len(among)), len(among) - 1)] if among else None


async def lists(testbed: Testbed, action: Action) -> None:
    """Check that lists have every client that had a context all the time, and no client that had ended before."""
    server = testbed.server()
    if server is None:
        return
    with testbed.incident(action.kind, action.number, uid=server.uid):
        for line, column in (("ps", 2), (f"get_client_list {server.pid}", None)):
            requested_at = now()
            output = await run_command(testbed, line)
            answered = now()
            testbed.listen()
            if not _is_known(testbed, server, output, requested_at):
                testbed.counts["left out: lists, the server could not be asked"] += 1
                continue
            await trio.sleep(SLACK)  # so that the clients' reports up to the answer have been read
            shown = pids(output, server.pid, column)
            testbed.counts["clients seen in lists"] += len(shown)
            for problem in differences(testbed.history, server.uid, shown, requested_at, answered):
                testbed.blame(f"{line!r} at {requested_at:.3f} {problem}")


def _is_known(testbed: Testbed, server: ServerHistory, answer: str, since: float) -> bool:
    """Whether a server could report its clients: it and its daemon ran, and nothing prevented its answer."""
    return not (
        testbed.troubled(since)
        or server.status is not None
        or not there(server.process)
        or "does not answer" in answer
        or any(incident.kind in UNKNOWN_WHILE and incident.ended >= since for incident in testbed.history.incidents)
    )


async def queries(testbed: Testbed, action: Action) -> None:
    with testbed.incident(action.kind, action.number):
        await _command(testbed, action, QUERIES, uid=testbed.uids[0] if action.extent < 0.5 else 0)


async def limits(testbed: Testbed, action: Action) -> None:
    with testbed.incident(action.kind, action.number):
        await _command(testbed, action, LIMITS)


async def _command(testbed: Testbed, action: Action, among: tuple[str, ...], uid: int = 0) -> None:
    server = testbed.server()
    line = pick(among, action.pick) or ""
    await run_command(testbed, line.format(server=server.pid if server else 0), uid)


async def run_command(testbed: Testbed, line: str, uid: int = 0) -> str:
    """Run an operator's command and return its output; report a failure, unless no daemon ran."""
    began = now()
    status, output = await testbed.tool(f"{line}\n", uid=uid)
    if status != 0 and not testbed.troubled(began):
        testbed.blame(f"{line!r} was answered with status {status}: {output!r}")
    return output
