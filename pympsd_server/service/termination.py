"""terminate_client: all contexts of a client process stop for good, whatever they do; the process lives on."""

from __future__ import annotations

from typing import Final

import trio

from pympsd.vocabulary.results import Result
from pympsd.wire import link_messages as link
from pympsd.wire.executor_messages import Terminate
from pympsd_server.mind.roster import Client, Context
from pympsd_server.service.executors import Executor, ExecutorError
from pympsd_server.service.server import Server

TERMINATION_SECONDS: Final = 10.0
"""What runs for a client has so long to stop when an operator ends it."""


async def terminate_client(server: Server, asked: link.TerminateClient) -> None:
    """Terminate and answer the daemon with a CUresult: 201 when the process has no active context here.

    702 when some work of it could not be stopped within TERMINATION_SECONDS: a kernel of it may still run, and asked
    again it is tried again.
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
    with trio.move_on_after(TERMINATION_SECONDS) as bound:
        async with trio.open_nursery() as nursery:
            for client, context in targets:
                nursery.start_soon(_terminate, server, client, context)
    if bound.cancelled_caught:
        server.log.error("termination_overdue", pid=asked.pid, seconds=TERMINATION_SECONDS)
        server.link.terminated(asked.token, Result.ERROR_LAUNCH_TIMEOUT)
        return
    server.log.info("termination_succeeded")
    server.link.terminated(asked.token, Result.SUCCESS)


async def _terminate(server: Server, client: Client, context: Context) -> None:
    executor = server.executors.running(context.device)
    if executor is not None and executor.generation == context.generation:
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
