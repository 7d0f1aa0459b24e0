"""A build command that also puts into a wheel what comes with the packages (pympsd/cli/extras.py)."""

import shutil
import sys
from pathlib import Path

from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent


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
