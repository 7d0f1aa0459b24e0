"""Threads that run a program's host functions: in order within a stream, without one stream waiting for another's."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable
from threading import Condition, Thread
from typing import Final

Job = Callable[[], None]
IDLE_S: Final = 5.0
"""A thread with nothing to do ends after this time."""


class CallbackThreads:
    """One thread for each stream with functions to run. They never keep a process from ending."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Start empty, as a forked child does: only the forking thread lives on in it."""
        self._changed = Condition()
        self._jobs: dict[Hashable, deque[Job]] = {}
        """The jobs of each stream that has a thread, or is about to."""
        self._ready: deque[Hashable] = deque()
        """Streams waiting for a thread."""
        self._idle = 0

    def submit(self, stream: Hashable, job: Job) -> None:
        """Run a job after the others of its stream. The job raises nothing."""
        with self._changed:
            jobs = self._jobs.get(stream)
            if jobs is not None:
                jobs.append(job)
                return
            self._jobs[stream] = deque((job,))
            self._ready.append(stream)
            if self._idle >= len(self._ready):
                self._changed.notify()
                return
        try:
            Thread(target=self._run, name="host functions", daemon=True).start()
        except RuntimeError:  # the system has no more threads: run it in this one
            self._serve_next(0)

    def _run(self) -> None:
        while self._serve_next(IDLE_S):
            pass

    def _serve_next(self, patience: float) -> bool:
        """Run the jobs of a stream; return False when there was none within ``patience`` seconds."""
        jobs = self._jobs
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._ready, patience)
            self._idle -= 1
            if not self._ready:
                return False
            stream = self._ready.popleft()
        while (job := self._job_of(stream)) is not None:
            job()
            if self._jobs is not jobs:  # the job has forked: this is the child's only thread, with nothing more to do
                return False
        return True

    def _job_of(self, stream: Hashable) -> Job | None:
        with self._changed:
            jobs = self._jobs[stream]
            if jobs:
                return jobs.popleft()
            del self._jobs[stream]
            return None


callback_threads: Final = CallbackThreads()
