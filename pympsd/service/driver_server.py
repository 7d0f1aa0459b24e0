"""Start the driver's own server as a child process of its user; the server then connects to the daemon's socket."""

import os
import subprocess
from functools import partial
from typing import Final

import trio

from pympsd.process.spawn import open_process
from pympsd.service.children import START_ERRORS, attend, kill, make_identity_options, spawn_failed, wait_for_end
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.status import is_child
from pympsd.service.sessions.driver.server import DriverServerSession
from pympsd.service.sessions.waiting import wait_first
from pympsd.state_machine.instructions import SpawnServer
from pympsd.state_machine.state.server import Phase

NAME: Final = "nvidia-cuda-mps-server"
PASSED: Final = ("LD_LIBRARY_PATH", "PATH", "TZ", "LANG")
PASSED_PREFIXES: Final = ("CUDA_", "NVIDIA_")
"""Prefixes of the daemon's variables that the server gets; the server's user can read them."""


async def spawn_driver_server(dispatcher: Dispatcher, instruction: SpawnServer) -> None:
    """Start a server, and reap it; feed the events of its start and end.

    The session begins when the server registers.
    """
    try:
        process = await _start(dispatcher, instruction)
    except START_ERRORS as error:
        dispatcher.feed(spawn_failed(instruction, error))
        return
    session = DriverServerSession(
        dispatcher, instruction.server, instruction.uid, process.pid, partial(kill, process.pid)
    )

    async def wait_for_session() -> None:
        """Wait until the server closes its connection, or its process ends before it has connected."""
        await wait_first(session.ended.wait, partial(wait_for_end, process.pid))

    await attend(dispatcher, instruction, session, process, wait_for_session)
    session.handoffs.close()


async def _start(dispatcher: Dispatcher, instruction: SpawnServer) -> trio.Process:
    """Start the driver's server as its user; return the process. Raise OSError or CannotSpawn."""
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
        # SIGPIPE stays ignored, because a server that writes to standard error after this daemon has ended must not
        # be killed.
        restore_signals=False,
        **make_identity_options(instruction, {path: remedy}),
    )


def _environment(dispatcher: Dispatcher) -> dict[str, str]:
    environment = {
        name: text for name, text in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)
    }
    # Full paths, because the daemon's own environment may have relative ones.
    if "CUDA_MPS_LOG_DIRECTORY" in environment:
        environment["CUDA_MPS_LOG_DIRECTORY"] = dispatcher.settings.log_directory
    return {**environment, "CUDA_MPS_PIPE_DIRECTORY": dispatcher.state.options.pipe_directory}


def note_line(dispatcher: Dispatcher, pid: int, text: str) -> None:
    """Pass a line that a driver's server has logged to that server's session."""
    for server in dispatcher.sessions.servers.values():
        if server.pid == pid and isinstance(server, DriverServerSession):
            server.note_line(text)


def is_driver_server(dispatcher: Dispatcher, pid: int) -> bool:
    """Return whether a process is a driver's server that this daemon manages."""
    servers = dispatcher.sessions.servers.values()
    if any(server.pid == pid and isinstance(server, DriverServerSession) for server in servers):
        return True
    # A server may write its first lines before this daemon has noted its PID.
    is_spawning = any(server.phase is Phase.SPAWNING for server in dispatcher.state.servers.values())
    return is_spawning and dispatcher.settings.backend == "vendor" and is_child(pid)
