"""Two hostile users next to the honest ones of a soak, and the limits of what they may cost the daemon.

One makes servers and namespaces (in protocol 3). The other keeps all the connections that it can get: it sends
nothing, or garbage, or parts of messages, or does not read the answers. The clients and commands of the honest users
are judged as in every round.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from tests.chaos.identity import there
from tests.chaos.schedule import USERS
from tests.chaos.testbed import Testbed, users

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = str(ROOT / "tests" / "support" / "hostile_program.py")
CONNECTIONS: Final = 80
"""The number of connections of each kind: together more than a user's share in a soak."""
KINDS: Final = (("servers", "namespaces"), ("unresponsive", "idle", "half_frames", "unread", "garbage"))
"""What each of the two users does."""
MAX_MEMORY: Final = 112 << 20
"""The maximum memory of the daemon: 64 MiB without hostile users, and for each of them three times 4 MiB of buffers
and 300 connections of 40 KiB (20 KiB, and as much for connections that have just ended).
"""
MAX_DESCRIPTORS: Final = 1000
"""The maximum number of the daemon's descriptors: one, rarely two, for each of the hostile users' 600 connections,
and those of the honest users."""
LOOK_SECONDS: Final = 0.2


def hostile_users() -> tuple[int, ...]:
    """Return uids that neither another run nor an honest user of this run has."""
    last = users()[USERS - 1]
    return tuple(last + 1 + index for index in range(len(KINDS)))


async def attack(testbed: Testbed) -> None:
    """Run both users until this is cancelled, and report if they cost the daemon too much."""
    async with trio.open_nursery() as nursery:
        for uid, kinds in zip(hostile_users(), KINDS, strict=True):
            nursery.start_soon(_attack, testbed, uid, kinds)
        while True:
            for problem in excess(testbed.daemon.pid) if there(testbed.daemon) else ():
                testbed.blame(problem)
                return
            await trio.sleep(LOOK_SECONDS)


async def _attack(testbed: Testbed, uid: int, kinds: tuple[str, ...]) -> None:
    process = await testbed.spawn(
        [sys.executable, PROGRAM, str(testbed.directory / "pipe" / "control"), str(CONNECTIONS), *kinds],
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        user=uid, group=uid, extra_groups=[], cwd="/",
    )  # fmt: skip
    testbed.counts["hostile users"] += 1
    try:
        complaint = b"".join([piece async for piece in process.stderr])
        testbed.blame(f"hostile user {uid} has ended: {complaint.decode(errors='replace')[-500:]}")
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stderr):
                await stream.aclose()
            testbed.release(process.pid)


def excess(pid: int) -> Iterator[str]:
    """Yield each resource of which a daemon uses more than hostile users may cost it."""
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        resident = int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) << 10
    except (OSError, IndexError):  # it has ended
        return
    if descriptors > MAX_DESCRIPTORS:
        yield f"the daemon has {descriptors} descriptors with hostile users: {MAX_DESCRIPTORS} would do"
    if resident > MAX_MEMORY:
        yield f"the daemon has {resident >> 20} MiB of memory with hostile users: {MAX_MEMORY >> 20} would do"
