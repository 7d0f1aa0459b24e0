"""Find the machine's own libcuda.so.1 when the dynamic loader finds pympsd's under that name.

A native program under pympsd-run has a folder of pympsd in LD_LIBRARY_PATH (`pympsd_client.routing.libraries`).
Only the machine's own library can show whether the program can run natively. It is searched for in the other folders
of LD_LIBRARY_PATH, then in the dynamic loader's cache. Children that work for pympsd itself get an environment
without pympsd's folder.
"""

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pympsd.channel.own_libraries import SEARCH_PATH, is_own

NAME: Final = "libcuda.so.1"
_CACHE: Final = Path("/etc/ld.so.cache")


def load_driver() -> ctypes.CDLL:
    """Load and return the machine's own driver library; raise OSError if it does not exist."""
    library = ctypes.CDLL(NAME)
    if not hasattr(library, "pympsd_attach"):
        return library
    for path in _list_other_paths(os.environ):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if not hasattr(library, "pympsd_attach"):
            return library
    raise OSError(f"there is no {NAME} other than pympsd's")


def _list_other_paths(environment: Mapping[str, str]) -> list[str]:
    folders = environment.get(SEARCH_PATH, "").split(":")
    return [f"{folder}/{NAME}" for folder in folders if folder and not is_own(folder)] + read_cached_paths(NAME)


def read_cached_paths(library: str) -> list[str]:
    """Return the paths of a library in the dynamic loader's cache (ldconfig), in its order.

    ``libcuda.so.1`` is typically ``["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]``; without a driver the list is empty.

    >>> read_cached_paths("libnowhere.so.7")
    []
    """
    try:
        cache = _CACHE.read_bytes()
    except OSError:
        return []
    return [os.fsdecode(path) for path in re.findall(rb"\0(/[^\0]*/%b)(?=\0)" % re.escape(library.encode()), cache)]
