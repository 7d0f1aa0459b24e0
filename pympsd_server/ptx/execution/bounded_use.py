"""A cache of all clients' compiled kernels in an executor, within bounds.

The problem: machine code, and the memory of finished batches, are kept because a later launch needs them again. But a
program can load any number of modules, and launch a kernel with a thousand shapes of blocks, each with its own code.
The kernels of one user could so take the memory of all.

The idea: for each kind of object one `BoundedUse`, which has their sizes in the order of their last use, without
keeping them alive. Their owners do that: a translation has its machine codes, a module its finished batches. If all
together exceed the bound, the user with the most bytes loses the least recently used object, until the rest fits.
So a user with less than an equal part loses nothing to one with more, unless that one has only the object in use:

    launch ----> use(code, nbytes, user) ----> total over MAX_CODE_BYTES? ----> drop(oldest of the largest user)

Users who launch the same program share its code; it counts as that of the user who used it last.

Dropped code is loaded from the disk again (kernel_cache.py) at the next launch that needs it, in 1 to 3 ms, or
compiled again if it is not there. A batch that runs keeps its code alive until it has finished. So no launch fails
because of these bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from attrs import define, field

MAX_CODE_BYTES: Final = 128 << 20
"""The maximum machine code of all kernels; that of a kernel of 300 operations takes 40 KB."""
MAX_BATCH_BYTES: Final = 128 << 20
"""The maximum memory of all finished batches, with their code."""
_Item = TypeVar("_Item")


@define(eq=False)
class BoundedUse(Generic[_Item]):
    """Objects that others own, up to a total size; any thread may use it.

    `drop` makes an object's owner drop it. It must not call this object.
    """

    max_bytes: int
    _drop: Callable[[_Item], None]
    _uses: WeakKeyDictionary[_Item, tuple[int, int]] = field(factory=WeakKeyDictionary, init=False)
    """The user ID and the bytes of each object, the one that was used last at the end."""
    _latest: tuple[Callable[[], object], int] = field(default=(lambda: None, 0), init=False)
    """A weak reference to the object that was used last, and its user: small launches use the same again."""
    _lock: Lock = field(factory=Lock, init=False)

    def use(self, item: _Item, nbytes: int, user: int) -> None:
        """Note a user's use of an object. If it is new or was dropped, others may be dropped, but never this one."""
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
        totals = Counter[int]()
        for user, nbytes in self._uses.values():
            totals[user] += nbytes
        excess = totals.total() - self.max_bytes
        while excess > 0 and totals:
            largest = max(totals, key=totals.__getitem__)
            oldest = next((item for item, (user, _) in self._uses.items() if user == largest), latest)
            if oldest is latest:  # the user has no other
                del totals[largest]
                continue
            _, nbytes = self._uses.pop(oldest)
            totals[largest] -= nbytes
            excess -= nbytes
            self._drop(oldest)
