"""Server processes: spawn them as their user, watch them, reap them.

A server is the leader of its own session, so that its executors end with it: `reap` kills the process group before it
reaps the leader; until then, neither the leader's PID nor the group's ID can be used again. A server may run as
another user than the daemon's. Everything that could make the change of user fail is checked before the fork, because
a failure between fork and exec cannot be explained.
"""

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import trio

from pympsd.channel.descriptors import explain
from pympsd.channel.message_channel import MessageChannel
from pympsd.errors import StartError
from pympsd.journal.line_format import sanitise
from pympsd.process.files import unreachable_folder
from pympsd.process.spawn import open_process
from pympsd.service.dispatcher import Dispatcher, RunningServer
from pympsd.service.processes.identity import Denied, OwnIdentity, change_of_identity
from pympsd.service.processes.status import is_child, process_end
from pympsd.service.sessions.server import ServerSession
from pympsd.state_machine.events import ServerExited, ServerSpawned, SpawnFailed
from pympsd.state_machine.instructions import SpawnServer
from pympsd.takeover.state.entries import link_name
from pympsd.vocabulary.identities import Peer
from pympsd.wire import messages
from pympsd.wire.link_messages import EndIfAlone

PASSED_ENVIRONMENT: Final = (
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
    *("PYMPSD_WORKER", "PYMPSD_DEVICE_CONNECTIONS", "PYMPSD_STRICT_BOUNDS", "PYMPSD_TIER", "PYMPSD_STATE_DIRECTORY"),
    *("PYMPSD_SCHEDULING_POLICY", "PYMPSD_KERNEL_CACHE", "PYMPSD_KERNEL_THREADS"),
    *("LD_LIBRARY_PATH", "PATH", "TZ", "LANG"),
)
"""The variables of the daemon's environment that a server gets; the server's user can read them. LD_LIBRARY_PATH is
among them because in some containers executors find the driver's library only with it.
"""
OWN_ENVIRONMENT: Final = ("XDG_CACHE_HOME",)
"""The variables of the daemon's environment that only servers of the daemon's own user get, because the values name
folders of that user.
"""
LEAVE_SECONDS: Final = 5.0
"""The time in seconds that a server has to end after its link is closed."""
DRAIN_SECONDS: Final = 0.5
"""The time in seconds to read a server's last output, because an executor may keep the pipe open a little longer."""
POLL_SECONDS: Final = 0.05
"""The interval in seconds of the checks for a server's end if no descriptor is left to wait for the end."""
MAX_STDERR_LINES: Final = 1000
"""The number of lines of a server's standard error that are logged."""


INSTALL_FOR_ALL: Final = (
    "install pympsd, and the interpreter it is installed with, where every user of this machine can read it"
)


class CannotSpawn(StartError):
    """The server's process cannot be started; the message contains the reason and a remedy.

    `spawn_failed` returns the event for that.
    """


START_ERRORS: Final = (OSError, CannotSpawn, ValueError, OverflowError)
"""The exceptions that starting a server raises; the last two are for an impossible uid."""


async def spawn_server(dispatcher: Dispatcher, instruction: SpawnServer) -> None:
    """Start a server, run its session, and reap the process; feed the events of the server's start and end."""
    try:
        own_end, process = await _spawn(dispatcher, instruction)
    except START_ERRORS as error:
        dispatcher.feed(spawn_failed(instruction, error))
        return
    channel = MessageChannel(
        trio.socket.from_stdlib_socket(own_end), allowance=dispatcher.budgets.buffers.link(instruction.uid)
    )
    session = ServerSession(instruction.server, instruction.uid, process.pid, partial(kill, process.pid), channel)

    async def run() -> None:
        name, note = link_name(instruction.server), messages.encode(EndIfAlone())
        with dispatcher.keeper.hold_during(name, own_end.fileno(), note):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_hang_up_at_end, process.pid, channel)
                await session.run(dispatcher)
                nursery.cancel_scope.cancel()

    await attend(dispatcher, instruction, session, process, run)
    channel.close()


def spawn_failed(instruction: SpawnServer, error: Exception) -> SpawnFailed:
    """Return the event that reports that a server could not be started."""
    return SpawnFailed(instruction.server, explain(error) if isinstance(error, OSError) else str(error))


async def attend(
    dispatcher: Dispatcher,
    instruction: SpawnServer,
    session: RunningServer,
    process: trio.Process,
    run: Callable[[], Awaitable[None]],
) -> None:
    """Serve a started server until its process has ended; feed the events of its start and end.

    ``run`` returns when the server's link has ended. Until then, and for DRAIN_SECONDS after, the server's standard
    error is logged.
    """
    dispatcher.sessions.servers[instruction.server] = session
    if instruction.name:
        dispatcher.journal.open_for_server(instruction.name, instruction.uid, process.pid)
    dispatcher.feed(ServerSpawned(instruction.server, process.pid))
    async with trio.open_nursery() as nursery:
        last_line: list[str] = []
        nursery.start_soon(_log_stderr, dispatcher, process, last_line)
        await run()
        status = await reap(process)
        nursery.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
    del dispatcher.sessions.servers[instruction.server]
    dispatcher.feed(ServerExited(instruction.server, status, last_line[-1] if last_line else ""))


