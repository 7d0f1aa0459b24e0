"""Choose the kernels that are compiled now: each user has a share, and in it each client process.

The problem: compiling a kernel takes up to a minute of a processor and much memory, so only a few are compiled at the
same time. In the order of arrival, a program with many large kernels would keep all other programs' kernels in the
NumPy tier, and a hostile program could do so forever. If each waiting kernel had a thread, the executor's user could
run out of threads. And the kernels of programs that have ended would be compiled before the kernels of running
programs.

The idea: slots are shared as buffers are in a switch. A user gets another slot only if more slots are free than the
user already has. The user's clients share the free slots beyond that number by the same rule. So a client, with all
of its contexts, gets another slot if its running kernels and its user's are together fewer than the free slots:

    12 slots, A and B are clients of one user, C and D of two others

    A alone: 4 running, 8 free;    then B: 2 running, 6 free;    then C: 2 running, 4 free;    then D: 2 running

A client never has more than a third of the slots, a user with any number of clients never more than half, and the
first kernel of a user nearly always starts immediately. Each slot has an equal share of memory. A free slot is given
to the waiting user with the fewest slots or, of several, to the user whose kernels have taken the compiler the least
time. The same rule selects a client of the user. A client's smallest kernel is next, because it is compiled fastest;
of several, the one that was added first.

A context that has ended or faulted gives up its waiting kernels. If one of its kernels is being compiled, that
continues for at most GRACE_SECONDS, so that the next run of the program finds it on disk, but only while no other
kernel waits.

Invariants: each running compilation has a thread, and waiting kernels do not. A user has at most MAX_WAITING waiting
kernels; a new one replaces the user's oldest. A dropped kernel can be added again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, Thread
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from attrs import define, field

from pympsd_server.ptx.runtime.facilities import Facilities

GRACE_SECONDS: Final = 5.0
MAX_WAITING: Final = 100


@define(eq=False)
class _Account:
    """The running kernels of a user or a client, and the compiler time used so far, in seconds."""

    running: int = 0
    seconds: float = 0.0
    user: _Account | None = None
    """For a client, the account of its user, which it keeps alive."""


@define(eq=False)
class _Request:
    """A kernel that waits or is being compiled."""

    context: Facilities
    size: int
    run: Callable[[Callable[[], bool]], None]
    drop: Callable[[], None]
    give_up_at: float = 0.0
    """The time (of `time.monotonic`) at which an ended context's compilation is given up; 0 before it is known."""


def _rank(entry: tuple[_Account, _Account, _Request]) -> tuple[int, float, int, float, int]:
    """Return the key for selecting the next request, which is the one with the lowest key."""
    user, client, request = entry
    return user.running, user.seconds, client.running, client.seconds, request.size


@define(eq=False)
class CompileQueue:
    """The queue of one executor; at most `slots` kernels are compiled at the same time."""

    _slots: int
    _lock: Lock = field(factory=Lock, init=False)
    _waiting: list[_Request] = field(factory=list, init=False)
    _users: WeakValueDictionary[int, _Account] = field(factory=WeakValueDictionary, init=False)
    _clients: WeakKeyDictionary[object, _Account] = field(factory=WeakKeyDictionary, init=False)
    _running: int = field(default=0, init=False)

    def add(
        self, context: Facilities, size: int, run: Callable[[Callable[[], bool]], None], drop: Callable[[], None]
    ) -> None:
        """Queue a kernel, which a thread compiles when it is its turn; return immediately.

        Args:
            context: The context of the launch, with its user, its client, and the event of its end.
            size: The number of the kernel's operations.
            run: A function that compiles the kernel. It must not raise. Its argument returns whether to give up.
            drop: The function that is called instead if the kernel will not be compiled. It must not call this queue.
        """
        with self._lock:
            of_user = [request for request in self._waiting if request.context.user == context.user]
            if len(of_user) >= MAX_WAITING:
                self._waiting.remove(of_user[0])
                of_user[0].drop()
            self._waiting.append(_Request(context, size, run, drop))
            self._start()

    def _start(self) -> None:
        """Start every request that may run."""
        while (request := self._take()) is not None:
            try:
                Thread(target=self._run, args=(request,), name="compiler", daemon=True).start()
            except RuntimeError:  # the user or the machine has too many threads
                self._settle(request, 0.0)
                request.drop()
                return

    def _take(self) -> _Request | None:
        """Take the next request that may run, with a slot for it. Return None if no request may run."""
        for request in [request for request in self._waiting if request.context.ended.is_set()]:
            self._waiting.remove(request)
            request.drop()
        accounts = [(*self._accounts(request), request) for request in self._waiting]
        free = self._slots - self._running
        admitted = [entry for entry in accounts if entry[0].running + entry[1].running < free]
        if not admitted:
            return None
        user, client, request = min(admitted, key=_rank)
        self._waiting.remove(request)
        user.running += 1
        client.running += 1
        self._running += 1
        return request

    def _accounts(self, request: _Request) -> tuple[_Account, _Account]:
        """Return the accounts of a request's user and client."""
        context = request.context
        user = self._users.get(context.user)
        if user is None:
            # A new account begins with the least time of all, so a user gains nothing by ending its last client.
            seconds = min((account.seconds for account in self._users.values()), default=0.0)
            user = self._users[context.user] = _Account(seconds=seconds)
        return user, self._clients.setdefault(context.client, _Account(user=user))

    def _settle(self, request: _Request, seconds: float) -> None:
        """Release a request's slot, and add the compiler's seconds to its accounts."""
        for account in self._accounts(request):
            account.running -= 1
            account.seconds += seconds
        self._running -= 1

    def _run(self, request: _Request) -> None:
        began = time.monotonic()
        try:
            request.run(lambda: self._is_abandoned(request))
        finally:
            with self._lock:
                self._settle(request, time.monotonic() - began)
                self._start()

    def _is_abandoned(self, request: _Request) -> bool:
        if not request.context.ended.is_set():
            return False
        now = time.monotonic()
        request.give_up_at = request.give_up_at or now + GRACE_SECONDS
        return bool(self._waiting) or now >= request.give_up_at
