"""The kinds of chaos: each is a function that strikes a process, if one exists."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from pympsd.state_machine.failed_starts import REFUSED_FOR
from tests.chaos.commands import limits, lists, pick, queries, run_command
from tests.chaos.history import FOR_EVER, Life
from tests.chaos.identity import ProcessKey, strike, there
from tests.chaos.schedule import DEVICES, FAULTS, Action, Backend, Kind, stop_seconds
from tests.chaos.testbed import SILENT_SECONDS, Testbed, now

KILLED_AFTER: Final = 4.0
"""Seconds; the daemon may kill a server that is stopped for longer while it asks it to end or waits (5, 10 s)."""
END_SECONDS: Final = 30.0
"""The time within which a daemon that is asked to end must end."""
NOTICE_SECONDS: Final = 15.0
MAX_DRAIN_SECONDS: Final = 1.5
"""The maximum time limit of a drain: clients that wait for longer would count as hanging."""
NO_UID: Final = -2
START_SECONDS: Final = 1.0
"""The time from a server's start to its line in the log."""
MISBEHAVIOURS: Final = (
    *(("hang", moment) for moment in ("before_hello", "before_role", "after_role", "on_command:7")),
    *(("crash", moment) for moment in ("before_hello", "before_role", "after_role", "on_command:2", "on_command:17")),
    ("close", "half_way:7"),
    ("wrong_size", 17),
    ("wrong_hello", True),
    ("no_answer", 14),
)
"""Keys of the fake server (tests/support/fake_mps/README.md)."""
Act = Callable[[Testbed, Action], Awaitable[None]]


async def _client_kill(testbed: Testbed, action: Action) -> None:
    life = pick(_strikable(testbed), action.pick)
    if life is not None:
        with testbed.incident(action.kind, action.number, pid=life.pid, client=life.plan.number, uid=life.uid):
            life.killed = True
            if life.is_connecting:
                life.silent_until = now() + SILENT_SECONDS
            strike(life.process, signal.SIGKILL if action.extent < 0.7 else signal.SIGSEGV)


async def _client_stop(testbed: Testbed, action: Action) -> None:
    life = pick(_strikable(testbed), action.pick)
    if life is not None:
        with testbed.incident(action.kind, action.number, pid=life.pid, client=life.plan.number, uid=life.uid):
            # Whether the client is connecting is known only once it is stopped.
            life.silent_until = FOR_EVER
            await _stop(life.process, action)
            life.silent_until = now() + SILENT_SECONDS


def _strikable(testbed: Testbed) -> list[Life]:
    """Return the clients that may be stopped now. If they are connecting, the driver's server needs its daemon."""
    left_alone = testbed.setup.backend is Backend.VENDOR and testbed.busy
    return [life for life in testbed.living() if not (left_alone and life.is_connecting)]


async def _client_fault(testbed: Testbed, action: Action) -> None:
    # The incident begins when the client reports the fault. A client that still handles a command is left alone.
    life = pick(_list_attached(testbed), action.pick)
    faults = FAULTS if testbed.setup.backend is Backend.EMULATED else FAULTS[:1]
    if life is not None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            await testbed.stdin[life.plan.number].send_all(f"{pick(faults, action.extent)}\n".encode())


async def _client_terminate(testbed: Testbed, action: Action) -> None:
    life = pick([life for life in testbed.living() if life.attached != FOR_EVER], action.pick)
    if life is not None:
        await terminate(testbed, life, action.number)


async def terminate(testbed: Testbed, life: Life, number: int) -> None:
    """Terminate a client as an operator."""
    server = testbed.server()
    if server is None or server.uid != life.uid:
        return
    details = {"pid": life.pid, "client": life.plan.number, "uid": life.uid}
    with testbed.incident(Kind.CLIENT_TERMINATE, number, **details) as incident:
        output = await run_command(testbed, f"terminate_client {server.pid} {life.pid}")
    incident.note = output.strip()


async def _executor_kill(testbed: Testbed, action: Action) -> None:
    chosen = _executor(testbed, action)
    if chosen is not None:
        executor, device, uid = chosen
        with testbed.incident(action.kind, action.number, pid=executor.pid, uid=uid, device=device) as incident:
            testbed.killed.add(executor)
            if not strike(executor, signal.SIGKILL):
                incident.uid = NO_UID  # it had gone


