"""Install the files that come with the packages: manual pages, completions, units, scripts for batch systems,
samples.

A wheel has them in ``pympsd/_extras``, in the layout of a prefix; for a checkout, PLACES lists their folders.
"""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

from pympsd.errors import StartError
from pympsd.process.files import write_whole
from pympsd.process.version import EXTRAS

FOLDER: Final = Path(__file__).parents[1] / EXTRAS
CHECKOUT: Final = Path(__file__).parents[2]
PLACES: Final = (
    ("docs/man/*.1", "share/man/man1"),
    ("docs/completions/bash/*", "share/bash-completion/completions"),
    ("docs/completions/zsh/*", "share/zsh/site-functions"),
    ("docs/completions/fish/*", "share/fish/vendor_completions.d"),
    ("docs/systemd/*.service", "lib/systemd/system"),
    ("docs/systemd/user/*.service", "lib/systemd/user"),
    ("docs/profile.d/*.sh", "etc/profile.d"),
    ("docs/examples/*.*", "share/pympsd/examples"),
    ("docs/samples/*", "share/pympsd/samples"),
    ("docs/grafana/*.json", "share/pympsd/grafana"),
    ("scripts/pbs/*", "share/pympsd/pbs"),
    ("scripts/slurm/*", "share/pympsd/slurm"),
)
"""The patterns of files in a checkout, each with the folder below a prefix to which the files are installed."""
LINKS: Final = {
    "nvidia-cuda-mps-control": "pympsd",
    "nvidia-cuda-mps-server": "pympsd-server",
    "nvidia-smi": "pympsd-smi",
}
_WRITTEN_BIN: Final = "/usr/local/bin/"
"""The folder of pympsd's programs that units and scripts name before they are installed."""


class CannotInstall(StartError):
    """A file could not be installed; the message states which one, and why."""


def link_nvidia_names(folder: Path, launchers: Path) -> None:
    """Link the vendor's names in a folder to the launchers; create the folder if it is missing. Raise CannotInstall.

    Only links to launchers are replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise CannotInstall(f"{folder} is not a directory")
    for name, launcher in LINKS.items():
        _check_free(folder / name, launcher)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotInstall(f"{folder}: {error.strerror}") from None
    for name, launcher in LINKS.items():
        link = folder / name
        try:
            link.unlink(missing_ok=True)
            link.symlink_to(launchers / launcher)
        except OSError as error:
            raise CannotInstall(f"{link}: {error.strerror}") from None


def _check_free(link: Path, launcher: str) -> None:
    """Raise CannotInstall unless ``link`` does not exist or is a link to a launcher of any installation."""
    if link.is_symlink():
        if (target := link.readlink()).name == launcher:
            return
        obstacle = f"is there, and leads to {target}, not to {launcher}"
    elif link.exists():
        obstacle = "is there, and no link"
    else:
        return
    raise CannotInstall(f"{link} {obstacle}: move it away, or choose another folder")


def install(prefix: Path, launchers: Path | None = None) -> list[tuple[Path, Path | None]]:
    """Copy all files to a prefix; return each new file, and the path to which the old one was moved.

    Raise CannotInstall.

    If ``launchers`` is given, units and scripts name that folder. Existing links, which are not followed, and
    different files are moved aside.
    """
    installed = []
    for source, place in _files():
        target = prefix / place
        try:
            content = source.read_bytes()
            if launchers is not None:
                content = content.replace(_WRITTEN_BIN.encode(), f"{launchers}/".encode())
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = None
            if target.is_symlink() or (target.exists() and target.read_bytes() != content):
                # The name is that of cp --backup=numbered, so that shells, man and systemd ignore the file.
                names = (target.with_name(f"{target.name}.~{number}~") for number in count(1))
                aside = next(name for name in names if not os.path.lexists(name))
                target.rename(aside)
            write_whole(str(target), content, source.stat().st_mode & 0o777)  # some files are programs
        except OSError as error:
            raise CannotInstall(f"{target}: {error.strerror}") from None
        installed.append((target, aside))
    return installed


def _files() -> Iterator[tuple[Path, Path]]:
    """Yield each file, and its path below a prefix."""
    if FOLDER.is_dir():
        files = (file for file in sorted(FOLDER.rglob("*")) if file.is_file())
        # pip adds compiled examples to their folder.
        yield from ((file, file.relative_to(FOLDER)) for file in files if file.parent.name != "__pycache__")
        return
    for pattern, folder in PLACES:
        for file in sorted(CHECKOUT.glob(pattern)):
            if file.is_file():
                yield file, Path(folder, file.name)
