"""What comes with the packages: manual pages, completions, units, scripts of batch systems, samples and examples.

A wheel has them below ``pympsd/_extras`` as they are below a prefix; in a checkout they are where PLACES says.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pympsd.build import EXTRAS

FOLDER: Final = Path(__file__).parent / EXTRAS
CHECKOUT: Final = Path(__file__).parents[1]
PLACES: Final = (
    ("docs/man/*.1", "share/man/man1"),
    ("docs/completions/pympsd", "share/bash-completion/completions"),
    ("docs/completions/_pympsd", "share/zsh/site-functions"),
    ("docs/completions/pympsd.fish", "share/fish/vendor_completions.d"),
    ("docs/systemd/*.service", "lib/systemd/system"),
    ("docs/systemd/user/*.service", "lib/systemd/user"),
    ("docs/examples/*.*", "share/pympsd/examples"),
    ("docs/samples/*.*", "share/pympsd/samples"),
    ("scripts/pbs/*", "share/pympsd/pbs"),
    ("scripts/slurm/*", "share/pympsd/slurm"),
)
"""The files of the checkout, and their folders below a prefix."""
LINKS: Final = {
    "nvidia-cuda-mps-control": "pympsd",
    "nvidia-cuda-mps-server": "pympsd-server",
    "nvidia-smi": "pympsd-smi",
}
_WRITTEN_BIN: Final = "/usr/local/bin/"
"""The folder of pympsd as units and scripts have it."""


class CannotInstall(Exception):
    """Something could not be installed; the message says what and why."""


def link_nvidia_names(folder: Path, launchers: Path) -> None:
    """Link the vendor's names in a folder to the launchers; replace links, and nothing else. Raise CannotInstall."""
    if not folder.is_dir():
        raise CannotInstall(f"{folder} is no folder; make it, and put it first in PATH")
    for name, launcher in LINKS.items():
        link = folder / name
        try:
            if link.is_symlink():
                link.unlink()
            link.symlink_to(launchers / launcher)
        except FileExistsError:
            raise CannotInstall(f"{link} is there, and no link: move it away, or choose another folder") from None
        except OSError as error:
            raise CannotInstall(f"{link}: {error.strerror}") from None


def install(prefix: Path, launchers: Path | None = None) -> list[Path]:
    """Copy everything below a prefix and return the new files; raise CannotInstall.

    Units and scripts name the folder of the launchers, if it is given.
    """
    installed = []
    for source, place in _files():
        target = prefix / place
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)  # with its permissions, for some are programs
            if launchers is not None and (written := target.read_bytes()) != (
                adapted := written.replace(_WRITTEN_BIN.encode(), f"{launchers}/".encode())
            ):
                target.write_bytes(adapted)
        except OSError as error:
            raise CannotInstall(f"{target}: {error.strerror}") from None
        installed.append(target)
    return installed


def _files() -> Iterator[tuple[Path, Path]]:
    """Yield each file, and its place below a prefix."""
    if FOLDER.is_dir():
        files = (file for file in sorted(FOLDER.rglob("*")) if file.is_file())
        # pip compiles the examples where they lie.
        yield from ((file, file.relative_to(FOLDER)) for file in files if file.parent.name != "__pycache__")
        return
    for pattern, folder in PLACES:
        for file in sorted(CHECKOUT.glob(pattern)):
            if file.is_file():
                yield file, Path(folder, file.name)
