"""Compiled programs of the driver API: they run on the emulated device, as clients of the daemon."""

from __future__ import annotations

import subprocess

from processes import SECONDS, DaemonProcess

from tests.native_programs.conftest import Compile


def test_a_program_computes_and_is_a_client_of_the_daemon(
    compile_program: Compile, daemon: DaemonProcess, environment: dict[str, str]
) -> None:
    program = compile_program("twice")
    with subprocess.Popen(
        [str(program)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "1 NVIDIA H200 1\n"
        clients = daemon.say("ps")
        assert f"{running.pid} " in clients
        assert "twice" in clients
        running.communicate("\n", timeout=SECONDS)
    assert running.returncode == 0
