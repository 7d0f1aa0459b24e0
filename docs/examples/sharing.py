"""Two clients share an emulated GPU under a scheduling policy: sharing.py POLICY TRACE

Starts a daemon with the policy ("fair", "memory", "deadline:20" or a plug-in) and two clients that launch kernels for
a while: one holds 24 GiB, one 8 GiB and launches in a stream of high priority. Writes a trace to a new file, and
prints how the device's time was divided. docs/research.md explains it.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from pympsd.control import CannotAsk, CannotStart, Daemon
from pympsd.plot.tracks import read_tracks

GIB = 1 << 30
CLIENTS = ((24, 0), (8, -3))
"""GiB that each holds, and the priority of its stream."""
SECONDS = 1.0
ELEMENTS = 1 << 20


def main(policy, trace):
    """Run both clients; print each one's part of the device's time."""
    settings = {"PYMPSD_SCHEDULING_POLICY": policy}
    with Daemon(machine="H200", settings=settings) as daemon:
        clients = [start(daemon, size, priority) for size, priority in CLIENTS]
        daemon.command(f"trace start {Path(trace).absolute()}")
        for client in clients:
            print("go", file=client.stdin, flush=True)
        for client in clients:
            client.communicate()
        daemon.command("trace stop")
    parts = time_by_client(Path(trace).read_text())
    for client, (size, priority) in zip(clients, CLIENTS, strict=True):
        print(
            f"{size} GiB, priority {priority}: {parts[client.pid] / parts.total():.0%} of the time while both worked"
        )


def start(daemon, size, priority):
    """Start a client; return it when it is ready."""
    client = subprocess.Popen(
        [sys.executable, __file__, "--client", str(size), str(priority)],
        env={**os.environ, **daemon.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    client.stdout.readline()
    return client


def time_by_client(text):
    """Return how long the device worked for each client, in the time in which it worked for both."""
    (work,) = (track for track in read_tracks([text]) if track.title.endswith(": work"))
    clients = {one.client for one in work.slices}
    since = max(min(one.began for one in work.slices if one.client == client) for client in clients)
    until = min(max(one.ended for one in work.slices if one.client == client) for client in clients)
    parts = Counter()
    for one in work.slices:
        if since <= one.began and one.ended <= until:
            parts[one.client] += one.ended - one.began
    return parts


def run_client(size, priority):
    """Take memory, and launch kernels for a while once a line has come."""
    from pympsd_client import driver as cuda

    def check(answer):
        assert answer[0] == 0, answer
        return answer[1] if len(answer) == 2 else answer[1:]

    check(cuda.cuInit(0))
    check(cuda.cuCtxCreate(0, 0))
    module = check(cuda.cuModuleLoadData(Path(__file__).with_name("add_one.ptx").read_bytes()))
    add_one = check(cuda.cuModuleGetFunction(module, b"add_one"))
    stream = check(cuda.cuStreamCreateWithPriority(0, priority))
    data = check(cuda.cuMemAlloc(size * GIB))
    check(cuda.cuMemsetD32(data, 0, ELEMENTS))
    print("ready", flush=True)
    sys.stdin.readline()
    arguments = ((data, ELEMENTS), (ctypes.c_void_p, ctypes.c_int))
    began = time.monotonic()
    while time.monotonic() < began + SECONDS:
        for _ in range(200):
            check(cuda.cuLaunchKernel(add_one, ELEMENTS // 256, 1, 1, 256, 1, 1, 0, stream, arguments, 0))
        check(cuda.cuCtxSynchronize())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        run_client(*map(int, sys.argv[2:]))
    elif len(sys.argv) != 3:
        sys.exit(__doc__)
    elif Path(sys.argv[2]).exists():
        sys.exit(f"{sys.argv[2]} exists: remove it, or name another file")
    else:
        try:
            main(*sys.argv[1:])
        except (CannotStart, CannotAsk) as error:
            sys.exit(str(error))
