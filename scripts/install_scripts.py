"""A build command that also installs the .pth file of `pympsd_client.routing`, next to the packages.

setuptools has no place for such a file. Of its commands that install something, only this one runs in an editable
install as it does for a wheel, whose root is then what ``install_lib`` names.
"""

from pathlib import Path

from setuptools.command.install_scripts import install_scripts

FILE = "pympsd_client/routing/pympsd-routing.pth"


class InstallScripts(install_scripts):
    """Installs the launchers, and the .pth file."""

    def run(self) -> None:
        """Install both."""
        super().run()
        folder = Path(self.get_finalized_command("install").install_lib)
        folder.mkdir(parents=True, exist_ok=True)
        self.outfiles.append(self.copy_file(FILE, str(folder / Path(FILE).name))[0])
