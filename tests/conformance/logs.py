"""Takes a log apart into voices, whose lines are compared in order, and leaves out what is not compared.

Several conversations write to a log at the same time, and how their lines interleave depends on timing. So a log is
taken apart into voices: in control.log the operators', the daemon's own and the clients'; in server.log the server's
own and each client's. Within a voice every line counts, and so does the order.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from typing import Final

from attrs import frozen

STAMP = re.compile(r"\[[0-9-]{10} [0-9:.]{12} (?P<source>\w+) +(?P<pid>\d+)\] (?P<text>.*)", re.DOTALL)
VENDORS_ONLY: Final = {
    "User did not send valid credentials": "frightens people on every healthy connect (mps-behaviour, Logs)",
    "Control will try shutting down server": "the vendor polls; the turn passes by event here",
    "Created anonymous shared memory region": "the vendor's shared memory has a name to log; ours has none",
    "Received device query command": "device_query is answered from the daemon's table, the server is not asked",
}
"""Beginnings of the lines that pympsd never writes, each with the reason."""
POLLED: Final = re.compile(r"Try shutting down server \d+, backoff is enabled")
"""The first line of a round of the vendor's polling, which repeats lines of the first round."""
OWN: Final = re.compile(
    r"Starting (control|new server)|To connect CUDA|CUDA MPS Control binary|CUDA_MPS_\w+ should be|NEW SERVER|"
    r"Try shutting down|Server \d+ (has \d+ active|exited)|Force shutting|quit command issued|Exit with status"
)
CLIENT_LINES: Final = re.compile(r"NEW CLIENT|Refusing client")
ALSO: Final = re.compile(r"NEW CLIENT (\d+) |(\d+) +\d+ +\d+ +GPU-")
"""The beginning of a line of control.log that names a client: the daemon's line of a new client, or a row of ps."""
CLIENTS: Final = re.compile(r"\{PID: (\d+),|Client process (\d+) disconnected")
GARBAGE: Final = "Received new client request for {PID: "
REFUSAL: Final = ("Server has been notified to shutdown", "Server was unable to shutdown")
"""The two lines that a server writes when it refuses to end. It writes the first also when it ends."""
ANSWERS: Final = ("Client {PID: ", "Server teardown in progress. Refusing to accept new client {PID: ")
"""Beginnings of the lines with which a server answers a client's request."""


@frozen
class Entry:
    """A line of a log: its source, PID and text; a text may continue over several lines."""

    source: str
    pid: int
    text: str


def entries(lines: list[str]) -> list[Entry]:
    """Read a log's lines."""
    entries: list[Entry] = []
    for line in lines:
        stamp = STAMP.fullmatch(line)
        if stamp is not None:
            entries.append(Entry(stamp["source"], int(stamp["pid"]), stamp["text"]))
        elif entries:
            entries[-1] = Entry(entries[-1].source, entries[-1].pid, f"{entries[-1].text}\n{line}")
    return entries


def without_vendors_only(recorded: list[Entry]) -> list[Entry]:
    """Leave out what only the vendor's programs write: lines of VENDORS_ONLY, and the rounds of the polling."""
    entries: list[Entry] = []
    polled = False
    for entry in recorded:
        if POLLED.match(entry.text):
            polled = True
            continue
        if polled and "active worker threads" in entry.text:
            polled = False
            continue
        if not entry.text.startswith(tuple(VENDORS_ONLY)):
            entries.append(entry)
    return entries


def control_voices(log: list[Entry]) -> dict[str, list[Entry]]:
    """Take control.log apart into voices, without the accepted connections.

    The vendor's clients open a connection for each context, ours one for each process.
    """
    voices: dict[str, list[Entry]] = defaultdict(list)
    for entry in log:
        if entry.text == "Accepting connection...":
            continue
        voice = "daemon" if OWN.match(entry.text) else "clients" if CLIENT_LINES.match(entry.text) else "operators"
        voices[voice].append(entry)
    return voices


def server_voices(log: list[Entry]) -> dict[str, list[Entry]]:
    """Take server.log apart into the server's lines and each client's.

    A line that ends with "is associated" names no client, and belongs to the voice of the line before it.
    """
    voices: dict[str, list[Entry]] = defaultdict(list)
    voice = "server"
    log = _without_repeated_queries(log)
    for entry in log:
        if match := CLIENTS.search(entry.text):
            voice = match[1] or match[2]
        elif not entry.text.endswith("is associated"):
            voice = "server"
        voices[voice].append(entry)
    return voices


