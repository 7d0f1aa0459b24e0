"""End clients above their soft memory limits when a client that is within its own limit lacks memory."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from pympsd.wire.executor_messages import MemoryShort, RoomMade
from pympsd_server.service.containment import Containment
from pympsd_server.service.executor import Answer, Executor, ExecutorError
from pympsd_server.service.executors import Executors
from pympsd_server.service.server import Server
from pympsd_server.service.termination import TERMINATION_SECONDS, Target, stop
from pympsd_server.state_machine.client_table import Client
from pympsd_server.state_machine.eviction import MAX_VICTIMS, Victim, choose

MAX_TRIES: Final = 3
"""Attempts to free memory for a client: other clients may take what was freed."""
FREED_SECONDS: Final = 1.0
"""The limit for the memory of ended clients to become free: a GPU's is when no work can use it any more."""
EVICTED: Final = (
    "the MPS server ended this process's contexts: it held memory above its soft limit, and another client that is "
    "within its own needed memory"
)


async def answer_shortage(containment: Containment, executor: Executor, message: MemoryShort) -> None:
    """Free memory for a client whose work lacks it, and notify its executor."""
    client = containment.server.client_table.clients.get(message.client)
    has_freed = client is not None and await make_room(containment, executor.device, client, message.short)
    executor.channel.send(RoomMade(message.request, has_freed))


async def with_room(
    containment: Containment, device: int, client: Client, attach: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Call ``attach``, which creates a context, and return its answer.

    While the device has too little memory, end clients above their soft limits and call it again, MAX_TRIES times.
    """
    for _ in range(MAX_TRIES):
        try:
            return await attach()
        except ExecutorError as error:
            if not error.short or not await make_room(containment, device, client, error.short):
                raise
    return await attach()


async def make_room(containment: Containment, device: int, caller: Client, short: int) -> bool:
    """End clients that hold at least as many bytes on a device, unless the memory was freed for another one before.

    Return whether the caller should try again.
    """
    server, executors = containment.server, containment.executors
    before = sum(executors.accounts.usage(device).values())
    server.log.info("memory_short", uuid=server.devices[device].uuid, pid=caller.pid, short=short)
    async with containment.making_room:
        used = executors.accounts.usage(device)
        short -= before - sum(used.values())
        if short <= 0:
            return True  # clients were ended for another one
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


def _targets(server: Server, client: Client, device: int) -> list[Target]:
    """Return a client with each of its contexts to end; none if it has none on the device."""
    contexts = [context for context in client.active_contexts() if context.id not in server.opening]
    return (
        [(client, context) for context in contexts] if any(context.device == device for context in contexts) else []
    )


async def _end(containment: Containment, victims: Sequence[Victim], targets: Sequence[Target]) -> bool:
    """End clients; return whether their work has stopped in time."""
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
    """Wait until clients hold ``count`` bytes less than they held, FREED_SECONDS at most."""
    with trio.move_on_after(FREED_SECONDS):
        while True:
            now = executors.accounts.usage(device)
            if sum(memory.values()) - sum(now.get(client_id, 0) for client_id in memory) >= count:
                return
            await executors.accounts.changed.park()
