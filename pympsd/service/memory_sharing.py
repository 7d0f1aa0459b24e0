"""Report to each server what clients of other servers hold on its devices, when that has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from attrs import define, field

from pympsd.service.sessions.server import ServerSession
from pympsd.state_machine.memory_elsewhere import Elsewhere, memory_elsewhere
from pympsd.wire.link_messages import MemoryElsewhere

if TYPE_CHECKING:
    from pympsd.service.dispatcher import Dispatcher

PAUSE_SECONDS: Final = 0.25
"""Between two rounds, so that many servers with frequent allocations do not make them costly."""


@define
class MemorySharing:
    """The latest reports, by server id and device ordinal."""

    dispatcher: Dispatcher
    _sent: dict[int, dict[int, Elsewhere]] = field(factory=dict, init=False)

    async def run(self) -> None:
        """Report changes to servers until cancelled."""
        while True:
            await self.dispatcher.changed.wait()
            self.dispatcher.changed = trio.Event()
            self._send()
            await trio.sleep(PAUSE_SECONDS)

    def _send(self) -> None:
        sent, self._sent = self._sent, {}
        for server_id, devices in memory_elsewhere(self.dispatcher.state).items():
            session = self.dispatcher.servers.get(server_id)
            if not isinstance(session, ServerSession) or not session.is_set_up:
                continue
            self._sent[server_id] = devices
            before = sent.get(server_id, {})
            for ordinal, memory in devices.items():
                if memory == before.get(ordinal):
                    continue
                try:
                    session.send(MemoryElsewhere(ordinal, memory.count, memory.groups))
                except Exception as error:  # no message of a server or client may end the daemon
                    self.dispatcher.log.error("daemon_defect", reason=repr(error))
