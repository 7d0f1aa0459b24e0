"""A build command that also puts the files that come with the packages into a wheel (pympsd/cli/extras.py).

It names the files of the source archive (sdist) too: setuptools finds the packages and the sources in C that
pyproject.toml names, but the build also needs ``scripts``, ``docs`` and C headers, and the tests need the whole
checkout.
"""

import shutil
import sys
from pathlib import Path

from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("docs", "scripts", "tests", "pympsd", "pympsd_server", "pympsd_client")
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", ".ci/run")
BUILT = (".pyc", ".so")
"""Ends of the names of files that a build or a run writes into the checkout."""


class BuildExtras(build_py):
    """Builds the packages, and their extras; an editable install reads those in the checkout."""

    def run(self) -> None:
        """Build both."""
        super().run()
        if not self.editable_mode:
            sys.path.insert(0, str(ROOT))
            from pympsd.cli import extras

            folder = Path(self.build_lib) / "pympsd" / extras.FOLDER.name
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier build
            extras.install(folder)

    def get_source_files(self) -> list[str]:
        """Return the files of the source archive, relative to the checkout."""
        result = (path for folder in FOLDERS for path in sorted(Path(folder).rglob("*")) if is_source(path))
        return [*super().get_source_files(), *map(str, result), *FILES]


def is_source(path: Path) -> bool:
    """Return whether a file belongs to the checkout, and was not built or cached there."""
    is_hidden = any(part.startswith(".") for part in path.parts)
    return path.is_file() and not is_hidden and not any(suffix in BUILT for suffix in path.suffixes)