async def _executor_stop(testbed: Testbed, action: Action) -> None:
    chosen = _executor(testbed, action)
    if chosen is not None:
        executor, device, uid = chosen
        with testbed.incident(action.kind, action.number, pid=executor.pid, uid=uid, device=device):
            await _stop(executor, action)


async def _server_kill(testbed: Testbed, action: Action) -> None:
    server = testbed.server()
    if server is not None:
        with testbed.incident(action.kind, action.number, pid=server.pid, uid=server.uid):
            testbed.killed.add(server.process)
            strike(server.process, signal.SIGKILL)
            await testbed.until_so(lambda: server.status is not None, NOTICE_SECONDS)


async def _server_stop(testbed: Testbed, action: Action) -> None:
    server = testbed.server()
    if server is not None:
        with testbed.incident(action.kind, action.number, pid=server.pid, uid=server.uid) as incident:
            await _stop(server.process, action)
        # On a busy machine the stop may last longer than planned.
        if incident.ended - incident.began > KILLED_AFTER:
            testbed.killed.add(server.process)


async def _daemon_stop(testbed: Testbed, action: Action) -> None:
    with testbed.incident(action.kind, action.number, pid=testbed.daemon.pid):
        await _stop(testbed.daemon, action)


async def _daemon_kill(testbed: Testbed, action: Action) -> None:
    with testbed.incident(action.kind, action.number, pid=testbed.daemon.pid):
        testbed.killed.add(testbed.daemon)
        strike(testbed.daemon, signal.SIGKILL)
        await testbed.until_gone(testbed.daemon, END_SECONDS)
        await testbed.start_daemon()
    await _check_adopted(testbed)


async def _daemon_replace(testbed: Testbed, action: Action) -> None:
    with testbed.incident(action.kind, action.number, pid=testbed.daemon.pid):
        old = testbed.daemon
        await testbed.start_daemon("--replace")
        if not await testbed.until_gone(old, END_SECONDS):
            testbed.blame(f"daemon {old.pid} was replaced and is still there")
    await _check_adopted(testbed)


async def _keeper_kill(testbed: Testbed, action: Action) -> None:
    keeper = testbed.keeper()
    if keeper is None:
        return
    with testbed.incident(action.kind, action.number, pid=keeper.pid):
        strike(keeper, signal.SIGKILL)
        await _wait_for_kept(testbed, keeper)


async def _keeper_stop(testbed: Testbed, action: Action) -> None:
    keeper = testbed.keeper()
    if keeper is None:
        return
    testbed.listen()
    servers_before, affected = len(testbed.logs.servers), testbed.logs.running()
    with testbed.incident(action.kind, action.number, pid=keeper.pid):
        await _stop(keeper, action)
        # The daemon kills a keeper that takes nothing for some seconds, and starts another.
        await _wait_for_kept(testbed, None)
        if testbed.setup.backend is Backend.VENDOR:
            # Servers do not see the end of a client that was being handed over, and may be killed for that.
            affected += testbed.logs.servers[servers_before:]
            testbed.killed |= {server.process for server in affected}


async def _wait_for_kept(testbed: Testbed, before: ProcessKey | None) -> None:
    """Wait until a keeper, not ``before``, has all entries; until then the daemon's sockets end with the daemon."""
    if await testbed.until_so(
        lambda: (new := testbed.keeper()) is not None and new != before and _has_entries(new), NOTICE_SECONDS
    ):
        return
    testbed.blame(f"no keeper has the sockets {NOTICE_SECONDS:.0f} s after the last one was killed or stopped")


def _has_entries(keeper: ProcessKey) -> bool:
    """Whether the daemon has sent the keeper all entries, the log FIFO too: it sends all of them in one burst."""
    with suppress(OSError):  # it has ended
        folder = f"/proc/{keeper.pid}/fd"
        return any(os.readlink(f"{folder}/{fd}").endswith("/pipe/log") for fd in os.listdir(folder))
    return False


