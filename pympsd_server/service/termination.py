"""terminate_client: all contexts of a client process stop for good, whatever they do; the process lives on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from pympsd.vocabulary.results import Result
from pympsd.wire import link_messages as link
from pympsd.wire.executor_messages import Terminate
from pympsd_server.service.executors import Executor, ExecutorError
from pympsd_server.service.server import Server
from pympsd_server.state_machine.roster import Client, Context

TERMINATION_SECONDS: Final = 10.0
"""What runs for a client has so long to stop when an operator ends it."""

Target = tuple[Client, Context]


async def terminate_client(server: Server, asked: link.TerminateClient) -> None:
    """Terminate and answer the daemon with a CUresult: 201 when the process has no active context here.

    Where some work of it could not be stopped within TERMINATION_SECONDS: 702, a kernel of it may still run, and
    asked again it is tried again; or, when that is asked for, its devices are reset, which stops it.
    """
    targets = [
        (client, context)
        for client in server.roster.clients.values()
        # PID 0 is no process: it stands for each that is not visible to the daemon (pid_namespaces(7)).
        if client.pid == asked.pid != 0
        for context in client.active_contexts()
    ]
    if not targets:
        server.log.info("termination_unknown", pid=asked.pid)
        server.log.info("termination_failed")
        server.link.terminated(asked.token, Result.ERROR_INVALID_CONTEXT)
        return
    for client, context in targets:
        server.log.info("termination_requested", pid=client.pid, context=context.number)
        server.log.info("context_terminated", pid=client.pid, context=context.number)
    if not await _stop(server, targets):
        server.log.error("termination_overdue", pid=asked.pid, seconds=TERMINATION_SECONDS)
        if not asked.by_reset:
            server.link.terminated(asked.token, Result.ERROR_LAUNCH_TIMEOUT)
            return
        await _reset(server, targets)
    server.log.info("termination_succeeded")
    server.link.terminated(asked.token, Result.SUCCESS)


async def _stop(server: Server, targets: Sequence[Target]) -> bool:
    """Terminate contexts, all at once; return whether nothing of them runs any more."""
    with trio.move_on_after(TERMINATION_SECONDS) as bound:
        async with trio.open_nursery() as nursery:
            for client, context in targets:
                nursery.start_soon(_terminate, server, client, context)
    return not bound.cancelled_caught


async def _terminate(server: Server, client: Client, context: Context) -> None:
    executor = server.executors.that_runs(context)
    if executor is not None:
        while await _still_runs(server, executor, context):
            pass
    server.roster.stopped(client, context)


async def _still_runs(server: Server, executor: Executor, context: Context) -> bool:
    """Terminate a context; return whether its device cannot stop what runs, and has waited for it for a while."""
    request = server.executors.next_request()
    try:
        await executor.ask(request, Terminate(request, context.serial))
    except ExecutorError as error:
        # Else the context, or its executor, has ended meanwhile: no work of it is left.
        return error.code == Result.ERROR_LAUNCH_TIMEOUT
    return False


async def _reset(server: Server, targets: Sequence[Target]) -> None:
    """Have the devices reset on which something of the targets still runs: the operator allows it."""
    for client, context in targets:
        if context.serial in client.terminated:
            continue
        reason = f"an operator ended process {client.pid} with terminate_client, and its kernel could not be stopped"
        server.log.error("termination_by_reset", pid=client.pid, device=context.device)
        await server.containment.reset(context, reason)
        server.roster.stopped(client, context)
