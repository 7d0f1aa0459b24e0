"""Run a connection on the driver's wire: send the daemon's hello, receive the peer's credentials, and run the session
of the peer's role.
"""

from typing import Final

import trio
from attrs import define

from pympsd.channel.packet_channel import PacketChannel
from pympsd.errors import LimitExceeded, ProtocolError, RemoteError
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.peers import open_pidfd, operator_uid
from pympsd.service.sessions.driver.client import DriverClientSession
from pympsd.service.sessions.driver.handoffs import Offer
from pympsd.service.sessions.driver.server import DriverServerSession
from pympsd.service.sessions.driver.tool import RefusedTool, ToolSession
from pympsd.service.sessions.waiting import run_with_sender
from pympsd.state_machine import registration
from pympsd.state_machine.state.server import Phase
from pympsd.takeover.state.entries import KeptFd, id_of, link_name
from pympsd.vocabulary.identities import Peer
from pympsd.wire.driver.handshake import CREDENTIALS, PACKET_BYTES, ROLE_BYTES, Role, encode_role, role_of
from pympsd.wire.driver.server_commands import END_IF_IDLE

HELLO_SECONDS: Final = 10.0
"""The time within which a connection must send credentials and role."""
SPAWN_SECONDS: Final = 1.0
"""The time in seconds to wait until a process that connects as a server is known to be the server that was just
started.
"""
POLL_SECONDS: Final = 0.005


@define
class DriverConversation:
    """A connection to ``control`` (``accepts_clients``) or ``control_privileged``."""

    dispatcher: Dispatcher
    accepts_clients: bool
    server: str = ""
    """The server to which the socket belongs, in protocol 3; empty for the daemon's own."""
    namespace: str = ""

    async def run(self, sock: trio.socket.SocketType, peer: Peer, entry: KeptFd[bytes]) -> None:
        """Run a connection, to which the hello was sent, to its end.

        ``entry``: the keeper's entry; its note is the role.
        """
        channel = PacketChannel(sock, self.dispatcher.budgets.buffers.allowance(peer.uid))
        try:
            packet = entry.note or await self._role(channel, peer, entry)
            if packet:
                await self._run_session(entry, role_of(packet), channel, sock, peer)
            # Shut the connection down: the keeper has a copy, and the peer would not see the end immediately.
            channel.shut_down()
        except LimitExceeded as error:
            channel.shut_down()
            self.dispatcher.budgets.log_closed(peer.uid, error)
        except (ProtocolError, trio.TooSlowError) as error:
            server = self._server(peer.pid)
            if server is not None and isinstance(error, ProtocolError):
                server.handle_unknown_message(str(error))
            channel.shut_down()
            if self.dispatcher.budgets.may_log(peer.uid):
                self.dispatcher.log.error("connection_type_unreadable")
        finally:
            channel.close()

    async def _role(self, channel: PacketChannel, peer: Peer, entry: KeptFd[bytes]) -> bytes:
        """Return the packet with the peer's role; empty if the peer does not send its role or its credentials."""
        with trio.fail_after(HELLO_SECONDS):
            packet, sender = await channel.receive_with_credentials(PACKET_BYTES)
        if len(packet) == ROLE_BYTES and not entry.is_new:
            return packet  # an earlier daemon has received the credentials
        if packet != CREDENTIALS or sender is None:
            if self.dispatcher.budgets.may_log(peer.uid):
                self.dispatcher.log.error("credentials_invalid")
            server = await self._find_expected(peer.pid)
            if server is not None and packet:
                server.handle_unknown_message(f"{packet[:32]!r} where {CREDENTIALS!r} and credentials are due")
            return b""
        # No time-out for a starting server: the state machine limits how long it may take.
        with trio.CancelScope() if self._server(peer.pid) else trio.fail_after(HELLO_SECONDS):
            return await channel.receive(PACKET_BYTES)

    async def _run_session(
        self,
        entry: KeptFd[bytes],
        role: Role,
        channel: PacketChannel,
        sock: trio.socket.SocketType,
        peer: Peer,
    ) -> None:
        """Run the session of the peer's role; refuse operators at a socket for clients only."""
        if (
            self.accepts_clients
            and (role is Role.TOOL or (role is not Role.CLIENT and self.server))
            and registration.is_for_clients(self.dispatcher.state, self.server, self.namespace)
        ):
            if role is Role.TOOL:
                self.dispatcher.keeper.drop(entry.name)
                await run_with_sender(channel, RefusedTool(peer, channel, self.server).run, self.dispatcher)
            else:
                self.dispatcher.budgets.log_refused_operator(peer)
            return
        if role is Role.TOOL:
            self.dispatcher.keeper.drop(entry.name)
            session = ToolSession(
                self.dispatcher.sessions.ids.take(),
                operator_uid(sock, peer, self.dispatcher.state),
                channel,
                (self.server, self.namespace),
            )
            await run_with_sender(channel, session.run, self.dispatcher)
            return
        if not self.accepts_clients:
            raise RemoteError(f"a {role.name.lower()} on the operators' socket")
        if not entry.note:
            self.dispatcher.keeper.hold(entry.name, sock.fileno(), encode_role(role))
        if role is Role.CLIENT:
            known_peer = open_pidfd(sock, peer)
            try:
                client_id, key = self.dispatcher.sessions.ids.take(), id_of(entry.name)
                offer = Offer(key, *entry.offered, is_inherited=True) if entry.offered else None
                place = (self.server, self.namespace)
                client = DriverClientSession(client_id, known_peer, channel, self.dispatcher, key, *place, offer)
                await run_with_sender(channel, client.run, self.dispatcher)
            finally:
                known_peer.close()
        else:
            await self._register(entry.name, channel, sock, peer)

    async def _register(self, name: str, channel: PacketChannel, sock: trio.socket.SocketType, peer: Peer) -> None:
        server = await self._find_expected(peer.pid)
        if server is None:
            if self.dispatcher.budgets.may_log(peer.uid):
                reason = "this daemon started no such server"
                self.dispatcher.log.warning("server_refused", pid=peer.pid, uid=peer.uid, reason=reason)
            return
        channel.allowance.lift()
        registration = await channel.receive(PACKET_BYTES)
        if server.registered.is_set():
            raise RemoteError("the server has registered already")
        with self.dispatcher.keeper.hold_during(link_name(server.id), sock.fileno(), END_IF_IDLE):
            self.dispatcher.keeper.drop(name)
            await server.serve(channel, registration)

    async def _find_expected(self, pid: int) -> DriverServerSession | None:
        """Return the session of the server that was started as this process, if it is not registered yet."""
        with trio.move_on_after(SPAWN_SECONDS):
            while self._server(pid) is None:
                # The process may connect before the event of its start is handled.
                servers = self.dispatcher.state.servers.values()
                if not any(server.phase is Phase.SPAWNING for server in servers):
                    return None
                await trio.sleep(POLL_SECONDS)
        return self._server(pid)

    def _server(self, pid: int) -> DriverServerSession | None:
        for server in self.dispatcher.sessions.servers.values():
            if server.pid == pid and isinstance(server, DriverServerSession) and not server.registered.is_set():
                return server
        return None