async def _both_kill(testbed: Testbed, action: Action) -> None:
    keeper = testbed.keeper()
    with testbed.incident(action.kind, action.number, pid=testbed.daemon.pid):
        everything, servers_before = _everything(testbed)
        testbed.killed.add(testbed.daemon)
        # A stopped daemon cannot start another keeper.
        strike(testbed.daemon, signal.SIGSTOP)
        if keeper is not None:
            strike(keeper, signal.SIGKILL)
        strike(testbed.daemon, signal.SIGKILL)
        await _over(testbed, "the end of daemon and keeper", everything, servers_before)
        await testbed.start_daemon()


async def _check_adopted(testbed: Testbed) -> None:
    """Check that the previous daemon's server belongs to the new daemon, unless it has ended."""
    server = testbed.server()
    with trio.move_on_after(NOTICE_SECONDS):
        while server is not None and there(server.process):
            status, output = await testbed.tool("get_server_list\n")
            if status == 0 and str(server.pid) in output.split():
                return
            await trio.sleep(0.2)
        return
    testbed.blame(f"server {server.pid if server else 0} is there and was not adopted")


async def _daemon_term(testbed: Testbed, action: Action) -> None:
    with testbed.incident(action.kind, action.number, pid=testbed.daemon.pid):
        everything, servers_before = _everything(testbed)
        strike(testbed.daemon, signal.SIGTERM)
        await _over(testbed, "SIGTERM", everything, servers_before)
        await testbed.start_daemon()


async def _quit(testbed: Testbed, action: Action) -> None:
    with testbed.incident(action.kind, action.number, pid=testbed.daemon.pid):
        everything, servers_before = _everything(testbed)
        status, output = await testbed.tool(f"quit -t {int(action.extent * 3)}\n")
        if status != 0:
            testbed.blame(f"quit ended with {status}: {output}")
        await _over(testbed, "quit -t", everything, servers_before)
        await testbed.start_daemon()


async def _drain(testbed: Testbed, action: Action) -> None:
    """Drain everything or a user, stop the command, and undrain at the daemon that runs then."""
    server = testbed.server()
    target = "--all" if server is None or action.pick < 0.5 else f"--user={server.uid}"
    with testbed.incident(action.kind, action.number):
        await run_command(testbed, f"drain {target} --timeout={action.extent * MAX_DRAIN_SECONDS:.2f} --then=fail")
        with trio.move_on_after(END_SECONDS):
            while (await testbed.tool("undrain\n"))[0] != 0:
                await trio.sleep(0.2)
            return
        testbed.blame(f"{target} could not be undrained within {END_SECONDS:.0f} s")


async def _over(testbed: Testbed, cause: str, everything: set[ProcessKey], servers_before: int) -> None:
    """Check that the daemon ends, and leaves no servers or executors; kill it if it does not end in time."""
    if not await testbed.until_gone(testbed.daemon, END_SECONDS):
        testbed.blame(f"daemon {testbed.daemon.pid} is there {END_SECONDS:.0f} s after {cause}")
        strike(testbed.daemon, signal.SIGKILL)
    testbed.listen()
    # The daemon started these servers before it received the request to end.
    late = {server.process for server in testbed.logs.servers[servers_before:]}
    testbed.forced |= late
    everything |= late
    pids = [process.pid for process in sorted(everything) if not await testbed.until_gone(process, NOTICE_SECONDS)]
    if pids:
        testbed.blame(f"the servers or executors {pids} are there after {cause}")


def _everything(testbed: Testbed) -> tuple[set[ProcessKey], int]:
    """Return the running servers with their executors, and the number of servers so far.

    Record that these servers are forced to end.
    """
    testbed.listen()
    servers = [server for server in testbed.logs.running() if there(server.process)]
    testbed.forced |= {server.process for server in servers}
    processes = {process for server in servers for process in (server.process, *server.executors)}
    return processes, len(testbed.logs.servers)


