"""What the port has of memory that clients map themselves, refused: a client's calls are checked against its own
allocations, which this backend maps itself.
"""

from __future__ import annotations

from typing import NoReturn

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError
from pympsd_server.backends.virtual_memory import Charge, File, PhysicalMemory


class NoVirtualMemory:
    """A context whose client maps no memory (the capability ``maps_virtual_memory`` is false)."""

    def create_memory(self, count: int, shareable: bool, charge: Charge | None = None) -> PhysicalMemory:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def import_memory(self, secret: int) -> PhysicalMemory:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def share_allocation(self, address: int) -> tuple[int, int]:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def publish_window(self) -> File:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def map_peer(self, ordinal: int, process: int, file: File) -> None:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def import_peers_memory(self, process: int, file: File, count: int) -> PhysicalMemory:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def unmap_peer(self, ordinal: int) -> None:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def map_memory(self, memory: PhysicalMemory, address: int) -> None:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def unmap_memory(self, address: int, count: int) -> None:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def set_access(self, address: int, count: int, accessible: bool) -> None:
        """Refuse: NOT_SUPPORTED."""
        _refuse()


def _refuse() -> NoReturn:
    raise BackendError(Result.ERROR_NOT_SUPPORTED, "clients of this device map no memory themselves")
