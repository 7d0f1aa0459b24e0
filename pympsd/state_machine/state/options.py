"""The options that a daemon is started with, which nothing changes while it runs."""

from math import inf
from typing import Final

from attrs import frozen

from pympsd.process.version import DRIVER
from pympsd.vocabulary.identities import DEFAULT, socket_problem
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.shares import SERVERS

MAX_SERVERS: Final = 16
"""Servers at the same time when users are together: any user can cause one, and each takes memory of every device
that it uses."""
MAX_NAMED_SERVERS: Final = SERVERS.total
"""The same in protocol 3, in which no server ends for another one."""


@frozen
class ServerPolicy:
    """How a protocol uses servers: everything that the state machine does differently for protocols 2 and 3."""

    has_named_servers: bool
    """Whether servers are named, have namespaces with limits, and are kept and logged by their names."""
    max_starts: float
    """Servers of a user that commands start at the same time; one that a client waits for is started immediately.
    Nobody waits for the servers of other users, which may be stopped while they start."""
    failed_start_code: int
    """The CUresult number for clients of a server that cannot start."""
    keeps_queue: bool
    """Whether the next daemon continues the queue: the order of users that take turns, and their start requests."""


SERVER_POLICIES: Final = {
    2: ServerPolicy(False, inf, Result.ERROR_MPS_CONNECTION_FAILED, keeps_queue=True),
    3: ServerPolicy(True, 4, Result.ERROR_MPS_SERVER_NOT_READY, keeps_queue=False),
}
"""By protocol. Protocol 2 is a server a user, named ``uid_N``, without limits of its own namespaces."""


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
    driver: int = DRIVER
    """The branch of the driver whose behaviour the daemon has."""
    static: bool = False
    """Whether every device is in static use (protocol 2 with -S): a client needs a partition for a context.
    Protocol 3 has partitions of named servers instead, and no such mode."""
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

    @property
    def policy(self) -> ServerPolicy:
        """How the daemon's protocol has servers."""
        return SERVER_POLICIES[self.protocol]

    def find_serving_uid(self, uid: int) -> int:
        """Return the user whose server serves a user's clients: root in multi-user mode, and otherwise the user."""
        return 0 if self.multiuser else uid

    def socket_problem(self, server: str, namespace: str = DEFAULT) -> str:
        """Return why a namespace of a server cannot have a socket here, or nothing."""
        return socket_problem(self.pipe_directory, server, namespace, for_libcuda=not self.has_own_servers)

    @property
    def serves_users_together(self) -> bool:
        """Whether users have servers at the same time.

        Then no user waits for another until the maximum of servers is reached.
        """
        return self.max_servers > 1

    def refusal_of_other_user(self, uid: int) -> str:
        """Return why a daemon that is not root's refuses a client of another user."""
        return (
            f"this MPS control daemon is run by user {self.uid} and serves that user only, not {uid}; "
            "start one as that user with its own CUDA_MPS_PIPE_DIRECTORY, or one as root"
        )
