"""The server and the namespace that log lines of protocol 3 name (the field ``place``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import evolve

from pympsd.state_machine.instructions import Instruction, Log
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.namespaces import DEFAULT


def name_field(daemon: Daemon, server: str, namespace: str | None = None) -> dict[str, str]:
    """Return the field that names a server, or a namespace (empty: ``default``); none in protocol 2."""
    if daemon.options.protocol == 2:
        return {}
    return {"place": server if namespace is None else f"{server}/{namespace or DEFAULT}"}


def with_server_names(daemon: Daemon, gone: Server | None, decided: Iterable[Instruction]) -> Iterator[Instruction]:
    """Add its server's name to each line that has a server's PID; ``gone``: the server that is known no more."""
    for each in decided:
        if isinstance(each, Log) and "server" in each.fields and "place" not in each.fields:
            known = daemon.server_by_pid(int(each.fields["server"])) or gone
            yield each if known is None else evolve(each, fields={**each.fields, "place": known.name})
        else:
            yield each
