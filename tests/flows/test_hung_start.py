"""A server that hangs in the midst of its start, registered and not ready: bounded, and no client waits for ever."""

from __future__ import annotations

import fcntl
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import DaemonProcess, wait_until

START_SECONDS = 60.0
"""The time a server has to become ready (pympsd/state_machine/admission.py)."""


@pytest.mark.long
def test_a_hung_server_is_killed_its_client_gets_the_reason_and_the_next_server_works(
    make_daemon: Callable[..., DaemonProcess], directory: Path
) -> None:
    machine = directory / "machine.toml"
    machine.write_text("[[device]]\n")
    folder = directory / "machine.toml.state"
    folder.mkdir(mode=0o1777)
    folder.chmod(0o1777)
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES=str(machine))
    assert daemon.start().returncode == 0
    client = daemon.client()
    held = os.open(folder, os.O_RDONLY)
    try:
        # Any user may keep the folder locked for a while: the server waits for it before it is ready.
        fcntl.flock(held, fcntl.LOCK_EX)
        client.send("init")
        wait_until(
            lambda: any("Initializing server process" in line for line in daemon.log("server.log")), "a server"
        )
        # From the log, and immediately: the server does not wait for ever.
        (hung,) = (int(line.split()[3]) for line in daemon.log() if line.startswith("Starting new server "))
        os.kill(hung, signal.SIGSTOP)
    finally:
        os.close(held)
    try:
        assert daemon.run_command(f"get_server_status {hung}") == "INITIALIZING\n"
        assert not client.has_result()
        watched = os.pidfd_open(hung)
        assert select.select([watched], [], [], 2 * START_SECONDS)[0], "the server is still there"
        os.close(watched)
        assert client.result() == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        assert "it was not ready within 60 s" in client.call("error")
        for _ in range(2):  # the client that waited, and a new one
            assert client.connect().call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
            client.end()
            client = daemon.client()
    finally:
        client.end(signal.SIGKILL)
    assert hung not in daemon.servers()
