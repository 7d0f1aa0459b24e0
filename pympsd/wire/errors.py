"""Errors of a conversation: each says which side is to blame."""


class ProtocolError(Exception):
    """A conversation went against its rules."""


class LocalError(ProtocolError):
    """This side did something it must not: a defect of ours."""


class RemoteError(ProtocolError):
    """The other side sent something it must not: garbage, too much, or at the wrong time."""
