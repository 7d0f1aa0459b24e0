"""Ends clients that hold memory above their soft limits, for one that is within its own and lacks memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from pympsd.wire.executor_messages import MemoryShort, RoomMade
from pympsd_server.service.containment import Containment
from pympsd_server.service.executor import Answer, Executor, ExecutorError
from pympsd_server.service.termination import TERMINATION_SECONDS, stop
from pympsd_server.state_machine.eviction import MOST_VICTIMS, choose
from pympsd_server.state_machine.roster import Client

EVICTED: Final = (
    "the MPS server ended this process's contexts: it held memory above its soft limit, and another client that is "
    "within its own needed memory"
)


async def answer_shortage(containment: Containment, executor: Executor, message: MemoryShort) -> None:
    """Make room for a client whose work lacks memory, and tell its executor."""
    client = containment.server.roster.clients.get(message.client)
    ended = client is not None and await make_room(containment, executor.device, client, message.short)
    executor.channel.send(RoomMade(message.request, ended))


async def with_room(
    containment: Containment, device: int, client: Client, attach: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Call ``attach``, which makes a context; if the device has too little memory, make room and call it again."""
    try:
        return await attach()
    except ExecutorError as error:
        if not error.short or not await make_room(containment, device, client, error.short):
            raise
    return await attach()


async def make_room(containment: Containment, device: int, caller: Client, short: int) -> bool:
    """End clients that hold at least as many bytes on a device; return whether some were ended, and all in time."""
    server, log = containment.server, containment.server.log
    async with containment.making_room:
        log.info("memory_short", uuid=server.devices[device].uuid, pid=caller.pid, short=short)
        used = containment.executors.held(device)
        victims = choose(server.roster.clients.values(), device, used, caller.serial, short)
        if victims is None:
            log.info("too_little_borrowed", count=MOST_VICTIMS)
            return False
        if not victims:
            log.info("nobody_above_soft_limit")
            return False
        targets = [
            (one.client, context)
            for one in victims
            for context in one.client.active_contexts()
            if context.serial not in server.opening
        ]
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
