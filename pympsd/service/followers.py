"""Call the followers: functions that are called after the daemon's state has changed, with a pause between rounds.

Their results, such as the file for NVML, depend on the whole state, and events come in bursts: a job starts with
hundreds of clients, and servers report memory several times per second. So nothing is done for each single event. The
first change after a quiet time is followed immediately, later ones after a pause, and an idle daemon does not wake
up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, field

from pympsd.service.sessions.server import ServerSession
from pympsd.state_machine.memory_elsewhere import Elsewhere, memory_elsewhere
from pympsd.wire.link_messages import MemoryElsewhere

if TYPE_CHECKING:
    from pympsd.service.dispatcher import Dispatcher

PAUSE_SECONDS: Final = 0.25
"""The pause in seconds between two rounds, so that many servers with frequent allocations take little processor time.
"""


async def follow(dispatcher: Dispatcher, *functions: Callable[[], None]) -> None:
    """Call the functions, in their order, after changes of the daemon's state, until cancelled.

    An exception is logged as a defect, and the other functions are still called: none of them may end the daemon.
    """
    while True:
        await dispatcher.changed.wait()
        dispatcher.changed = trio.Event()
        for function in functions:
            try:
                function()
            except Exception as error:
                dispatcher.log.error("daemon_defect", reason=repr(error))
        await trio.sleep(PAUSE_SECONDS)


@define
class MemorySharing:
    """Reports to each server the memory that clients of other servers hold on its devices.

    ``_sent`` has the latest reports, by server id and device ordinal.
    """

    dispatcher: Dispatcher
    _sent: dict[int, dict[int, Elsewhere]] = field(factory=dict, init=False)

    def send(self) -> None:
        """Report the changes since the last call."""
        last_reports, self._sent = self._sent, {}
        for server_id, devices in memory_elsewhere(self.dispatcher.state).items():
            session = self.dispatcher.sessions.servers.get(server_id)
            if not isinstance(session, ServerSession) or not session.is_set_up:
                continue
            self._sent[server_id] = devices
            before = last_reports.get(server_id, {})
            for ordinal, memory in devices.items():
                if memory == before.get(ordinal):
                    continue
                try:
                    session.send(MemoryElsewhere(ordinal, memory.count, memory.groups))
                except Exception as error:  # no message from a server or client may end the daemon
                    self.dispatcher.log.error("daemon_defect", reason=repr(error))
