"""What a daemon is started with: options that nothing changes while it runs."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pympsd.vocabulary.shares import SERVERS

MAX_SERVERS: Final = 16
"""Servers at the same time when users are together: any user can cause one, and each takes memory of every device
that it uses."""
MAX_NAMED_SERVERS: Final = SERVERS.total
"""The same in protocol 3, in which servers do not end to make room."""


@frozen
class DaemonOptions:
    """The user, the protocol and the switches of a daemon.

    ``uid`` is the user that the daemon runs as; root serves every user, another one only itself.
    """

    uid: int
    protocol: int = 2
    """2: one server a user, one user at a time; 3: named servers with namespaces."""
    multiuser: bool = False
    """Whether one server, root's, serves the clients of all users."""
    max_servers: int = 1
    """Servers at the same time, each of another user; 1: users take turns."""
    clients_only: bool = False
    """Operators are refused at ``control``; there is another socket for them."""
    open_queries: bool = False
    """Operators that came by a namespace's socket see everything."""
    trusts_containers: bool = False
    """Operators in other PID and user namespaces are taken for their user."""
    terminate_by_reset: bool = False
    """Whether terminate_client may reset a device to end a kernel that cannot be stopped."""
    serves_unmapped: bool = False
    """Whether clients whose uid is a placeholder, because their user is of another user namespace, are served."""
    has_own_servers: bool = True
    """Whether servers are pympsd's, not the driver's: only those can be given some of the devices, and partitions."""
    has_other_backend: bool = False
    """Whether the daemon may change to another backend if it does not recognise the driver's server."""
    pipe_directory: str = ""
    pid_namespace: int = 0
    """The inode of the daemon's own PID namespace."""

    def serving_uid(self, uid: int) -> int:
        """Return the uid whose server serves a user: root's in multi-user mode."""
        return 0 if self.multiuser else uid

    @property
    def together(self) -> bool:
        """Whether users have servers at the same time, and none waits for another's until the maximum is reached."""
        return self.max_servers > 1

    def refusal_of_other_user(self, uid: int) -> str:
        """Return why a daemon that is not root's refuses a client of another user."""
        return (
            f"this MPS control daemon is run by user {self.uid} and serves that user only, not {uid}; "
            "start one as that user with its own CUDA_MPS_PIPE_DIRECTORY, or one as root"
        )
