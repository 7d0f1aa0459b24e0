"""CUDA_FORCE_API_VERSION: a program that asks for an API from before CUDA 4.0 gets no context under MPS.

(MPS documents, 2.3.2.) C programs pass it to their compiler; here it is an environment variable, 1000 x major + 10 x
minor: 3020. As in C, a leading number counts and the rest is ignored; a value without one is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError

VARIABLE: Final = "CUDA_FORCE_API_VERSION"
OLDEST: Final = 4000
_NUMBER: Final = re.compile(r"\s*\+?([0-9]+)")


def forced_version(text: str | None) -> int | None:
    """Return the version that the variable's value asks for; None if it names none."""
    found = _NUMBER.match(text or "")
    return int(found[1]) if found is not None else None


def check_api_version(environment: Mapping[str, str]) -> None:
    """Raise NOT_SUPPORTED if the environment asks for an API from before CUDA 4.0."""
    version = forced_version(environment.get(VARIABLE))
    if version is not None and version < OLDEST:
        raise CudaError(
            Result.ERROR_NOT_SUPPORTED,
            f"{VARIABLE}={version}: under MPS a context is made through the API of CUDA 4.0 ({OLDEST}) or later; "
            "unset it",
        )
