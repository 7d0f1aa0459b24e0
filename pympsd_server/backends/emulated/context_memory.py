"""What one context holds of its client's memory, within its budget."""

from __future__ import annotations

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.budget import CONTEXT_OVERHEAD_BYTES, ContextBudget, charged
from pympsd_server.backends.emulated.client_space import ClientSpace
from pympsd_server.backends.emulated.memory import AddressSpace
from pympsd_server.backends.emulated.programs import LoadedModule, Program
from pympsd_server.backends.emulated.ptx.faults import OutOfMemory
from pympsd_server.backends.interface import BackendError

ALLOCATION_LIMIT: Final = 1 << 18
"""Allocations one context may hold; each costs the executor some hundred bytes, however small it is."""


class ContextMemory:
    """What one context holds. Calls come from several threads; kernels read the space without asking."""

    def __init__(self, client: ClientSpace, budget: ContextBudget) -> None:
        budget.take(CONTEXT_OVERHEAD_BYTES)
        self._client = client
        self._budget = budget
        self._held: dict[int, int] = {}
        self._retired: set[int] = set()
        self._closed = False

    @property
    def space(self) -> AddressSpace:
        """The client's memory."""
        return self._client.space

    def allocate(self, count: int) -> int:
        """Return the address of ``count`` new bytes; BackendError INVALID_VALUE, OUT_OF_MEMORY."""
        if count <= 0:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"an allocation of {count} bytes")
        with self._client.lock:
            self._check_open()
            if len(self._held) >= ALLOCATION_LIMIT:
                reason = f"a context holds at most {ALLOCATION_LIMIT} allocations"
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
            self._budget.take(charged(count))
            try:
                address = self.space.allocate(count)
            except OutOfMemory as error:
                self._budget.give(charged(count))
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
            self._held[address] = count
        return address

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")

    def retire(self, address: int) -> None:
        """Note that an allocation is about to go; BackendError INVALID_VALUE unless it is one, once."""
        with self._client.lock:
            if address not in self._held or address in self._retired:
                raise BackendError(Result.ERROR_INVALID_VALUE, f"{address:#x} is no allocation of this context")
            self._retired.add(address)

    def release(self, address: int) -> None:
        """Give a retired allocation back."""
        with self._client.lock:
            self._retired.discard(address)
            self._release(address)

    def _release(self, address: int) -> None:
        self.space.free(address)
        self._budget.give(charged(self._held.pop(address)))

    def link(self, program: Program, multiprocessors: int) -> LoadedModule:
        """Place a program's variables; BackendError OUT_OF_MEMORY when they do not fit."""
        with self._client.lock:
            self._check_open()
            before = self.space.used_bytes
            try:
                loaded = program.link(self.space, multiprocessors)
            except OutOfMemory as error:
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
            try:
                self._budget.take(self.space.used_bytes - before)
            except BackendError:
                loaded.unload()
                raise
        return loaded

    def unlink(self, loaded: LoadedModule) -> None:
        """Free a program's variables."""
        with self._client.lock:
            before = self.space.used_bytes
            loaded.unload()
            self._budget.give(before - self.space.used_bytes)

    def info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""
        with self._client.lock:
            return self._budget.free, self._budget.total

    def close(self) -> None:
        """Free everything this context holds; a worker that is late gets CONTEXT_IS_DESTROYED."""
        with self._client.lock:
            self._closed = True
            for address in tuple(self._held):
                self._release(address)
            self._retired.clear()
            self._budget.give(CONTEXT_OVERHEAD_BYTES)
