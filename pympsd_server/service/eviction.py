"""End clients above their soft memory limits when a client that is within its own limit lacks memory.

`terminate_client` ends a client on an operator's request: all its contexts are stopped permanently, whatever they do,
but the process continues.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from pympsd.vocabulary.results import Result
from pympsd.wire import link_messages as link
from pympsd.wire.executor_messages import MemoryShort, RoomMade, Terminate
from pympsd_server.service.containment import Containment
from pympsd_server.service.executor import Answer, Executor, ExecutorError
from pympsd_server.service.executors import Executors
from pympsd_server.service.server import Server
from pympsd_server.state_machine.client_table import ClientRecord, ContextRecord
from pympsd_server.state_machine.eviction import MAX_VICTIMS, Victim, choose

TERMINATION_SECONDS: Final = 10.0
"""The time limit for stopping the work of a client that an operator terminates."""
TERMINATED_REASON: Final = "an operator ended this context with terminate_client; destroy it and make another"

Target = tuple[ClientRecord, ContextRecord]


async def terminate_client(containment: Containment, request: link.TerminateClient) -> None:
    """Terminate a client and answer the daemon with a CUresult: 201 if the process has no active context here.

    If work does not stop within TERMINATION_SECONDS, the result is 702: a kernel may still run, and another request
    tries again. If the request allows it, the devices are reset instead, which stops the work.
    """
    server = containment.server
    containment.evicted.update(request.expelled)
    targets = [
        (client, context)
        for client in server.client_table.clients.values()
        # PID 0 stands for all processes that the daemon cannot see (pid_namespaces(7)), not for one.
        if client.pid == request.pid != 0
        for context in client.active_contexts()
    ]
    if not targets:
        server.log.info("termination_unknown", pid=request.pid)
        server.log.info("termination_failed")
        server.link.answer_termination(request.token, Result.ERROR_INVALID_CONTEXT)
        return
    for client, context in targets:
        server.log.info("termination_requested", pid=client.pid, context=context.number)
        server.log.info("context_terminated", pid=client.pid, context=context.number)
    if not await stop(containment, targets, TERMINATED_REASON):
        server.log.error("termination_overdue", pid=request.pid, seconds=TERMINATION_SECONDS)
        if not request.by_reset:
            server.link.answer_termination(request.token, Result.ERROR_LAUNCH_TIMEOUT)
            return
        await _reset(containment, targets)
    server.log.info("termination_succeeded")
    server.link.answer_termination(request.token, Result.SUCCESS)


async def stop(containment: Containment, targets: Sequence[Target], reason: str) -> bool:
    """Terminate contexts concurrently; return whether all their work has stopped within TERMINATION_SECONDS."""
    with trio.move_on_after(TERMINATION_SECONDS) as bound:
        async with trio.open_nursery() as nursery:
            for client, context in targets:
                nursery.start_soon(_terminate, containment, client, context, reason)
    return not bound.cancelled_caught


async def _terminate(containment: Containment, client: ClientRecord, context: ContextRecord, reason: str) -> None:
    executor = containment.executors.executor_of(context)
    if executor is not None:
        while await _still_runs(containment.executors, executor, context, reason):
            pass
    containment.server.client_table.mark_terminated(client, context)


async def _still_runs(executors: Executors, executor: Executor, context: ContextRecord, reason: str) -> bool:
    """Terminate a context; return whether its work still runs after a while because the device cannot stop it."""
    request = executors.next_request()
    try:
        await executor.ask(request, Terminate(request, context.id, reason=reason))
    except ExecutorError as error:
        # Otherwise the context or its executor has ended, and with it the work.
        return error.code == Result.ERROR_LAUNCH_TIMEOUT
    return False


async def _reset(containment: Containment, targets: Sequence[Target]) -> None:
    """Reset the devices on which work of the targets still runs. The operator has allowed this."""
    server = containment.server
    for client, context in targets:
        if context.id in client.terminated:
            continue
        reason = f"an operator ended process {client.pid} with terminate_client, and its kernel could not be stopped"
        server.log.error("termination_by_reset", pid=client.pid, device=context.device)
        await containment.reset(context, reason)
        server.client_table.mark_terminated(client, context)


MAX_TRIES: Final = 3
"""The maximum number of attempts to free memory for a client, because other clients may take the freed memory."""
FREED_SECONDS: Final = 1.0
"""The time limit for the memory of ended clients to become free. On a GPU it becomes free when no work can use it."""
EVICTED: Final = (
    "the MPS server ended this process's contexts: it held memory above its soft limit, and another client that is "
    "within its own needed memory"
)


async def answer_shortage(containment: Containment, executor: Executor, message: MemoryShort) -> None:
    """Free memory for a client whose work needs it, and report the result to the executor."""
    client = containment.server.client_table.clients.get(message.client)
    has_freed = client is not None and await make_room(containment, executor.device, client, message.short)
    executor.channel.send(RoomMade(message.request, has_freed))


async def attach_with_room(
    containment: Containment, device: int, client: ClientRecord, attach: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Call ``attach``, which creates a context, and return its answer.

    While the device lacks memory, end clients above their soft limits and call ``attach`` again, up to MAX_TRIES
    times.
    """
    for _ in range(MAX_TRIES):
        try:
            return await attach()
        except ExecutorError as error:
            if not error.short or not await make_room(containment, device, client, error.short):
                raise
    return await attach()


