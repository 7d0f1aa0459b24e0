"""Server processes: spawned as their user, watched, reaped."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, Final

import trio

from pympsd.channel.awaited import MessageChannel
from pympsd.channel.descriptors import explain
from pympsd.channel.processes import open_process
from pympsd.journal.line_format import sanitised
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.file_access import unreachable_folder
from pympsd.service.sessions.server import ServerSession
from pympsd.state_machine.events import ServerExited, ServerSpawned, SpawnFailed
from pympsd.state_machine.instructions import SpawnServer
from pympsd.vocabulary.identities import Peer

PASSED_ENVIRONMENT: Final = (
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
    *("PYMPSD_WORKER", "PYMPSD_DEVICE_CONNECTIONS"),
    *("LD_LIBRARY_PATH", "PATH", "TZ", "LANG"),
)
"""What of the daemon's environment a server gets: its user can read it. LD_LIBRARY_PATH: where the driver's library
is found by that alone, as in some containers, the executors need it too."""
LEAVE_SECONDS: Final = 5.0
"""A server that has closed its link has so long to end."""
DRAIN_SECONDS: Final = 0.5
"""What it wrote last is read for so long (an executor of its may hold the pipe a little longer)."""
POLL_SECONDS: Final = 0.05
"""Without a descriptor for it, a server's end is looked for so often."""
LAST_WORDS: Final = 64 * 1024
"""Bytes of a server's standard error that are logged."""


class CannotSpawn(Exception):
    """The server's process cannot be started; the message says why and what to do."""


async def spawn_server(dispatcher: Dispatcher, instruction: SpawnServer) -> None:
    """Start a server, tell the mind, and stay until it has ended and is reaped."""
    try:
        ours, process = await _spawn(dispatcher, instruction)
    except (OSError, CannotSpawn, ValueError, OverflowError) as error:  # the last two: no uid the system knows
        reason = explain(error) if isinstance(error, OSError) else str(error)
        dispatcher.feed(SpawnFailed(instruction.server, reason))
        return
    channel = MessageChannel(trio.socket.from_stdlib_socket(ours))
    session = ServerSession(instruction.server, instruction.uid, process.pid, process, channel)
    dispatcher.servers[instruction.server] = session
    dispatcher.feed(ServerSpawned(instruction.server, process.pid))
    async with trio.open_nursery() as nursery:
        last_words: list[str] = []
        nursery.start_soon(_log_last_words, dispatcher, process, last_words)
        await session.run(dispatcher)
        status = await _reap(process)
        nursery.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
    channel.close()
    del dispatcher.servers[instruction.server]
    dispatcher.feed(ServerExited(instruction.server, status, last_words[-1] if last_words else ""))


async def _spawn(dispatcher: Dispatcher, instruction: SpawnServer) -> tuple[socket.socket, trio.Process]:
    """Return our end of the link, and the process; raise OSError and CannotSpawn."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        try:
            return ours, await _start(dispatcher, instruction, theirs.fileno())
        except BaseException:
            ours.close()
            raise


async def _start(dispatcher: Dispatcher, instruction: SpawnServer, link: int) -> trio.Process:
    main = _server_main()
    arguments = [sys.executable, "-I", main, "--link-fd", str(link), "--name", dispatcher.show_server_as]
    if dispatcher.state.multiuser:
        arguments.append("--multiuser-server")
    return await open_process(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(link,),
        env={name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ},
        cwd="/",
        start_new_session=True,
        **_as_user(instruction, main),
    )


def _server_main() -> str:
    spec = find_spec("pympsd_server")
    if spec is None or spec.origin is None:
        raise CannotSpawn("the package pympsd_server is not installed beside pympsd")
    return os.path.join(os.path.dirname(spec.origin), "__main__.py")


def _as_user(instruction: SpawnServer, main: str) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    gid, groups = _groups(instruction.uid, instruction.peer)
    for needed in (sys.executable, main):
        folder = unreachable_folder(needed, instruction.uid, frozenset((gid, *groups)))
        if folder is not None:
            raise CannotSpawn(
                f"user {instruction.uid} cannot pass the folder {folder} on the way to {needed}; install pympsd, and "
                "the interpreter it is installed with, where every user of this machine can read it"
            )
    return {"user": instruction.uid, "group": gid, "extra_groups": groups}


def _groups(uid: int, peer: Peer | None) -> tuple[int, tuple[int, ...]]:
    if peer is not None:
        return peer.gid, peer.groups
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return uid, ()
    return entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))


async def _reap(process: trio.Process) -> int:
    """Wait for a process whose link has ended; one that does not go by itself is killed, and what it left too."""
    with contextlib.suppress(OSError), trio.move_on_after(LEAVE_SECONDS):
        await _ended(process.pid)
    # Not reaped yet, so the number is still its group's: an executor that is stopped would not see the end.
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()


async def _ended(pid: int) -> None:
    """Wait for a child's end without reaping it."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        await _poll_ended(pid)
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


async def _poll_ended(pid: int) -> None:
    """Wait for a child's end where no descriptor is to be had."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        await trio.sleep(POLL_SECONDS)


async def _log_last_words(dispatcher: Dispatcher, process: trio.Process, last: list[str]) -> None:
    """Log what a server, or an executor of its, writes to its standard error; put the latest line in ``last``."""
    assert process.stderr is not None  # it was asked for
    said = 0
    async with process.stderr as stream:
        async for data in stream:
            said += len(data)
            if said <= LAST_WORDS:
                for text in filter(None, (sanitised(part) for part in bytes(data).splitlines())):
                    dispatcher.journal.write_server("Other", process.pid, "fifo_line", {"text": text})
                    last[:] = [text]
