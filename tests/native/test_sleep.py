"""Sleeping and waking: no wake-up is lost, and a sleeping worker takes no processor time."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import wait_until

from pympsd.wire.ring_layout import ASLEEP, HEAD, TAIL
from pympsd_client._command_stream.ring import Ring
from tests.native.fake_driver import FakeDriver
from tests.native.rig import SECONDS, Rig

IDLE_SECONDS = 1.0
"""The worker's longest sleep."""
STALLED_SECONDS = 0.9 * IDLE_SECONDS
WAKE_UP_SECONDS = 2.5
MEASURED_SECONDS = 0.3


@pytest.mark.long
@pytest.mark.parametrize("spin_ns", [1000, 3000])
def test_no_wake_up_is_lost(make_rig: Callable[..., Rig], driver: FakeDriver, spin_ns: int) -> None:
    """Records arrive just as the worker goes to sleep; a lost wake-up lasts until its sleep is over.

    100,000 records in 2.5 s lose some if the worker's fence is missing. On a busy machine the test continues until it
    has met the worker both asleep and awake.
    """
    rig = make_rig(spin_ns=spin_ns)
    driver.complete_immediately(rig.default_stream)
    rig.start()
    assert rig.thread is not None
    ring, words, source = rig.ring, rig.words, random.Random(1)
    launch = rig.launch()
    sent = bells = 0
    lock = threading.Lock()
    began = time.monotonic()
    while (took := time.monotonic() - began) < WAKE_UP_SECONDS or (took < SECONDS and not 1000 < bells < sent):
        for _ in range(64):
            for _ in range(source.randrange(80)):
                pass
            with lock:
                assert ring.put(launch)
            if ring.asleep:
                rig.client_end.send(b"\0")
                bells += 1
            sent += 1
            _await_head(ring, words, rig.thread)
    rig.drain()
    assert bells > 1000, "the worker slept often"
    assert sent > bells, "it was also met awake"
    assert rig.default_stream.launched == sent


def _await_head(ring: Ring, words: memoryview, worker: threading.Thread) -> None:
    head, tail = HEAD // 8, TAIL // 8
    for _ in range(1000):
        if words[head] == words[tail]:
            return
    began = time.monotonic()
    while words[head] != words[tail]:
        late = time.monotonic() - began > STALLED_SECONDS
        # Check the record last: the worker may take it and sleep again.
        is_lost = late and _is_waiting(worker) and ring.asleep and words[head] != words[tail]
        assert not is_lost, "a wake-up was lost"


def _is_waiting(thread: threading.Thread) -> bool:
    """Return whether a thread waits in the kernel; one that is runnable does not."""
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_worker_announces_that_it_sleeps(rig: Rig) -> None:
    rig.start()
    words = rig.words
    _await(lambda: words[ASLEEP // 8] == 1)
    rig.drain()
    _await(lambda: words[ASLEEP // 8] == 1)


def test_after_a_bell_without_a_record_the_worker_sleeps_again(rig: Rig) -> None:
    rig.ring  # noqa: B018 - in use after this
    rig.start()
    for _ in range(3):
        rig.client_end.sendall(bytes(2000))
        rig.drain()
    _await(lambda: rig.words[ASLEEP // 8] == 1)


def test_unread_bells_do_not_block_the_client(rig: Rig) -> None:
    rig.ring  # noqa: B018 - in use after this
    rig.client_end.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            rig.client_end.send(bytes(4096))
    rig.client_end.settimeout(SECONDS)
    assert rig.ring.put(rig.launch())
    rig.start()
    rig.drain()
    assert rig.default_stream.launched == 1


def test_a_sleeping_worker_takes_no_processor_time(make_rig: Callable[..., Rig]) -> None:
    idle, spinning = make_rig(), make_rig(spin_ns=int(SECONDS * 1e9))
    assert _busy_share(idle) < 0.02
    busy = _busy(spinning)
    wait_until(lambda: busy() > 0.05 * MEASURED_SECONDS, "measurable processor time")


def test_a_worker_that_waits_long_takes_little_processor_time(rig: Rig) -> None:
    assert rig.run(rig.launch(), rig.pack("SYNCHRONIZE_STREAM", 0)) == []
    assert _busy_share(rig) < 0.2


def _busy_share(rig: Rig) -> float:
    """Return the share of processor time that a worker's thread takes during MEASURED_SECONDS."""
    began, busy = time.monotonic(), _busy(rig)
    threading.Event().wait(MEASURED_SECONDS)
    return busy() / (time.monotonic() - began)


def _busy(rig: Rig) -> Callable[[], float]:
    """Start a worker's thread; return a function that returns its processor time since."""
    rig.start()
    rig.drain()
    assert rig.thread is not None
    assert rig.thread.ident is not None
    clock = time.pthread_getcpuclockid(rig.thread.ident)
    began = time.clock_gettime(clock)
    return lambda: time.clock_gettime(clock) - began


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