async def _spawn(dispatcher: Dispatcher, instruction: SpawnServer) -> tuple[socket.socket, trio.Process]:
    """Start a server's process; return the daemon's end of the link and the process. Raise OSError or CannotSpawn."""
    # Packets, so that a daemon that is killed does not leave half a message in the link.
    own_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server_end:
        try:
            return own_end, await _start(dispatcher, instruction, server_end.fileno())
        except BaseException:
            own_end.close()
            raise


async def _start(dispatcher: Dispatcher, instruction: SpawnServer, link: int) -> trio.Process:
    """Start the server's process as its user, with ``link`` as its end of the link. Raise OSError or CannotSpawn."""
    spec = find_spec("pympsd_server")
    if spec is None or spec.origin is None:
        raise CannotSpawn("the package pympsd_server is not installed next to pympsd")
    main = os.path.join(os.path.dirname(spec.origin), "__main__.py")
    options = dispatcher.state.options
    arguments = [sys.executable, "-I", main, "--link-fd", str(link), "--name", options.show_server_as]
    if options.multiuser:
        arguments.append("--multiuser-server")
    names = PASSED_ENVIRONMENT + (OWN_ENVIRONMENT if instruction.uid == os.geteuid() else ())
    return await open_process(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(link,),
        env={name: os.environ[name] for name in names if name in os.environ},
        cwd="/",
        start_new_session=True,
        **make_identity_options(instruction, dict.fromkeys((sys.executable, main), INSTALL_FOR_ALL)),
    )


def make_identity_options(instruction: SpawnServer, readable_paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that start a process as a server's user.

    Raise CannotSpawn if the kernel denies the change of user, or if the user cannot read one of the files.

    ``readable_paths``: the files that the process needs, each with the remedy to state if the user cannot read it.
    """
    if os.geteuid() != 0:
        return {}
    gid, groups = _groups(instruction.uid, instruction.peer)
    try:
        options = change_of_identity(OwnIdentity.read(), instruction.uid, gid, groups)
    except Denied as error:
        raise CannotSpawn(str(error)) from None
    for path, remedy in readable_paths.items():
        folder = unreachable_folder(path, instruction.uid, frozenset((gid, *groups)))
        if folder is not None:
            raise CannotSpawn(
                f"user {instruction.uid} cannot pass the folder {folder} on the way to {path}; {remedy}"
            )
    return options


def _groups(uid: int, peer: Peer | None) -> tuple[int, tuple[int, ...]]:
    if peer is not None:
        return peer.gid, peer.groups
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return uid, ()
    return entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))


async def reap(process: trio.Process) -> int:
    """Reap a process whose link has ended; kill it, and its process group, if it does not end within LEAVE_SECONDS.

    Return the exit status; a negative one is a signal's number.
    """
    with contextlib.suppress(OSError), trio.move_on_after(LEAVE_SECONDS):
        await wait_for_end(process.pid)
    # The process is not reaped yet, so no other process has its group ID. An executor that is stopped must be killed:
    # it does not notice that the server has ended.
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()


def kill(pid: int) -> None:
    """Kill a child unless it has been reaped. (Process.kill would reap a child that has ended, before `reap`.)"""
    if is_child(pid):
        os.kill(pid, signal.SIGKILL)


async def _hang_up_at_end(pid: int, channel: MessageChannel) -> None:
    """End a server's link when its process has ended: another process of the user may have a copy of the link."""
    with contextlib.suppress(OSError):
        await wait_for_end(pid)
        channel.hang_up()


async def wait_for_end(pid: int) -> None:
    """Wait until a child has ended, without reaping it."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:  # no descriptor is left
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            await trio.sleep(POLL_SECONDS)
        return
    try:
        await process_end(pidfd)
    finally:
        os.close(pidfd)


async def _log_stderr(dispatcher: Dispatcher, process: trio.Process, last: list[str]) -> None:
    """Log the standard error of a server and its executors; put the latest line in ``last``."""
    assert process.stderr is not None  # standard error is a pipe
    remaining = MAX_STDERR_LINES
    async with process.stderr as stream:
        async for data in stream:
            parts = bytes(data).splitlines()[:remaining]
            remaining -= len(parts)
            for text in filter(None, map(sanitise, parts)):
                dispatcher.journal.write_server("Other", process.pid, "fifo_line", {"text": text})
                last[:] = [text]