VOICES: Final = {"control.log": control_voices, "server.log": server_voices}


def _without_repeated_queries(log: list[Entry]) -> list[Entry]:
    """Leave out a refusal to end that follows an equal one: the vendor's daemon asks again whenever it polls."""
    refusal = list(REFUSAL)
    entries: list[Entry] = []
    for entry in log:
        entries.append(entry)
        texts = [entry.text[: len(begins)] for entry, begins in zip(entries[-4:], refusal * 2, strict=False)]
        if texts == refusal * 2 and entries[-1].text == entries[-3].text:
            del entries[-2:]
    return entries


def with_workers_first(log: list[Entry]) -> list[Entry]:
    """Put the line of a worker thread's creation before that of its client's connection.

    Two threads of the driver's server write these lines, so either may come first.
    """
    ordered = list(log)
    for place, (entry, after) in enumerate(itertools.pairwise(log)):
        client = re.fullmatch(r"Client (\{.*\}) connected", entry.text)
        if client is not None and after.text == f"Creating worker thread for client {client[1]}":
            ordered[place : place + 2] = [after, entry]
    return ordered


def without_garbage(recorded: list[Entry]) -> list[Entry]:
    """Give the line of each request its client's PID and context, where the vendor prints uninitialised memory."""
    mended = list(recorded)
    for place, entry in enumerate(recorded):
        if entry.text.startswith(GARBAGE):
            after = next((other.text for other in recorded[place + 1 :] if other.text.startswith(ANSWERS)), "")
            client = re.search(r"\{.*\}", after)
            if client is not None:
                mended[place] = Entry(entry.source, entry.pid, f"Received new client request for {client[0]}")
    return mended


def is_of_refusal(text: str) -> bool:
    """Whether a line is one of those that a server writes when it refuses to end."""
    return text.startswith(REFUSAL)


def without_refusals(log: list[Entry]) -> list[Entry]:
    """Leave out a server's refusals to end: the vendor's daemon asks again and again, ours seldom."""
    entries: list[Entry] = []
    for entry in log:
        if entries and entries[-1].text == REFUSAL[0] and entry.text.startswith(REFUSAL[1]):
            del entries[-1]
        else:
            entries.append(entry)
    return entries


def without_nameless(recorded: list[Entry]) -> list[Entry]:
    """Leave out the lines that name no client, or none that can be trusted, from a log that is only partly shown."""
    return [
        entry for entry in recorded if not entry.text.startswith(GARBAGE) and not entry.text.endswith("is associated")
    ]


def without_unshown(recorded: list[Entry], commands: list[str]) -> list[Entry]:
    """Leave out the sessions that have only get_server_list and ps, unless their commands are next in ``commands``.

    The recorder polled with these two commands, and its recording does not show them as steps.
    """
    waiting = list(commands)
    entries: list[Entry] = []
    session: list[Entry] = []
    for entry in recorded:
        session.append(entry)
        if entry.text == "UI closed":
            entries += session if _is_awaited(session, waiting) else []
            session = []
    return entries + session


def without_repeated(entries: list[Entry], repeated: list[str]) -> list[Entry]:
    """Leave out, from our log, the sessions of operators whose commands the replay repeated."""
    waiting = list(repeated)
    kept: list[Entry] = []
    session: list[Entry] = []
    for entry in entries:
        if OWN.match(entry.text) or CLIENT_LINES.match(entry.text):
            kept.append(entry)  # a line of another voice
            continue
        session.append(entry)
        if entry.text == "UI closed":
            output = "".join(entry.text.removeprefix("Cmd:") for entry in session if entry.text.startswith("Cmd:"))
            if output in waiting:
                waiting.remove(output)
            else:
                kept += session
            session = []
    return kept + session


def _is_awaited(session: list[Entry], waiting: list[str]) -> bool:
    output = [entry.text.removeprefix("Cmd:") for entry in session if entry.text.startswith("Cmd:")]
    if waiting[: len(output)] == output:
        del waiting[: len(output)]
        return True
    return any(not text.startswith(("get_server_list", "ps")) for text in output)
