"""Make one of the files next to this one from a recording: ``convert.py < RECORDING.txt > NAME.txt``.

A line: the connection's number, its socket (c: control, p: control_privileged), who speaks (``<`` the daemon, ``>``
its peer), and the packet in hexadecimal digits. Eight or more zero bytes at its end are written as ``+N``; ``fd``
stands behind a packet that came with one descriptor; ``end``: the side closed; ``by PID NAME``: who connected. Left
out: the times, the flags, the credentials (those of the peer are the PID of ``by``), and the packet's bytes as text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator

_SOCKETS = {"control": "c", "control_privileged": "p"}
_SIDES = {"<-": "<", "->": ">"}
_SHORTEST = 8
_PACKET = re.compile(r"\] flags 0 ([0-9a-f]+) ")


def convert_lines(lines: Iterable[str]) -> Iterator[str]:
    """Return the compact lines."""
    for line in lines:
        words = line.split()
        if words[1] == "ready":
            continue
        head = f"{words[1]} {_SOCKETS[words[2]]}"
        if words[3] == "connected":
            yield f"{head} by {words[5]} {words[6]}"
        elif words[4] == "end":
            yield f"{head} {_SIDES[words[3]]} end"
        elif words[4] != "credentials":
            match = _PACKET.search(line)
            assert match, line
            packet = bytes.fromhex(match[1])
            assert len(packet) == int(words[4]), line
            yield f"{head} {_SIDES[words[3]]} {_compact(packet)}{' fd' if 'socket:' in line else ''}"


def _compact(packet: bytes) -> str:
    kept = packet.rstrip(b"\0")
    zeros = len(packet) - len(kept)
    return f"{kept.hex()}+{zeros}" if zeros >= _SHORTEST else packet.hex()


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in convert_lines(sys.stdin))
