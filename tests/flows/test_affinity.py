"""CPU affinity (taskset at the daemon): servers and executors inherit it, as documented."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pytest
from processes import PYMPSD, DaemonProcess, children_of

MakeDaemon = Callable[..., DaemonProcess]


@pytest.mark.long(but=["first"])
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU cannot be distinguished from all")
@pytest.mark.parametrize("which", [min, max], ids=["first", "last"])
def test_servers_and_executors_inherit_the_daemons_affinity(
    make_daemon: MakeDaemon, which: Callable[[set[int]], int]
) -> None:
    cpu = which(os.sched_getaffinity(0))
    daemon = make_daemon()
    script = daemon.directory / "pinned"
    script.write_text(f'#!/bin/sh\nexec taskset -c {cpu} {PYMPSD} "$@"\n')
    script.chmod(0o755)
    daemon.command = str(script)
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD
    client = daemon.client()
    try:
        client.connect()
        assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
        (server,) = daemon.servers()
        (executor,) = children_of(server)
        for pid in (daemon.pid, server, executor):
            # Each of its threads: those of the compute libraries too.
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(ProcessLookupError):  # a thread that ended
                    assert os.sched_getaffinity(int(thread)) == {cpu}, (pid, thread)
        assert os.sched_getaffinity(client.pid) == os.sched_getaffinity(0), "the client is its own user's to place"
    finally:
        client.end()
