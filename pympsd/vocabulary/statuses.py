"""The statuses of servers and clients, as operators and logs see them."""

from enum import StrEnum


class ServerStatus(StrEnum):
    """A server's status, as get_server_status prints it (MPS documents, Provisioning Sequence)."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"


class ClientStatus(StrEnum):
    """A client context's status, as server.log prints it."""

    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
