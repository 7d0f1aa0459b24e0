"""The options that a daemon is started with, which nothing changes while it runs."""

from math import inf
from typing import Final

from attrs import frozen

from pympsd.process.version import DRIVER
from pympsd.vocabulary.identities import DEFAULT, socket_problem
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.shares import SERVERS

MAX_SERVERS: Final = 16
"""The maximum number of servers at the same time when users are together: any user can cause a server, and each
server takes memory of every device that it uses."""
MAX_NAMED_SERVERS: Final = SERVERS.total
"""The maximum number of servers in protocol 3, in which no server ends to make room for another."""


@frozen
class ServerPolicy:
    """The use of servers in a protocol: everything that the state machine does differently for protocols 2 and 3."""

    has_named_servers: bool
    """Whether servers have names, by which they are kept and logged, and namespaces with limits."""
    max_starts: float
    """The number of a user's servers that commands start at the same time; one that a client waits for is started
    immediately. Other users' servers do not count, because their users may stop them while they start."""
    failed_start_code: int
    """The CUresult number for clients of a server that cannot start."""
    keeps_queue: bool
    """True if the next daemon continues the queue: the order of users that take turns, and their start requests."""


SERVER_POLICIES: Final = {
    2: ServerPolicy(False, inf, Result.ERROR_MPS_CONNECTION_FAILED, keeps_queue=True),
    3: ServerPolicy(True, 4, Result.ERROR_MPS_SERVER_NOT_READY, keeps_queue=False),
}
"""The policies by protocol. In protocol 2 each user has one server, ``uid_N``, and namespaces have no limits of
their own."""


@frozen
class DaemonOptions:
    """The user, the protocol and the switches of a daemon.

    ``uid`` is the user that the daemon runs as; root serves every user, another one only itself.
    """

    uid: int
    protocol: int = 2
    """The protocol: 2 has one server for each user, 3 has named servers with namespaces."""
    multiuser: bool = False
    """True if one server, root's, serves the clients of all users."""
    max_servers: int = 1
    """The maximum number of servers at the same time, each of another user; 1: users take turns."""
    clients_only: bool = False
    """True if operators are refused at ``control`` and must use another socket."""
    open_queries: bool = False
    """True if operators that use a namespace's socket see everything."""
    trusts_containers: bool = False
    """True if operators in other PID and user namespaces have the rights of their user."""
    driver: int = DRIVER
    """The branch of the driver whose behaviour the daemon reproduces."""
    static: bool = False
    """Whether every device is in static use (protocol 2 with -S): a client needs a partition for a context.
    Protocol 3 has partitions of named servers instead, and no such mode."""
    terminate_by_reset: bool = False
    """Whether terminate_client may reset a device to end a kernel that cannot be stopped."""
    serves_unmapped: bool = False
    """Whether clients whose uid is a placeholder, because their user is of another user namespace, are served."""
    has_own_servers: bool = True
    """Whether servers are pympsd's, not the driver's. Only pympsd's can be limited to some devices, and have
    partitions."""
    has_other_backend: bool = False
    """Whether the daemon may change to another backend if it does not recognise the driver's server."""
    pipe_directory: str = ""
    show_server_as: str = "pympsd-server"
    """The name of the servers' processes in lists of processes; the driver's own servers have the driver's."""
    pid_namespace: int = 0
    """The inode of the daemon's own PID namespace."""

    @property
    def policy(self) -> ServerPolicy:
        """The use of servers in the daemon's protocol."""
        return SERVER_POLICIES[self.protocol]

    def find_serving_uid(self, uid: int) -> int:
        """Return the user whose server serves a user's clients: root in multi-user mode, and otherwise the user."""
        return 0 if self.multiuser else uid

    def socket_problem(self, server: str, namespace: str = DEFAULT) -> str:
        """Return why a namespace of a server cannot have a socket here; empty if it can."""
        return socket_problem(self.pipe_directory, server, namespace, for_libcuda=not self.has_own_servers)

    @property
    def serves_users_together(self) -> bool:
        """Whether users have servers at the same time.

        Then no user waits for another until the maximum number of servers is reached.
        """
        return self.max_servers > 1

    def refusal_of_other_user(self, uid: int) -> str:
        """Return why a daemon that is not root's refuses a client of another user."""
        return (
            f"this MPS control daemon is run by user {self.uid} and serves that user only, not {uid}; "
            "start one as that user with its own CUDA_MPS_PIPE_DIRECTORY, or one as root"
        )
