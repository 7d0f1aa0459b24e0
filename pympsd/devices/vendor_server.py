"""Find the driver's own MPS server on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

NAME: Final = "nvidia-cuda-mps-server"
OWN_SERVER: Final = "pympsd-server"


def find_vendor_server(given: str, environment: Mapping[str, str]) -> str:
    """Return the path of the driver's server: the given one, or the first of PATH that is no link to ours.

    Empty if there is none.
    """
    if given:
        return given if _is_program(given) else ""
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, NAME)
        if os.path.isabs(path) and _is_program(path) and os.path.basename(os.path.realpath(path)) != OWN_SERVER:
            return path
    return ""


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
