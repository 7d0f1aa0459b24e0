"""Keep the compiled kernels of all clients of an executor within bounds.

The problem: machine code, and the memory of finished batches, are kept because a later launch may need them again.
But a program can load any number of modules, and launch a kernel with a thousand shapes of blocks, each with its own
code. So one user's kernels could fill the memory of all.

The idea: each kind of object has a `BoundedUse`, which has the objects' sizes in the order of their last use, but
does not keep the objects alive. Their owners do: a translation has its machine codes, a module its finished batches.
If all objects together exceed the bound, the user with the most bytes loses the least recently used object, until the
rest fits. A user with less than an equal share therefore loses nothing to a user with more, unless the other user has
only the object in use:

    launch ----> use(code, nbytes, user) ----> total over MAX_CODE_BYTES? ----> drop(oldest of the largest user)

Users who launch the same program share its code, which counts for the user who used it last.

The next launch that needs dropped code loads it from the disk (kernel_cache.py) in 1 to 3 ms, or compiles it again. A
running batch keeps its code alive until it has finished. So these bounds never make a launch fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from attrs import define, field

MAX_CODE_BYTES: Final = 128 << 20
"""The maximum size of all kernels' machine code, in bytes; a kernel of 300 operations has about 40 KB."""
MAX_BATCH_BYTES: Final = 128 << 20
"""The maximum memory of all finished batches with their code, in bytes."""
_Item = TypeVar("_Item")


@define(eq=False)
class BoundedUse(Generic[_Item]):
    """The total size of objects that others own, kept within `max_bytes`. Any thread may use it.

    `drop` is called with an object, and makes the object's owner drop it. It must not call this `BoundedUse`.
    """

    max_bytes: int
    _drop: Callable[[_Item], None]
    _uses: WeakKeyDictionary[_Item, tuple[int, int]] = field(factory=WeakKeyDictionary, init=False)
    """The user ID and the bytes of each object, in the order of their last use."""
    _latest: tuple[Callable[[], object], int] = field(default=(lambda: None, 0), init=False)
    """A weak reference to the object that was used last, and the ID of its user. Small launches use one object again
    and again, and need no lock for it."""
    _lock: Lock = field(factory=Lock, init=False)

    def use(self, item: _Item, nbytes: int, user: int) -> None:
        """Record that a user uses an object of `nbytes`. A new object may cause other objects to be dropped."""
        latest, latest_user = self._latest
        if latest() is item and latest_user == user:
            return
        with self._lock:
            self._latest = ref(item), user
            is_new = self._uses.pop(item, None) is None
            self._uses[item] = user, nbytes
            if is_new:
                self._drop_excess(item)

    def _drop_excess(self, latest: _Item) -> None:
        """Drop the oldest objects of the users with the most bytes until the rest fits, but not the latest object."""
        totals = Counter[int]()
        for user, nbytes in self._uses.values():
            totals[user] += nbytes
        excess = totals.total() - self.max_bytes
        while excess > 0 and totals:
            largest = max(totals, key=totals.__getitem__)
            oldest = next((item for item, (user, _) in self._uses.items() if user == largest), latest)
            if oldest is latest:  # the user has no other object
                del totals[largest]
                continue
            _, nbytes = self._uses.pop(oldest)
            totals[largest] -= nbytes
            excess -= nbytes
            self._drop(oldest)
