"""The machine's own libcuda.so.1, where the dynamic loader finds pympsd's under the same name.

A native program under pympsd-run has a folder of pympsd in LD_LIBRARY_PATH (`pympsd_client.routing.libraries`).
Whether it can run natively is a question to the other library of that name, which is found by its path: in other
folders of LD_LIBRARY_PATH, else in the dynamic loader's cache. Children that work for pympsd itself get an
environment without that folder.
"""

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pympsd.channel.own_libraries import OWN_LIBRARIES, SEARCH_PATH

NAME: Final = "libcuda.so.1"
_CACHE: Final = Path("/etc/ld.so.cache")
_CACHED: Final = re.compile(rb"\0(/[^\0]*/libcuda\.so\.1)(?=\0)")


def load_driver() -> ctypes.CDLL:
    """Return the machine's own driver library, loaded; OSError if there is none."""
    library = ctypes.CDLL(NAME)
    if not hasattr(library, "pympsd_attach"):
        return library
    for path in _other_paths(os.environ):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if not hasattr(library, "pympsd_attach"):
            return library
    raise OSError(f"there is no other {NAME} than pympsd's")


def _other_paths(environment: Mapping[str, str]) -> list[str]:
    folders = [folder for folder in environment.get(SEARCH_PATH, "").split(":") if folder]
    try:
        cached = [os.fsdecode(path) for path in _CACHED.findall(_CACHE.read_bytes())]
    except OSError:
        cached = []
    return [*(f"{folder}/{NAME}" for folder in folders if Path(folder).resolve() != OWN_LIBRARIES), *cached]
