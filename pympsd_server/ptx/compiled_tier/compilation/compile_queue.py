"""Which kernels are compiled now and which wait: a share for each user, and in it one for each client process.

The problem: compiling a kernel takes up to a minute of a processor and much memory, so only some are compiled at the
same time. In the order of arrival, a program with many large kernels would keep the kernels of all others in the
NumPy tier, for ever if it is hostile. A thread for each waiting kernel would use up the threads that the executor's
user may have. And the kernels of programs that have ended would be compiled before those of running ones.

The idea: slots, as buffers are shared in a switch. A user gets another slot only while more slots are free than the
user has already, and the free slots beyond that number are what the user's clients share by the same rule. So a
client, with all its contexts, gets another slot while its running kernels and those of its user are together fewer
than the free slots:

    12 slots, A and B are clients of one user, C and D of two others

    A alone: 4 running, 8 free;    then B: 2 running, 6 free;    then C: 2 running, 4 free;    then D: 2 running

One client never has more than a third, one user with any number of clients never more than half, and the first kernel
of a user nearly always starts immediately. Each slot has an equal share of memory. A slot that becomes free goes to
the waiting user that has the fewest slots, then to the one whose kernels have taken the compiler the least time. The
same rule selects one of the user's clients. Of a client's kernels the smallest is next, because it is compiled first.
Of equal ones it is the first that came.

A context that has ended, or has faulted, gives up its waiting kernels. One that is being compiled continues for
GRACE_SECONDS at most, because the next run of the program finds it on disk, but only while no other kernel waits.

Invariants: there is one thread for each running compilation and none for a waiting one. A user has at most
MAX_WAITING waiting kernels; for a new one, the user's oldest is dropped. A dropped kernel can be added again.
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
    """The compiler time that a user or a client has used."""

    running: int = 0
    seconds: float = 0.0
    user: _Account | None = None
    """The account of the client's user, which exists as long as the accounts of the user's clients."""


@define(eq=False)
class _Request:
    """A kernel that waits or is being compiled."""

    context: Facilities
    size: int
    run: Callable[[Callable[[], bool]], None]
    drop: Callable[[], None]
    give_up_at: float = 0.0
    """The time after which nobody needs the result; 0 while the context has not been seen to have ended."""


def _rank(entry: tuple[_Account, _Account, _Request]) -> tuple[int, float, int, float, int]:
    """Return the key by which the next request is selected: the lowest is next."""
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
        """Have a kernel compiled in a thread when its turn has come; return immediately.

        Args:
            context: Identifies the user and the client, and has the flag of its end.
            size: The number of the kernel's operations.
            run: Compiles the kernel. It must not raise. Its argument returns whether it should give up.
            drop: Is called instead if the kernel will not be compiled now. It must not call this queue.
        """
        with self._lock:
            own = [request for request in self._waiting if request.context.user == context.user]
            if len(own) >= MAX_WAITING:
                self._waiting.remove(own[0])
                own[0].drop()
            self._waiting.append(_Request(context, size, run, drop))
            self._start()

    def _start(self) -> None:
        """Start every request that may run."""
        while (request := self._take()) is not None:
            try:
                Thread(target=self._run, args=(request,), name="compiler", daemon=True).start()
            except RuntimeError:  # the user or the machine has no more threads
                self._settle(request, 0.0)
                request.drop()
                return

    def _take(self) -> _Request | None:
        """Take the next request that may run, and its slot."""
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
            # A user whose last client has ended gains nothing by it: a new account begins with the least of all.
            seconds = min((account.seconds for account in self._users.values()), default=0.0)
            user = self._users[context.user] = _Account(seconds=seconds)
        return user, self._clients.setdefault(context.client, _Account(user=user))

    def _settle(self, request: _Request, seconds: float) -> None:
        """Give back a request's slot."""
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
