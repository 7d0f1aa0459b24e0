"""What follows when a named server is ready, or cannot start: the command that made it is answered."""

from __future__ import annotations

from collections.abc import Iterator

from pympsd.state_machine.daemon_state import Daemon, title
from pympsd.state_machine.instructions import Instruction, reply
from pympsd.vocabulary.answers import Answer, refusal


def became_ready(daemon: Daemon, name: str) -> Iterator[Instruction]:
    """Note that a server is ready, and answer the command that made it."""
    named = daemon.named_servers.get(name)
    if named is None:
        return
    if named.failed:
        named.failed = ""
        daemon.named_changes += 1
    for session in named.creators:
        yield from reply(session, Answer())
    named.creators.clear()


def could_not_start(daemon: Daemon, name: str, reason: str) -> Iterator[Instruction]:
    """Note why a server cannot start, and answer the command that made it; it stays, and the next client retries."""
    named = daemon.named_servers.get(name)
    if named is None:
        return
    if named.failed != reason:
        named.failed = reason
        daemon.named_changes += 1
    refused = f"Server '{name}' could not be started: "
    why = reason.removeprefix(f"{title(name, named.uid)} could not be started: ")
    for session in named.creators:
        yield from reply(session, refusal(refused + why))
    named.creators.clear()
