"""The daemon's side of a server's link: what the server pushes becomes events, its log records become lines."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

import trio
from attrs import define, field

from pympsd.channel.awaited import MessageChannel
from pympsd.journal.line_format import sanitised
from pympsd.service.descriptor_shares import share_of_descriptors
from pympsd.service.dispatcher import Hub
from pympsd.service.rate_limit import Allowance, cost_of
from pympsd.state_machine import events
from pympsd.state_machine.server_lifecycle import IllegalMove
from pympsd.vocabulary.statuses import ServerStatus
from pympsd.wire import link_messages as link
from pympsd.wire.errors import RemoteError
from pympsd.wire.versions import Versions, agree

LOG_RECORDS_PER_SECOND: Final = 5000
"""Log lines a second that one server, with all its clients, may cause."""
MOST_CONTEXTS: Final = 64 * 48
"""48 on each of 64 devices: a server that reports more is not one of ours."""
SHARE_OF_QUEUED: Final = 4
"""What waits for a server that does not take its clients may be one in so many of the descriptors."""
SHARE_OF_WATCHED: Final = 16
"""And of so many one may be a pidfd of an admitted client."""


class Killable(Protocol):
    """A server's process: a child of this daemon, or of one before."""

    def kill(self) -> None:
        """Kill it."""


