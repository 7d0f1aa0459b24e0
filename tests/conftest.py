"""For every test: hypothesis' profile, and a check that it leaves no descriptor, child process or thread behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from processes import POLL_SECONDS, children_of

settings.register_profile("here", deadline=None, database=None)
settings.register_profile("ci", deadline=None, database=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
settings.register_profile("short", settings.default, max_examples=25)

# Programs under test compile their kernels; they must neither find nor leave any in the user's home.
os.environ.setdefault("PYMPSD_KERNEL_CACHE", "off")

# A background job of a shell begins with it ignored, and so would every process the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

ENDING_SECONDS = 10.0
"""A thread, or an orphan of a daemon or a server, that is still ending when its test ends has this long."""
COMPILER = "pympsd_server.ptx.compiled_tier.compilation.compiler_process"
"""The module whose `compiler`, a process with a thread and a socket, serves many tests."""
KEPT_BY_LIBRARIES = ("/dev/urandom", "/dev/random", "/proc/self/maps")


def _compiler() -> tuple[int, int]:
    """Return the PID of this process's compiler of kernels, and the descriptor of the socket to it."""
    compiler = getattr(sys.modules.get(COMPILER), "compiler", None)
    return (compiler.pid, compiler.requests.fileno()) if compiler is not None and compiler.requests else (0, -1)


def _descriptors() -> set[tuple[int, str]]:
    descriptors = set()
    _, requests = _compiler()
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:
            continue  # the descriptor of this very listing
    return {(fd, name) for fd, name in descriptors if fd != requests and not name.startswith(KEPT_BY_LIBRARIES)}


def _children() -> set[int]:
    compiler, _ = _compiler()
    return set(children_of(os.getpid())) - {compiler}


def _threads() -> set[threading.Thread]:
    # Trio keeps worker threads for ten idle seconds, on purpose.
    kept = "trio", getattr(sys.modules.get(COMPILER), "REAPER", "trio")
    return {thread for thread in threading.enumerate() if not thread.name.lower().startswith(kept)}


def _leaks(fds: set[tuple[int, str]], children: set[int], threads: set[threading.Thread]) -> list[str]:
    for thread in _threads() - threads:
        _wait_for_its_end(thread)
    leaked = [f"the thread {thread.name}" for thread in _threads() - threads]
    give_up = time.monotonic() + ENDING_SECONDS
    while _reap_adopted(_children() - children) and time.monotonic() < give_up:
        time.sleep(POLL_SECONDS)
    leaked += [f"the child process {pid}: {_command(pid)}" for pid in sorted(_children() - children)]
    return leaked + [f"the descriptor {fd}: {target}" for fd, target in sorted(_descriptors() - fds)]


def _wait_for_its_end(thread: threading.Thread) -> None:
    """Wait for a thread on its way out; one that another thread is only just starting cannot be joined yet."""
    give_up = time.monotonic() + ENDING_SECONDS
    while thread in threading.enumerate() and (remaining := give_up - time.monotonic()) > 0:
        if thread.is_alive():
            thread.join(remaining)
        else:
            time.sleep(POLL_SECONDS)


def _reap_adopted(pids: set[int]) -> bool:
    """Reap what has ended and was a daemon's or a server's; return whether any of them has not.

    Flows adopt orphans, and one may end in a later test.
    """
    left = False
    for pid in pids:
        try:
            state, _, _, session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(session) == os.getsid(0):
            continue
        reaped = 0
        if state == "Z":
            with contextlib.suppress(ChildProcessError):  # a test's own thread was quicker
                reaped, _ = os.waitpid(pid, os.WNOHANG)
        # Its first thread may have ended before the others.
        left = left or not reaped
    return left


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") or "a zombie"
    except OSError:
        return "gone meanwhile"


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples when the long tests are left out; where it matters, tests count theirs by the profile's."""
    if config.option.markexpr == "not long":
        settings.load_profile("short")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Unmark the cases named in ``long(but=[ID, ...])``: they stand for the others when long tests are left out."""
    unknown: dict[tuple[Path, str], set[str]] = {}
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None or not mark.kwargs:
            continue
        assert isinstance(item, pytest.Function)
        unmet = unknown.setdefault((item.path, item.originalname), set(mark.kwargs["but"]))
        if item.callspec.id in mark.kwargs["but"]:
            item.own_markers.remove(mark)
            unmet.remove(item.callspec.id)
    if config.option.markexpr:
        wrong = [f"{path.name}::{name}[{case}]" for (path, name), unmet in unknown.items() for case in sorted(unmet)]
        assert not wrong, f"long(but=...) names no case: {wrong}"


def pytest_collection_finish() -> None:
    """Let collections skip what is there before the first test: half a million objects of 17,000 tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Fail a test that left a descriptor, a child process or a thread behind."""
    before = _descriptors(), _children(), _threads()
    yield
    leaked = _leaks(*before)
    # A descriptor may belong to an object that waits for the collector, most often a young one.
    for generation in (1, 2):
        if leaked:
            gc.collect(generation)
            leaked = _leaks(*before)
    assert not leaked, f"this test left behind: {'; '.join(leaked)}"
