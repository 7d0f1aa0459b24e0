"""The errors of pympsd: one base, and a family for each way in which a caller can react.

Catch PympsdError for everything that pympsd itself raises, a family for errors that need the same reaction, or a
class for one case. The message of each error states what was wrong, what is allowed, and what to do. Classes that
callers also catch by a built-in type (ValueError, OSError, KeyError) have that type as a second base. Exceptions that
only steer the control flow of one module are private to it and are not errors. Imports nothing, because the command
line uses it.
"""

BAD_USAGE = 2
"""The exit status of all programs for options that cannot be carried out."""

MAX_REASON = 1024
"""The maximum length of a reason that may quote another program."""


class PympsdError(Exception):
    """Base of all errors of the daemon, the server and the client library.

    It is not raised itself. Catch it to report any failure of pympsd, for example at the top of a tool; catch a
    family to react to one kind of failure.
    """


class InputError(PympsdError):
    """An input cannot be used: a command, an option, a setting, a limit, a description, PTX.

    Raised by readers and parsers before anything has changed. A caller shows the message to whoever wrote it.
    """


class FileError(PympsdError):
    """A file, a directory or a link on disk cannot be used or trusted: its owner, its mode or its contents.

    Raised where files are opened, read or replaced. A caller leaves the file as it is and continues without it.
    """


class StartError(PympsdError):
    """A daemon, a server or an executor cannot start, or cannot replace an earlier one.

    Raised before the process serves anybody. A caller prints the message and exits, or refuses the client.
    """


class DaemonError(PympsdError):
    """The daemon cannot be reached, does not respond, or refuses a request.

    Raised by tools and by the client library. A caller reports it; another attempt may succeed later.
    """


class ProcessError(PympsdError):
    """Another process of pympsd ended or did not do what was requested: a server or an executor.

    Raised by the process that started it. A caller replaces the process, or reports its clients' work as lost.
    """


class DeviceError(PympsdError):
    """A device, real or emulated, cannot do what was requested, or a kernel on it failed.

    Raised by backends. The executor turns it into a CUDA result for the client.
    """


class CallError(PympsdError):
    """A call of the CUDA driver API (or of NVML) fails with a result.

    Raised in the client library below the API functions, which return the result; programs never see the exception.
    """


class InternalError(PympsdError):
    """pympsd broke a rule of its own, such as an illegal transition.

    Raised by the check of the rule, before anything has changed. A caller logs it and continues. It is a bug.
    """


class ProtocolError(PympsdError):
    """A message between two processes violated the protocol.

    Raised by the codecs and the channels. A caller closes the connection.
    """


class LocalError(ProtocolError):
    """This side violated the protocol: an internal error.

    Raised before anything is sent, for example for a frame above the maximum. A caller logs it; it is a bug.
    """


class RemoteError(ProtocolError):
    """The other side violated the protocol with a malformed, too long or untimely message.

    Raised while a message is read. A caller closes this connection and serves all others. The message is cut, because
    it may quote the other side.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason[:MAX_REASON])


class LimitExceeded(RemoteError):
    """The other side took more memory or time than a connection is allowed.

    The message states which of the two, and the maximum in bytes or seconds. A caller closes the connection.
    """
