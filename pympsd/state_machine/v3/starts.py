"""What follows when a named server is ready, or cannot start: the command that made it is answered."""

from __future__ import annotations

from collections.abc import Iterator

from pympsd.state_machine.instructions import Instruction, reply
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, refusal


def became_ready(daemon: Daemon, name: str) -> Iterator[Instruction]:
    """Note that a server is ready, and answer the command that made it."""
    named = daemon.named_servers.get(name)
    if named is None:
        return
    if named.failed:
        named.failed = ""
        daemon.named_servers.changes += 1
    for session in named.creators:
        yield from reply(session, Answer())
    named.creators.clear()


def could_not_start(daemon: Daemon, name: str, reason: str, cause: str = "") -> Iterator[Instruction]:
    """Note why a server cannot start, and answer the command that made it; it stays, and the next client retries.

    ``cause``: the reason as it continues "... could not be started: ", if that is another one.
    """
    named = daemon.named_servers.get(name)
    if named is None:
        return
    if named.failed != reason:
        named.failed = reason
        daemon.named_servers.changes += 1
    for session in named.creators:
        yield from reply(session, refusal(f"Server '{name}' could not be started: {cause or reason}"))
    named.creators.clear()