async def _shutdown_server(testbed: Testbed, action: Action) -> None:
    server = testbed.server()
    if server is None:
        return
    forced = action.kind is Kind.SHUTDOWN_SERVER_FORCED
    if forced:
        testbed.forced.add(server.process)
    with testbed.incident(action.kind, action.number, pid=server.pid, uid=server.uid):
        await run_command(testbed, f"shutdown_server {server.pid}{' -f' if forced else ''}")
        await testbed.until_so(lambda: server.status is not None, NOTICE_SECONDS if forced else 0)


async def _start_server(testbed: Testbed, action: Action) -> None:
    with testbed.incident(action.kind, action.number):
        await run_command(testbed, f"start_server -uid {pick(testbed.uids, action.pick)}")


async def _server_misbehaves(testbed: Testbed, action: Action) -> None:
    """Make the driver's servers that start in the next seconds misbehave, then kill those that run."""
    name, value = pick(MISBEHAVIOURS, action.pick) or ("", "")
    testbed.listen()
    # Servers that are not ready yet may read the new behaviour.
    servers_before = len(testbed.logs.servers)
    affected = [entry for entry in testbed.logs.running() if not entry.ready]
    with testbed.incident(action.kind, action.number, note=f"{name}: {value}"):
        testbed.misbehave(**{name: value})
        server = testbed.server()
        if server is not None:
            await run_command(testbed, f"shutdown_server {server.pid}")
        await trio.sleep(stop_seconds(action.extent))
        testbed.misbehave()
        # A server may have read this behaviour and not be in the log yet.
        await trio.sleep(START_SECONDS)
        testbed.listen()
        affected += testbed.logs.servers[servers_before:]
        for server in affected:
            testbed.misbehaving.add(server.process)
            testbed.killed.add(server.process)
            strike(server.process, signal.SIGKILL)
        with trio.move_on_after(NOTICE_SECONDS):
            for server in affected:
                await testbed.until_gone(server.process, NOTICE_SECONDS)
        # After some failed starts the daemon refuses their users' clients for a while.
        await trio.sleep(REFUSED_FOR)


async def _stop(process: ProcessKey, action: Action) -> None:
    if strike(process, signal.SIGSTOP):
        try:
            await trio.sleep(stop_seconds(action.extent))
        finally:
            strike(process, signal.SIGCONT)


def _list_attached(testbed: Testbed) -> list[Life]:
    return [life for life in testbed.living() if life.attached != FOR_EVER and life.plan.work != "endless"]


def _executor(testbed: Testbed, action: Action) -> tuple[ProcessKey, int, int] | None:
    """Return an executor, its device and uid. (Logs of the dialect r580 name none.)"""
    server = testbed.server()
    chosen = pick(sorted(server.executors.items()) if server else (), action.pick)
    if server is None or chosen is None or not there(chosen[0]):
        return None
    executor, device = chosen
    assert device < DEVICES
    return executor, device, server.uid


ACTIONS: Final[dict[Kind, Act]] = {
    Kind.CLIENT_KILL: _client_kill,
    Kind.CLIENT_STOP: _client_stop,
    Kind.CLIENT_FAULT: _client_fault,
    Kind.CLIENT_TERMINATE: _client_terminate,
    Kind.EXECUTOR_KILL: _executor_kill,
    Kind.EXECUTOR_STOP: _executor_stop,
    Kind.SERVER_KILL: _server_kill,
    Kind.SERVER_STOP: _server_stop,
    Kind.DAEMON_STOP: _daemon_stop,
    Kind.DAEMON_KILL: _daemon_kill,
    Kind.DAEMON_REPLACE: _daemon_replace,
    Kind.KEEPER_KILL: _keeper_kill,
    Kind.KEEPER_STOP: _keeper_stop,
    Kind.BOTH_KILL: _both_kill,
    Kind.DAEMON_TERM: _daemon_term,
    Kind.QUIT: _quit,
    Kind.SHUTDOWN_SERVER: _shutdown_server,
    Kind.SHUTDOWN_SERVER_FORCED: _shutdown_server,
    Kind.START_SERVER: _start_server,
    Kind.DRAIN: _drain,
    Kind.SERVER_MISBEHAVES: _server_misbehaves,
    Kind.LISTS: lists,
    Kind.QUERIES: queries,
    Kind.LIMITS: limits,
}
