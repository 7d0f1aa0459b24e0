"""The driver's own server as a child process: started as its user, it connects to the daemon's socket by itself."""

from __future__ import annotations

import os
import subprocess
from typing import Final

import trio

from pympsd.channel.descriptors import explain
from pympsd.process.spawn import open_process
from pympsd.service.children import DRAIN_SECONDS, CannotSpawn, as_user, log_stderr, reap, wait_for_end
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.status import is_child
from pympsd.service.sessions.driver.server import VendorServerSession
from pympsd.state_machine.events import ServerExited, ServerSpawned, SpawnFailed
from pympsd.state_machine.instructions import SpawnServer
from pympsd.state_machine.state.server import Phase

NAME: Final = "nvidia-cuda-mps-server"
PASSED: Final = ("LD_LIBRARY_PATH", "PATH", "TZ", "LANG")
PASSED_PREFIXES: Final = ("CUDA_", "NVIDIA_")
"""Variables of the daemon's environment that the server gets; its user can read them."""


async def spawn_vendor_server(dispatcher: Dispatcher, instruction: SpawnServer) -> None:
    """Start a server, and reap it; feed the events of its start and end. Its session begins when it registers."""
    try:
        process = await _start(dispatcher, instruction)
    except (OSError, CannotSpawn, ValueError, OverflowError) as error:  # the last two: an impossible uid
        reason = explain(error) if isinstance(error, OSError) else str(error)
        dispatcher.feed(SpawnFailed(instruction.server, reason))
        return
    session = VendorServerSession(dispatcher, instruction.server, instruction.uid, process.pid, process.kill)
    dispatcher.servers[instruction.server] = session
    if instruction.name:
        dispatcher.journal.of_server(instruction.name, instruction.uid, process.pid)
    dispatcher.feed(ServerSpawned(instruction.server, process.pid))
    async with trio.open_nursery() as nursery:
        last_line: list[str] = []
        nursery.start_soon(log_stderr, dispatcher, process, last_line)
        status = await _ended(session, process)
        nursery.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
    del dispatcher.servers[instruction.server]
    dispatcher.feed(ServerExited(instruction.server, status, last_line[-1] if last_line else ""))
    session.handoffs.close()


async def _start(dispatcher: Dispatcher, instruction: SpawnServer) -> trio.Process:
    path = dispatcher.settings.vendor_server
    remedy = "let every user of this machine reach the driver's programs, or name another in PYMPSD_VENDOR_SERVER"
    return await open_process(
        [NAME, "-multiuser-server"] if dispatcher.state.options.multiuser else [NAME],
        executable=path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_environment(dispatcher),
        cwd="/",
        start_new_session=True,
        # SIGPIPE stays ignored: what it writes to standard error after this daemon's end must not kill it.
        restore_signals=False,
        **as_user(instruction, {path: remedy}),
    )


def _environment(dispatcher: Dispatcher) -> dict[str, str]:
    passed = {name: text for name, text in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}
    # Whole paths: the daemon may have been given relative ones.
    if "CUDA_MPS_LOG_DIRECTORY" in passed:
        passed["CUDA_MPS_LOG_DIRECTORY"] = dispatcher.settings.log_directory
    return {**passed, "CUDA_MPS_PIPE_DIRECTORY": dispatcher.pipe_directory}


async def _ended(session: VendorServerSession, process: trio.Process) -> int:
    """Wait until a server closes its connection, or its process ends before it has one; reap it."""
    async with trio.open_nursery() as nursery:

        async def connection_ended() -> None:
            await session.ended.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(connection_ended)
        await wait_for_end(process.pid)
        nursery.cancel_scope.cancel()
    return await reap(process)


def is_vendor_server(dispatcher: Dispatcher, pid: int) -> bool:
    """Whether a process is a server of the driver's that this daemon leads."""
    servers = dispatcher.servers.values()
    if any(server.pid == pid and isinstance(server, VendorServerSession) for server in servers):
        return True
    # A server may write its first lines before this daemon hears that it was started.
    is_spawning = any(server.phase is Phase.SPAWNING for server in dispatcher.state.servers.values())
    return is_spawning and dispatcher.settings.backend == "vendor" and is_child(pid)
