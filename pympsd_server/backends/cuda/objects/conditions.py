"""What the port has for conditional nodes of graphs, refused: kernels of this backend cannot set their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pympsd.vocabulary.results import Result
from pympsd_server.backends.conditions import Condition
from pympsd_server.backends.interface import BackendError


class NoConditions:
    """A context without conditional nodes (the capability ``evaluates_conditions`` is false)."""

    def condition(self, handle: int) -> Condition:
        """Refuse: NOT_SUPPORTED."""
        _refuse()

    def call(self, stream: Any, pieces: Iterator[None]) -> None:
        """Refuse: NOT_SUPPORTED."""
        _refuse()


def _refuse() -> NoReturn:
    raise BackendError(Result.ERROR_NOT_SUPPORTED, "graphs on this device have no conditional nodes")
