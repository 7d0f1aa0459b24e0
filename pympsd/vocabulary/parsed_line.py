"""An operator's command line after it was split into words and its command was looked up.

The line is parsed once, when it arrives (pympsd.commands.grammar.line), and carried by the event `OperatorLine`. Its
fields state what the daemon has to find out before it carries the line out, so the I/O layer depends on no
command:

    ParsedLine(text="get_client_list 847", words=("get_client_list", "847"), command="get_client_list", protocol=2,
               asks_servers=True, server_pid=847)

asks the server 847 for its clients first, if it reports them only on request.
"""

from attrs import frozen


@frozen
class ParsedLine:
    """A command line; every field but the text and the words follows from the command that the words name."""

    text: str
    """The line without blanks at its ends, up to a NUL; bytes that are not UTF-8 are surrogates."""
    words: tuple[str, ...]
    command: str = ""
    """The name of the command, in the table of all commands; empty if neither protocol has it."""
    protocol: int = 2
    """The protocol of the daemon that got the line."""
    asks_servers: bool = False
    """True if the answer depends on the servers' state."""
    server_pid: int | None = None
    """The PID of the only server that ``asks_servers`` concerns; None means all."""
    process: int | None = None
    """The PID of the process that the line asks about, which need not be a client."""
    asks_cgroups: bool = False
    """True if the answer depends on which cgroups exist."""
    is_query: bool = False
    """True if the command changes nothing."""
    is_whole: bool = True
    """False if the line was longer than a command may be: it was cut and is not carried out."""
    asks_origins: bool = False
    """True if the command depends on the cgroups of clients' processes, which may be unknown."""
