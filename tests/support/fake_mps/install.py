"""Make the fake server runnable under the real one's name."""

from __future__ import annotations

import sys
from pathlib import Path

from . import behaviour

NAME = "nvidia-cuda-mps-server"
_LAUNCHER = """#!{python} -IBS
import sys
sys.path.insert(0, {support!r})
from fake_mps.server import main
sys.exit(main({behaviour!r}, sys.argv[1:]))
"""


def install(folder: Path, **keys: object) -> Path:
    """Write a launcher named nvidia-cuda-mps-server into a folder (put that first in PATH); return its path.

    Every user who can reach the folder, this checkout and the interpreter may run it. The README describes the keys.
    """
    launcher = folder / NAME
    misbehave(launcher, **keys)
    launcher.write_text(
        _LAUNCHER.format(
            python=sys.executable,
            support=str(Path(__file__).parents[1]),
            behaviour=str(_behaviour_file(launcher)),
        )
    )
    launcher.chmod(0o755)
    return launcher


def misbehave(launcher: Path, **keys: object) -> None:
    """Set the behaviour of servers that a launcher starts from now on; without keys they behave well."""
    behaviour.write(_behaviour_file(launcher), keys)


def _behaviour_file(launcher: Path) -> Path:
    return launcher.with_name("fake-server.json")
