"""Run a session together with the task that sends what it queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from pympsd.channel.send_queue import SendQueue
from pympsd.errors import ProtocolError
from pympsd.service.dispatcher import Dispatcher

LAST_SECONDS: Final = 10.0
"""Time to send what is queued when a session ends."""


async def run_with_sender(
    channel: SendQueue, session: Callable[[Dispatcher], Awaitable[None]], dispatcher: Dispatcher
) -> None:
    """Run a session with its sender; at its end send what is queued, within LAST_SECONDS.

    Raise what ended the session: a violation of the protocol, or the limit that the peer has exceeded.
    """
    broken: ProtocolError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        try:
            await session(dispatcher)
        except ProtocolError as error:
            broken = error
        channel.finish()
        nursery.cancel_scope.deadline = trio.current_time() + LAST_SECONDS
    # Raised here: the nursery would wrap it in a group.
    if channel.failure is not None:
        raise channel.failure
    if broken is not None:
        raise broken
