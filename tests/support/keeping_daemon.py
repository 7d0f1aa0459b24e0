"""A daemon with nothing but a keeper: keeping_daemon.py FOLDER WAITING-SECONDS STALLED-SECONDS [NAME=FD ...]

It reports the entries of an earlier daemon's keeper, and then executes one request a line; tests kill it.
"""

from __future__ import annotations

import json
import os
import socket
import sys

import trio
import trio.testing

from pympsd.service.files.pipe_directory import PipeDirectory, Unusable
from pympsd.takeover.keeper.link import KeeperLink


class Lines:
    """Writes each event to standard error."""

    def error(self, event: str, **fields: object) -> None:
        """Write an event."""
        print(event, json.dumps(fields), file=sys.stderr, flush=True)


def do(keeper: KeeperLink, fds: dict[str, int], verb: str, name: str, text: str) -> str:
    """Execute a line; return the answer."""
    match verb:
        case "note":
            keeper.note(name, text.encode())
        case "drop":
            keeper.drop(name)
        case "hold":  # a descriptor it has, under COUNT names
            for number in range(int(text)):
                keeper.hold(f"{name} {number}", fds[name], b"x" * 100)
        case "watch":
            fds[name] = os.pidfd_open(int(text))
            keeper.hold(name, fds[name])
        case "accept":
            with socket.socket(fileno=os.dup(fds[name])) as listener, listener.accept()[0] as connection:
                connection.sendall(text.encode())
        case "receive":
            return os.read(fds[name], 100).decode()
        case "send":
            os.write(fds[name], text.encode())
        case "end":
            keeper.end()
    return "done"


async def main(folder: str, waiting: str, stalled: str, *entries: str) -> None:
    """Fetch or start a keeper, hold the entries, and execute the lines on standard input."""
    directory = PipeDirectory.claim(folder)
    try:
        fetched = await KeeperLink.fetch(directory, Lines())  # type: ignore[arg-type]
    except Unusable as error:
        print(json.dumps(str(error)), file=sys.stderr, flush=True)
        return
    keeper, held = fetched or (KeeperLink(directory, Lines(), float(waiting), float(stalled)), {})  # type: ignore[arg-type]
    fds = {name: entry.fd for name, entry in held.items()}
    for name, _, fd in (entry.partition("=") for entry in entries):
        fds[name] = int(fd)
        keeper.hold(name, int(fd))
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        print(json.dumps([[name, entry.note.decode()] for name, entry in held.items()]), flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            verb, name, text = line.rstrip("\n").split("/")
            if verb == "catch up":
                await keeper.wait_until_caught_up()
            if verb == "ask":  # for a connection, whose name is the text; nobody waits for the answer
                nursery.start_soon(keeper.accept, name, text, b"", os.close)
                await trio.testing.wait_all_tasks_blocked()
            print(do(keeper, fds, verb, name, text), flush=True)


trio.run(main, *sys.argv[1:])
