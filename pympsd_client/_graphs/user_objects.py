"""User objects: counted references to the program's own objects, which graphs can hold too (CUDA driver API)."""

import ctypes
import threading
from itertools import count
from threading import RLock
from typing import Final

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.values import find_by_handle
from pympsd_client._graphs.graph import Graph, allocate_handle

NO_DESTRUCTOR_SYNC: Final = 1
"""The flag that cuUserObjectCreate requires; it states that no call waits for the destructor."""
MOVE: Final = 1
"""A flag of cuGraphRetainUserObject: the caller's references become the graph's."""
_MAX_REFERENCES: Final = (1 << 31) - 1
_DESTROY: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_number: Final = count(1).__next__


class UserObject:
    """Counted ``references`` to ``data``; the last release calls ``destroy(data)`` in a new thread, as CUDA does."""

    def __init__(self, data: int, destroy: int, references: int) -> None:
        self.handle: Final = allocate_handle()
        self.references = references
        self._is_ending = False
        self._data: Final = data
        self._destroy: Final = _DESTROY(destroy)
        self._changing: Final = RLock()  # a finalizer may release the object while this thread counts
        user_objects[self.handle] = self

    def retain(self, references: int) -> None:
        """Add references; raise INVALID_VALUE for 0, or if an int cannot count so many."""
        with self._changing:
            if not 1 <= references <= _MAX_REFERENCES - self.references:
                raise invalid_value(
                    f"{references} references are not between 1 and {_MAX_REFERENCES - self.references}"
                )
            self.references += references

    def release(self, references: int) -> None:
        """Remove references; raise INVALID_VALUE for 0, or more than the object has."""
        with self._changing:
            if not 1 <= references <= self.references:
                raise invalid_value(f"{references} references are not between 1 and the object's {self.references}")
            self.references -= references
            is_last = not (self.references or self._is_ending)
            self._is_ending |= is_last
        if is_last:
            user_objects.pop(self.handle, None)
            threading.Thread(
                target=self._destroy, args=(self._data,), name=f"user object {_number()}", daemon=True
            ).start()


user_objects: Final[dict[int, UserObject]] = {}
"""The user objects that have references, by handle."""


def find(handle: int) -> UserObject:
    """Return the user object of a handle; raise INVALID_VALUE."""
    return find_by_handle(user_objects, handle, "a user object of this process (all its references are released)")


def retain(graph: Graph, item: UserObject, references: int, move: bool = False) -> None:
    """Give a graph references: new ones, or with ``move`` some of the caller's. Raise INVALID_VALUE."""
    if move:
        if not 1 <= references <= item.references:
            raise invalid_value(f"{references} references are not between 1 and the object's {item.references}")
    else:
        item.retain(references)
    graph.retained[item] = graph.retained.get(item, 0) + references


def release(graph: Graph, item: UserObject, references: int) -> None:
    """Release a graph's references; raise INVALID_VALUE for 0, or more than it has."""
    held_count = graph.retained.get(item, 0)
    if not 1 <= references <= held_count:
        raise invalid_value(f"{references} references are not between 1 and the {held_count} that the graph holds")
    if held_count == references:
        del graph.retained[item]
    else:
        graph.retained[item] = held_count - references
    item.release(references)
