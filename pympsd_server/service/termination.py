"""terminate_client: stop all contexts of a client process for good, whatever they do; the process keeps running."""

from collections.abc import Sequence
from typing import Final

import trio

from pympsd.vocabulary.results import Result
from pympsd.wire import link_messages as link
from pympsd.wire.executor_messages import Terminate
from pympsd_server.service.containment import Containment
from pympsd_server.service.executor import Executor, ExecutorError
from pympsd_server.service.executors import Executors
from pympsd_server.state_machine.client_table import Client, Context

TERMINATION_SECONDS: Final = 10.0
"""The limit for stopping the work of a client that an operator terminates."""
TERMINATED_REASON: Final = "an operator ended this context with terminate_client; destroy it and make another"

Target = tuple[Client, Context]


async def terminate_client(containment: Containment, request: link.TerminateClient) -> None:
    """Terminate a client and answer the daemon with a CUresult: 201 if the process has no active context here.

    If some of its work does not stop within TERMINATION_SECONDS: 702, a kernel may still run, and another request
    tries again; or, if the request allows it, its devices are reset, which stops the work.
    """
    server = containment.server
    containment.evicted.update(request.expelled)
    targets = [
        (client, context)
        for client in server.client_table.clients.values()
        # PID 0 is not a process: it stands for all that the daemon does not see (pid_namespaces(7)).
        if client.pid == request.pid != 0
        for context in client.active_contexts()
    ]
    if not targets:
        server.log.info("termination_unknown", pid=request.pid)
        server.log.info("termination_failed")
        server.link.terminated(request.token, Result.ERROR_INVALID_CONTEXT)
        return
    for client, context in targets:
        server.log.info("termination_requested", pid=client.pid, context=context.number)
        server.log.info("context_terminated", pid=client.pid, context=context.number)
    if not await stop(containment, targets, TERMINATED_REASON):
        server.log.error("termination_overdue", pid=request.pid, seconds=TERMINATION_SECONDS)
        if not request.by_reset:
            server.link.terminated(request.token, Result.ERROR_LAUNCH_TIMEOUT)
            return
        await _reset(containment, targets)
    server.log.info("termination_succeeded")
    server.link.terminated(request.token, Result.SUCCESS)


async def stop(containment: Containment, targets: Sequence[Target], reason: str) -> bool:
    """Terminate contexts concurrently; return whether all of their work has stopped in TERMINATION_SECONDS."""
    with trio.move_on_after(TERMINATION_SECONDS) as bound:
        async with trio.open_nursery() as nursery:
            for client, context in targets:
                nursery.start_soon(_terminate, containment, client, context, reason)
    return not bound.cancelled_caught


async def _terminate(containment: Containment, client: Client, context: Context, reason: str) -> None:
    executor = containment.executors.executor_of(context)
    if executor is not None:
        while await _still_runs(containment.executors, executor, context, reason):
            pass
    containment.server.client_table.mark_terminated(client, context)


async def _still_runs(executors: Executors, executor: Executor, context: Context, reason: str) -> bool:
    """Terminate a context; return whether its device cannot stop the work, after waiting for it for a while."""
    request = executors.next_request()
    try:
        await executor.ask(request, Terminate(request, context.id, reason=reason))
    except ExecutorError as error:
        # Else the context or its executor has ended, and with it the work.
        return error.code == Result.ERROR_LAUNCH_TIMEOUT
    return False


async def _reset(containment: Containment, targets: Sequence[Target]) -> None:
    """Reset the devices on which work of the targets still runs, as the operator allows."""
    server = containment.server
    for client, context in targets:
        if context.id in client.terminated:
            continue
        reason = f"an operator ended process {client.pid} with terminate_client, and its kernel could not be stopped"
        server.log.error("termination_by_reset", pid=client.pid, device=context.device)
        await containment.reset(context, reason)
        server.client_table.mark_terminated(client, context)
