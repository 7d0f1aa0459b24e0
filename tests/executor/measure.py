"""Measures a raw client against a live executor: ``python -m tests.executor.measure`` from the repository's root.

Prints the round trip of a bare socket pair between two Python processes, of ALLOCATE and FREE as a pair, and the
empty launches per second of one client.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from pympsd.wire import records
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import EMPTY, RawClient

ROUNDS = 3000


def best(measure: Callable[[], float]) -> float:
    """Return the best of five, in microseconds."""
    return min(measure() for _ in range(5)) * 1e6


def ping_pong() -> float:
    """Return the seconds of one round trip over a socket pair, both ends in Python."""
    own_end, peer_end = socket.socketpair()
    child = os.fork()
    if child == 0:
        own_end.close()
        while data := peer_end.recv(4096):
            peer_end.sendall(data)
        os._exit(0)
    peer_end.close()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        own_end.sendall(b"x" * 32)
        own_end.recv(4096)
    used = time.perf_counter() - began
    own_end.close()
    os.waitpid(child, 0)
    return used / ROUNDS


def allocate_and_free(client: RawClient) -> float:
    """Return the seconds of one ALLOCATE and its FREE."""
    stream, answer = client.stream, records.BY_NAME["ALLOCATE"].answer_layout
    began = time.perf_counter()
    for _ in range(ROUNDS):
        stream.sendall(records.pack("ALLOCATE", client.context, 1, 4096))
        (address,) = answer.unpack_from(stream.recv(4096), records.HEADER_BYTES)
        stream.sendall(records.pack("FREE", client.context, 2, address))
        stream.recv(4096)
    return (time.perf_counter() - began) / ROUNDS


def launches(client: RawClient, module: int) -> float:
    """Return the seconds of one empty launch, of many and one synchronise."""
    launch = records.pack("LAUNCH", client.context, 1, 0, module, EMPTY, 1, 1, 1, 1, 1, 1, 0, 0)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        client.stream.sendall(launch)
    client.good("SYNCHRONIZE_CONTEXT")
    return (time.perf_counter() - began) / ROUNDS


def launch_and_synchronize(client: RawClient, module: int) -> float:
    """Return the seconds of one launch with its own synchronise."""
    began = time.perf_counter()
    for _ in range(ROUNDS // 10):
        client.launch(module, EMPTY)
        client.good("SYNCHRONIZE_STREAM", 0)
    return (time.perf_counter() - began) / (ROUNDS // 10)


def main() -> None:
    """Print the figures."""
    bare = best(ping_pong)
    print(f"bare round trip                {bare:8.1f} us")
    executor = ExecutorOwner.start().ready()
    try:
        client = executor.attach()
        module, _ = client.load()
        pair = best(lambda: allocate_and_free(client))
        print(f"ALLOCATE and FREE              {pair:8.1f} us, {pair / bare:.1f} bare round trips")
        microseconds = best(lambda: launches(client, module))
        print(f"empty launch                   {microseconds:8.1f} us, {1e6 / microseconds:.0f} a second")
        print(f"empty launch and synchronise   {best(lambda: launch_and_synchronize(client, module)):8.1f} us")
    finally:
        executor.close()


if __name__ == "__main__":
    main()
