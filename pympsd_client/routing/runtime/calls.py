"""The driver's functions as the runtime's cores call them: with C's inputs, returning the outputs."""

from __future__ import annotations

from typing import Any, Final

from pympsd_client.routing import driver
from pympsd_client.routing.pointers import signatures
from pympsd_client.routing.versions import newest
from pympsd_client.signatures import SIGNATURES


class _Calls:
    """The driver's functions by name; each raises CudaError."""

    def __getattr__(self, name: str) -> Any:
        installed = newest(name, SIGNATURES[name], signatures)
        function, *_ = driver.resolve(installed, signatures[installed])
        setattr(self, name, function)
        return function


api: Final = _Calls()
