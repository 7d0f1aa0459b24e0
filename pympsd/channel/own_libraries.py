"""Recognise pympsd-run's routing in an environment, and remove it.

A program under pympsd-run, and everything that it starts, finds pympsd's libcuda.so.1 and libnvidia-ml.so.1 in place
of the driver's: LD_LIBRARY_PATH names their folder, and PYMPSD_ROUTING=1 routes cuda.bindings in every Python
(`pympsd.cli.routed_run`). A process that works for pympsd itself must not be routed: if it asked the driver for its
devices, pympsd would answer, and the answer would look like a GPU. So both variables are removed when such a process
is started::

    subprocess.run([sys.executable, "-I", probe], env=remove_routing(os.environ))

A daemon that such a program starts removes them from its own environment, which its keeper and its servers inherit.
The dynamic loader reads LD_LIBRARY_PATH when a program starts, so a process cannot remove it for itself.

The folder is recognised by the end of its real path: a virtual environment may have several names, and the variable
(set by pympsd-run, a module file or a user) may have another one, or name another installation. It does not matter
whether the libraries were built.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

SEARCH_PATH: Final = "LD_LIBRARY_PATH"
"""The variable in which the dynamic loader finds folders (ld.so(8)), separated by colons."""
ROUTING: Final = "PYMPSD_ROUTING"
"""The variable that routes cuda.bindings in every Python that starts with it (``pympsd-routing.pth``)."""
_FOLDER: Final = "pympsd_client/native/libraries"
OWN_LIBRARIES: Final = Path(__file__).resolve().parents[2] / _FOLDER
"""The folder of this installation's libraries."""


def is_own(folder: str) -> bool:
    """Return whether a folder contains pympsd's libraries, of this installation or another.

    >>> is_own("/opt/env/lib/python3.12/site-packages/pympsd_client/native/libraries/")
    True
    """
    return str(Path(folder).resolve()).endswith(f"/{_FOLDER}")


def remove_routing(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which programs, Python programs included, find the machine's own CUDA libraries.

    Other folders of LD_LIBRARY_PATH stay, in their order. An empty entry, which stands for the working directory, is
    removed, and also the variable if no folder is left. An example::

        remove_routing({"LD_LIBRARY_PATH": f"{OWN_LIBRARIES}:/opt/cuda/lib64", "PYMPSD_ROUTING": "1"})
        {"LD_LIBRARY_PATH": "/opt/cuda/lib64"}
    """
    result = dict(environment)  # the caller's stays as it is
    result.pop(ROUTING, None)
    folders = result.pop(SEARCH_PATH, "").split(":")
    foreign_folders = [folder for folder in folders if folder and not is_own(folder)]
    if foreign_folders:
        result[SEARCH_PATH] = ":".join(foreign_folders)
    return result