@define
class ServerSession:
    """A server that runs; one that an earlier daemon started has no channel before it has returned."""

    serial: int
    uid: int
    pid: int
    process: Killable
    _channel: MessageChannel | None = None
    _set_up_yet: bool = field(default=False, init=False)
    _held: list[object] = field(factory=list, init=False)
    """What is for the server, but not before its setup."""
    _allowance: Allowance = field(factory=lambda: Allowance(LOG_RECORDS_PER_SECOND), init=False)
    _dropped: int = field(default=0, init=False)
    _contexts: int = field(default=0, init=False)
    _watched: dict[int, trio.CancelScope] = field(factory=dict, init=False)
    """By client: around the task that waits for the end of its process."""

    @property
    def channel(self) -> MessageChannel:
        """The link to the server (nobody is admitted to one without)."""
        assert self._channel is not None
        return self._channel

    def take_in(self, channel: MessageChannel, contexts: int) -> None:
        """An earlier daemon's server is back with so many contexts; it is told what was for it meanwhile."""
        self._channel, self._contexts = channel, contexts
        channel.send(link.ServerTakenIn())
        self._tell_what_was_held()

    def tell(self, message: object) -> None:
        """Tell the server something, once it is set up."""
        if self._set_up_yet:
            self.channel.send(message)
        else:
            self._held.append(message)

    @property
    def takes_clients(self) -> bool:
        """Whether one more may be sent to it: not too many wait to be taken."""
        return self.channel.queued_descriptors < share_of_descriptors(SHARE_OF_QUEUED)

    def watch(self, hub: Hub, client: int, pidfd: int) -> None:
        """Tell the mind when a client's process has ended, unless the server tells first; takes the pidfd.

        With too many clients, or without a pidfd (-1), that is left to the server.
        """
        server = hub.mind.servers.get(self.serial)
        is_here = server is not None and client in server.clients
        if pidfd >= 0 and is_here and len(self._watched) < share_of_descriptors(SHARE_OF_WATCHED):
            self._watched[client] = trio.CancelScope()
            hub.nursery.start_soon(self._watch, hub, client, pidfd, self._watched[client])
        elif pidfd >= 0:
            os.close(pidfd)

    def watch_by_pid(self, hub: Hub, client: int, pid: int) -> None:
        """Watch a client that an earlier daemon admitted.

        Where a later process has its PID the client's end is told too late, but never while it lives.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            hub.feed(events.ClientEnded(self.serial, client))
        except (OSError, OverflowError):
            return
        else:
            self.watch(hub, client, pidfd)

    async def _watch(self, hub: Hub, client: int, pidfd: int, scope: trio.CancelScope) -> None:
        try:
            # Where the system has no room to wait for one more (epoll(7)), that is left to the server too.
            with suppress(OSError), scope:
                await trio.lowlevel.wait_readable(pidfd)
                hub.feed(events.ClientEnded(self.serial, client))
        finally:
            os.close(pidfd)

    def _watch_no_more(self, clients: Iterable[int]) -> None:
        for client in clients:
            if client in self._watched:
                self._watched.pop(client).cancel()

    def tell_to_leave(self, forced: bool) -> None:
        """Ask the server to leave."""
        self.tell(link.ShutDown(forced))

    def kill(self) -> None:
        """Kill a server that does not leave."""
        self.process.kill()

    async def run(self, hub: Hub) -> None:
        """Take what the server says until its end; a server that breaks the conversation is killed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.channel.run_sender)
            try:
                while (received := await self.channel.receive_message()) is not None:
                    self._take(hub, received[0])
            except RemoteError as error:
                hub.log.error("server_misbehaved", server=self.pid, reason=str(error))
                self.kill()
            nursery.cancel_scope.cancel()
        self._watch_no_more(tuple(self._watched))
        self._tell_of_dropped(hub)

    def _take(self, hub: Hub, message: object) -> None:
        match message:
            case link.ServerHello(versions):
                self._set_up(hub, versions)
            case link.StatusChanged(status):
                if status not in set(ServerStatus):
                    raise RemoteError(f"{status!r} is no server status")
                try:
                    hub.feed(events.StatusPushed(self.serial, status))
                except IllegalMove as error:
                    raise RemoteError(str(error)) from None
            case link.StartRefused(reason):
                hub.feed(events.StartRefused(self.serial, sanitised(reason.encode())))
            case link.ContextReported(client, serial, number, device):
                if not 0 <= device < len(hub.mind.devices):
                    raise RemoteError(f"there is no device {device}")
                self._contexts += 1
                if self._contexts > MOST_CONTEXTS:
                    raise RemoteError(f"more than {MOST_CONTEXTS} contexts at once")
                pushed = events.ContextPushed(self.serial, client, serial, number, device)
                hub.feed(pushed, quiet=not self._may_log(hub))
            case link.ContextGone(client, serial):
                self._contexts -= 1
                hub.feed(events.ContextGonePushed(self.serial, client, serial))
            case link.ClientGone(client):
                self._watch_no_more((client,))
                hub.feed(events.ClientGonePushed(self.serial, client))
            case link.Terminated(token, code):
                hub.feed(events.TerminationAnswered(self.serial, token, code))
            case link.LogRecord(event, fields, when):
                self._log(hub, event, fields, when)
            case link.LogDropped(count):
                hub.journal.write_server("Server", self.pid, "records_dropped", {"count": count})
            case _:
                raise RemoteError(f"{type(message).__name__} is not for the daemon")

    def _set_up(self, hub: Hub, versions: Versions) -> None:
        if agree(Versions(), versions) is None:
            raise RemoteError(f"the server speaks versions {versions.oldest} to {versions.newest}")
        setup = link.ServerSetup(
            uid=self.uid,
            control_socket=hub.control_socket,
            backend=hub.settings.backend,
            devices=hub.mind.devices,
            thread_percentage=hub.mind.servers[self.serial].thread_percentage.value,
            client_priority=hub.mind.client_priority.level,
            memory_limits={n: limit.value for n, limit in hub.mind.servers[self.serial].memory_limits.items()},
            door=hub.door,
            machine=hub.settings.emulated_devices,
        )
        self.channel.send(setup)
        self._tell_what_was_held()

    def _tell_what_was_held(self) -> None:
        self._set_up_yet = True
        for message in self._held:
            self.channel.send(message)
        self._held.clear()

    def _log(self, hub: Hub, event: str, fields: dict[str, str | int | float], when: float) -> None:
        if not self._may_log(hub, *(str(value) for value in fields.values())):
            return
        try:
            # Its user can make it say anything: no field may begin a line of its own.
            clean = {name: sanitised(v.encode()) if isinstance(v, str) else v for name, v in fields.items()}
            hub.journal.write_server("Server", self.pid, event, clean, when)
        except (KeyError, IndexError, ValueError, OverflowError, OSError) as error:
            raise RemoteError(f"a log record that is not in the catalogue: {event} ({error})") from None

    def _may_log(self, hub: Hub, *texts: str) -> bool:
        """Whether a line of these texts may be logged on the server's account; tells first what was dropped."""
        cost = cost_of([" ".join(texts)])
        if self._allowance.take(cost, trio.current_time()) < cost:
            self._dropped += 1
            return False
        self._tell_of_dropped(hub)
        return True

    def _tell_of_dropped(self, hub: Hub) -> None:
        if self._dropped:
            hub.journal.write_server("Server", self.pid, "records_dropped", {"count": self._dropped})
            self._dropped = 0
