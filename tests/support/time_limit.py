"""A time limit for tests that await."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps

import trio

SECONDS = 60


def with_limit(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Give a test a time limit."""

    @wraps(test)
    async def run(*arguments: object, **keywords: object) -> None:
        with trio.fail_after(SECONDS):
            await test(*arguments, **keywords)

    return run
