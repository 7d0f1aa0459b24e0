"""terminate_client: all contexts of a client process stop for good, whatever they do; the process lives on."""

from __future__ import annotations

from pympsd.vocabulary.results import Result
from pympsd.wire import link_messages as link
from pympsd.wire.executor_messages import Terminate
from pympsd_server.mind.roster import Client, Context
from pympsd_server.service.executors import ExecutorError
from pympsd_server.service.server import Server


async def terminate_client(server: Server, asked: link.TerminateClient) -> None:
    """Terminate and answer the daemon with a CUresult: 201 when the process has no active context here."""
    targets = [
        (client, context)
        for client in server.roster.clients.values()
        if client.pid == asked.pid
        for context in client.active_contexts()
    ]
    if not targets:
        server.log.info("termination_unknown", pid=asked.pid)
        server.log.info("termination_failed")
        server.link.terminated(asked.token, Result.ERROR_INVALID_CONTEXT)
        return
    for client, context in targets:
        await _terminate(server, client, context)
    server.log.info("termination_succeeded")
    server.link.terminated(asked.token, Result.SUCCESS)


async def _terminate(server: Server, client: Client, context: Context) -> None:
    server.log.info("termination_requested", pid=client.pid, context=context.number)
    server.log.info("context_terminated", pid=client.pid, context=context.number)
    client.terminated.add(context.serial)
    executor = server.executors.running(context.device)
    if executor is not None and executor.generation == context.generation:
        request = server.executors.next_request()
        try:
            await executor.ask(request, Terminate(request, context.serial))
        except ExecutorError:
            return  # the context, or its executor, has ended meanwhile: no work of it is left
