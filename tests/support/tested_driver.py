"""The driver API of clients under test: pympsd_client's; with PYMPSD_TEST_DRIVER=bindings libcuda's own."""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "PYMPSD_TEST_DRIVER"

cuda: Any
if os.environ.get(VARIABLE) == "bindings":
    from cuda.bindings import __version__
    from cuda.bindings import driver as bindings

    class _Bindings:
        """cuda.bindings.driver, with the form of cuCtxCreate that has no parameters."""

        def __getattr__(self, name: str) -> Any:
            return getattr(bindings, name)

        def cuCtxCreate(self, *arguments: Any) -> Any:
            short = len(arguments) == 2 and int(__version__.partition(".")[0]) >= 13
            return bindings.cuCtxCreate(*((None, *arguments) if short else arguments))

    cuda = _Bindings()

    def last_error() -> str:
        """Return an empty text, because libcuda does not explain its last error."""
        return ""

else:
    from pympsd_client import driver, last_error

    cuda = driver

__all__ = ["cuda", "last_error"]
