"""The entries of a keeper without a daemon, as the next daemon would receive them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pympsd.takeover.keeper import packets as packets


@contextmanager
def fetch_entries(pipe: Path) -> Iterator[dict[str, tuple[bytes, int]]]:
    """Return the notes and descriptors by name; they are closed after the block, and the keeper waits again."""
    entries: dict[str, tuple[bytes, int]] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(30)
        sock.connect(str(pipe / "pympsd.keeper"))
        while True:
            packet, fds, _, _ = socket.recv_fds(sock, packets.PACKET_BYTES, 1)
            kind, name, note = packets.decode(packet)
            if kind == packets.COMPLETE:
                break
            entries[name] = note, fds[0]
        try:
            yield entries
        finally:
            for _, fd in entries.values():
                os.close(fd)


def ask_to_end(pipe: Path) -> None:
    """Send the one server the note of its entry, which asks it to end with its last client, as the keeper does."""
    with fetch_entries(pipe) as entries:
        ((note, fd),) = (entry for name, entry in entries.items() if name.startswith("server "))
        os.write(fd, note)
