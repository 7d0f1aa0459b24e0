"""Protocol errors, by the side that is at fault."""


class ProtocolError(Exception):
    """The protocol was violated."""


class LocalError(ProtocolError):
    """This side violated the protocol: an internal error."""


class RemoteError(ProtocolError):
    """The other side violated the protocol: with malformed, too long or untimely messages."""


class LimitExceeded(RemoteError):
    """The other side took more memory or time than a connection may; the message says which, and what is allowed."""
