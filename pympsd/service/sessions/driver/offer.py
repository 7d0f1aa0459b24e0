"""A client's connection to its server: the client is sent its end first, and the server when the client has taken it.

So no server waits for a client that takes nothing, because it is stopped or malicious.
"""

from __future__ import annotations

import os
import socket

from attrs import define

from pympsd.service.dispatcher import Dispatcher
from pympsd.service.files.lock_holders import has_open
from pympsd.takeover.state.entries import new_client_name, offer_name


@define
class Offer:
    """Both ends, each held by the keeper too: the next daemon continues with them."""

    key: int
    """The id of the client's conversation."""
    servers: int
    clients: int
    """A copy of the client's end."""
    is_inherited: bool = False
    """An earlier daemon may have sent either end already."""

    @classmethod
    def make(cls, dispatcher: Dispatcher, key: int) -> Offer:
        """Return a new connection; raise OSError."""
        clients, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with clients, servers:
            for end in (clients, servers):
                # The driver's server does not answer a client without it.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            offer = cls(key, servers.detach(), clients.detach())
        keeper = dispatcher.keeper
        # In the link of a keeper that is stopped an end would outlive the client, whose end the server would not see.
        if keeper is not None and not keeper.is_silent:
            dispatcher.hold(new_client_name(key), offer.clients)
            dispatcher.hold(offer_name(key), offer.servers)
        return offer

    def close(self) -> None:
        """Close both ends here."""
        os.close(self.servers)
        os.close(self.clients)

    def drop(self, dispatcher: Dispatcher) -> None:
        """Let the keeper close both ends."""
        for name in (new_client_name(self.key), offer_name(self.key)):
            dispatcher.drop(name)

    def is_taken_by(self, server: int) -> bool:
        """Return whether a process has the server's end: the earlier daemon was killed as it handed that over."""
        return has_open(server, os.fstat(self.servers))
