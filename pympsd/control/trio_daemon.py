"""Daemons for programs that run with trio: the same calls as coroutines. Each call waits in a thread.

>>> import trio
>>> from pympsd.control.trio_daemon import open_daemon
>>> async def main():
...     async with open_daemon(machine="H200") as daemon:
...         print(await daemon.ps())
>>> trio.run(main)
()
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from attrs import frozen

from pympsd.control.daemon import Daemon, RunningDaemon
from pympsd.control.records import Client, Device, Drain, Drained, Server, Waiting


@frozen
class TrioDaemon:
    """A daemon whose calls are coroutines; ``daemon`` has the calls that do not wait, such as ``environment``.

    Use `open_daemon` to start one, or wrap a daemon that runs: ``TrioDaemon(RunningDaemon())``.
    """

    daemon: RunningDaemon

    async def devices(self) -> tuple[Device, ...]:
        """Call `RunningDaemon.devices` in a thread, with the same result and errors.

        A cancelled call waits for the daemon's answer first.
        """
        return await trio.to_thread.run_sync(self.daemon.devices)

    async def servers(self) -> tuple[Server, ...]:
        """Call `RunningDaemon.servers` in a thread, with the same result and errors.

        A cancelled call waits for the daemon's answer first.
        """
        return await trio.to_thread.run_sync(self.daemon.servers)

    async def ps(self) -> tuple[Client, ...]:
        """Call `RunningDaemon.ps` in a thread, with the same result and errors.

        A cancelled call waits for the daemon's answer first.
        """
        return await trio.to_thread.run_sync(self.daemon.ps)

    async def waiting(self) -> tuple[Waiting, ...]:
        """Call `RunningDaemon.waiting` in a thread, with the same result and errors.

        A cancelled call waits for the daemon's answer first.
        """
        return await trio.to_thread.run_sync(self.daemon.waiting)

    async def drains(self) -> tuple[Drain, ...]:
        """Call `RunningDaemon.drains` in a thread, with the same result and errors.

        A cancelled call waits for the daemon's answer first.
        """
        return await trio.to_thread.run_sync(self.daemon.drains)

    async def drain(self, client: int | None = None, **options: Any) -> Drained:
        """Call `RunningDaemon.drain` in a thread, with the same arguments, result and errors.

        A cancelled call leaves the drain in force.
        """
        return await trio.to_thread.run_sync(partial(self.daemon.drain, client, **options), abandon_on_cancel=True)

    async def undrain(self, client: int | None = None, **target: Any) -> None:
        """Call `RunningDaemon.undrain` in a thread, with the same arguments and errors.

        A cancelled call waits for the daemon's answer first.
        """
        await trio.to_thread.run_sync(partial(self.daemon.undrain, client, **target))

    async def listing(self, query: str) -> list[dict[str, Any]]:
        """Call `RunningDaemon.listing` in a thread, with the same result and errors.

        A cancelled call waits for the answer first.
        """
        return await trio.to_thread.run_sync(self.daemon.listing, query)

    async def command(self, line: str) -> str:
        """Call `RunningDaemon.command` in a thread, with the same result and errors.

        ``line`` is carried out whether or not the call is cancelled: a cancelled call waits for the answer first.
        """
        return await trio.to_thread.run_sync(self.daemon.command, line)


@asynccontextmanager
async def open_daemon(**arguments: Any) -> AsyncIterator[TrioDaemon]:
    """Start a daemon with the arguments of `pympsd.control.Daemon`, and end it after the block, even if cancelled.

    Raises:
        CannotStart: The daemon did not start.
    """
    daemon = Daemon(**arguments)
    try:
        await trio.to_thread.run_sync(daemon.start)
        yield TrioDaemon(daemon)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(daemon.stop)
