"""Ends clients that hold memory above their soft limits, for one that is within its own and lacks memory."""

from __future__ import annotations

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
from pympsd_server.state_machine.eviction import MOST_VICTIMS, Victim, choose

MOST_TRIES: Final = 3
"""Others may take the memory that was freed for a client: room is made for it this often."""
FREED_SECONDS: Final = 1.0
"""The limit for the memory of ended clients to become free: a GPU's is when no work can use it any more."""
EVICTED: Final = (
    "the MPS server ended this process's contexts: it held memory above its soft limit, and another client that is "
    "within its own needed memory"
)


async def answer_shortage(containment: Containment, executor: Executor, message: MemoryShort) -> None:
    """Make room for a client whose work lacks memory, and notify its executor."""
    client = containment.server.roster.clients.get(message.client)
    made = client is not None and await make_room(containment, executor.device, client, message.short)
    executor.channel.send(RoomMade(message.request, made))


async def with_room(
    containment: Containment, device: int, client: Client, attach: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Call ``attach``, which makes a context; while the device has too little memory, make room and call it again."""
    for _ in range(MOST_TRIES):
        try:
            return await attach()
        except ExecutorError as error:
            if not error.short or not await make_room(containment, device, client, error.short):
                raise
    return await attach()


async def make_room(containment: Containment, device: int, caller: Client, short: int) -> bool:
    """End clients that hold at least as many bytes on a device, unless others have freed them meanwhile.

    Return whether the caller should try again.
    """
    server, executors = containment.server, containment.executors
    before = sum(executors.accounts.held(device).values())
    server.log.info("memory_short", uuid=server.devices[device].uuid, pid=caller.pid, short=short)
    async with containment.making_room:
        used = executors.accounts.held(device)
        short -= before - sum(used.values())
        if short <= 0:
            return True  # clients were ended for another one
        if caller.serial not in server.roster.clients or not caller.active_contexts():
            return False
        targets = {client.serial: _targets(server, client, device) for client in server.roster.clients.values()}
        endable = [serial for serial in targets if targets[serial] and serial != caller.serial]
        victims = choose(server.roster.clients.values(), device, used, endable, short)
        if victims is None:
            server.log.info("too_little_borrowed", count=MOST_VICTIMS)
            return False
        if not victims:
            server.log.info("nobody_above_soft_limit")
            return False
        if not await _end(containment, victims, [one for each in victims for one in targets[each.client.serial]]):
            return False
        await _freed(executors, device, {one.client.serial: used[one.client.serial] for one in victims}, short)
        return True


def _targets(server: Server, client: Client, device: int) -> list[Target]:
    """Return a client with each of its contexts to end; none if it has none on the device."""
    contexts = [context for context in client.active_contexts() if context.serial not in server.opening]
    return [(client, each) for each in contexts] if any(each.device == device for each in contexts) else []


async def _end(containment: Containment, victims: Sequence[Victim], targets: Sequence[Target]) -> bool:
    """End clients; return whether their work has stopped in time."""
    log = containment.server.log
    for one in victims:
        group = one.group or "of no cgroup with a soft limit"
        log.info("client_evicted", pid=one.client.pid, group=group, excess=one.excess >> 20)
    for client, context in targets:
        log.info("context_terminated", pid=client.pid, context=context.number)
    if await stop(containment, targets, EVICTED):
        return True
    for one in victims:
        if one.client.active_contexts():
            log.error("eviction_overdue", pid=one.client.pid, seconds=TERMINATION_SECONDS)
    return False


async def _freed(executors: Executors, device: int, held: Mapping[int, int], count: int) -> None:
    """Wait until clients hold ``count`` bytes less than they held, FREED_SECONDS at most."""
    with trio.move_on_after(FREED_SECONDS):
        while True:
            now = executors.accounts.held(device)
            if sum(held.values()) - sum(now.get(serial, 0) for serial in held) >= count:
                return
            await executors.accounts.changed.park()
