"""Serve a connecting client of pympsd_client until it gets a session, is refused, or continues without MPS."""

import contextlib
import errno
import os
import socket
from typing import Final

from attrs import define, field

from pympsd.channel.message_channel import MessageChannel
from pympsd.errors import RemoteError
from pympsd.service.dispatcher import Dispatcher, RunningServer
from pympsd.service.files.cgroups import has_dmem, kernel_limits
from pympsd.service.processes.peers import command_of, container_pid_of, namespace_of
from pympsd.service.sessions.origins import origin_of
from pympsd.service.sessions.server import ServerSession
from pympsd.service.sessions.waiting import WaitingConversation
from pympsd.state_machine.events import ClientConnected
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.limit_table import ClientLimits
from pympsd.vocabulary.results import Result
from pympsd.wire.messages import NEWEST, OLDEST, ClientHello, GoWithoutMps, Refused, SessionGranted, Versions, agree

MAX_VARIABLES: Final = 256
"""The maximum number of environment variables in a hello, because each one costs the daemon more than its text."""


@define(eq=False)
class ConnectingClient(WaitingConversation):
    """A client between its hello and its session with a server."""

    channel: MessageChannel
    hello: ClientHello
    to_server: str = ""
    """The server and the namespace of the socket to which the client connected."""
    to_namespace: str = ""
    connection: int = 0
    """The id of the client's connection."""
    _process: ClientProcess | None = field(default=None, init=False)

    async def run(self, dispatcher: Dispatcher) -> None:
        """Wait until the client is admitted, is refused or has gone."""
        reason, versions = "", self.hello.versions
        if agree(Versions(), versions) is None:
            spoken = f"this client speaks versions {versions.oldest} to {versions.newest}"
            reason = f"{spoken}, the daemon {OLDEST} to {NEWEST}"
        elif (count := len(self.hello.environment)) > MAX_VARIABLES:
            reason = f"the client's environment has {count} variables for MPS; at most {MAX_VARIABLES} are allowed"
        if reason:
            dispatcher.budgets.log_refused(self.peer, reason)
            self.refuse(Result.ERROR_MPS_CONNECTION_FAILED, reason)
            return
        self._process = self._inspect(dispatcher.state)
        environment, traced = self.hello.environment, self.hello.traced
        connected = ClientConnected(
            self.client, self._process, environment, traced, server=self.to_server, connection=self.connection
        )
        await self.queue(dispatcher, self, connected, self._hung_up)

    def _inspect(self, state: Daemon) -> ClientProcess:
        """Return the record of the client's process."""
        origin = origin_of(self.known_peer) if state.needs_origins else None
        cgroups = (origin.cgroups if origin is not None else None) or ()
        has_kernel_limits = cgroups and state.options.policy.has_named_servers and has_dmem()
        return ClientProcess(
            self.peer,
            command_of(self.peer.pid, self.hello.command),
            namespace_of(self.known_peer, self.hello.pid_namespace),
            self.to_namespace,
            container_pid=container_pid_of(self.peer.pid),
            since=self.since,
            origin=origin,
            kernel_limits=kernel_limits(state.devices, cgroups[-1]) if has_kernel_limits else {},
        )

    def grant(self, server: RunningServer, priority: int, limits: ClientLimits | None) -> None:
        """Give the client one end of a new session and the server the other.

        Raise OSError if descriptors run out, or if too much is queued for a server that does not read.
        """
        assert isinstance(server, ServerSession)
        assert self._process is not None
        if not server.has_room:
            raise OSError(errno.EBUSY, f"too much is queued for the server of user {server.uid}, or that user")
        client_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with client_end, server_end:
            pidfds = () if self.known_peer.pidfd < 0 else (os.dup(self.known_peer.pidfd),)
            identity = self.client, self._process, priority, self.hello.environment
            server.admit(*identity, limits, (server_end.detach(), *pidfds))
            self.channel.send(SessionGranted(NEWEST, self.client, server.pid), (client_end.detach(),))
        self.server = server
        self.resolved.set()

    def refuse(self, code: int, reason: str) -> None:
        """Refuse the client, with a CUresult number and a reason."""
        self._dismiss(Refused(code, reason))

    def go_without_mps(self, reason: str) -> None:
        """Let the client continue without MPS, and give it the reason."""
        self._dismiss(GoWithoutMps(reason))

    def _dismiss(self, message: Refused | GoWithoutMps) -> None:
        self.channel.send(message)
        self.resolved.set()

    async def _hung_up(self) -> None:
        # A waiting client must not send anything: both an end of file and data end the wait.
        with contextlib.suppress(RemoteError):
            await self.channel.receive()