async def make_room(containment: Containment, device: int, caller: ClientRecord, short: int) -> bool:
    """End clients that together hold ``short`` bytes on a device, unless enough was freed in the meantime.

    Return whether the caller should try again.
    """
    server, executors = containment.server, containment.executors
    before = sum(executors.accounts.usage(device).values())
    server.log.info("memory_short", uuid=server.devices[device].uuid, pid=caller.pid, short=short)
    async with containment.making_room:
        used = executors.accounts.usage(device)
        short -= before - sum(used.values())
        if short <= 0:
            return True  # clients were ended for another request
        if caller.id not in server.client_table.clients or not caller.active_contexts():
            return False
        targets = {client.id: _targets(server, client, device) for client in server.client_table.clients.values()}
        endable = [client_id for client_id in targets if targets[client_id] and client_id != caller.id]
        victims = choose(server.client_table.clients.values(), device, used, endable, short)
        if victims is None:
            server.log.info("eviction_insufficient", count=MAX_VICTIMS)
            return False
        if not victims:
            server.log.info("no_client_above_soft_limit")
            return False
        if not await _end(
            containment, victims, [target for victim in victims for target in targets[victim.client.id]]
        ):
            return False
        await _wait_until_freed(
            executors, device, {target.client.id: used[target.client.id] for target in victims}, short
        )
        return True


def _targets(server: Server, client: ClientRecord, device: int) -> list[Target]:
    """Return all contexts of a client, each with the client; an empty list if it has no context on the device."""
    contexts = [context for context in client.active_contexts() if context.id not in server.opening]
    return (
        [(client, context) for context in contexts] if any(context.device == device for context in contexts) else []
    )


async def _end(containment: Containment, victims: Sequence[Victim], targets: Sequence[Target]) -> bool:
    """End clients; return whether their work has stopped within TERMINATION_SECONDS."""
    log = containment.server.log
    for victim in victims:
        group = victim.group or "of no cgroup with a soft limit"
        log.info("client_evicted", pid=victim.client.pid, group=group, excess=victim.excess >> 20)
    for client, context in targets:
        log.info("context_terminated", pid=client.pid, context=context.number)
    if await stop(containment, targets, EVICTED):
        return True
    for victim in victims:
        if victim.client.active_contexts():
            log.error("eviction_overdue", pid=victim.client.pid, seconds=TERMINATION_SECONDS)
    return False


async def _wait_until_freed(executors: Executors, device: int, memory: Mapping[int, int], count: int) -> None:
    """Wait until clients hold ``count`` bytes less than in ``memory``, their bytes by client id.

    Wait at most FREED_SECONDS.
    """
    with trio.move_on_after(FREED_SECONDS):
        while True:
            now = executors.accounts.usage(device)
            if sum(memory.values()) - sum(now.get(client_id, 0) for client_id in memory) >= count:
                return
            await executors.accounts.changed.park()
