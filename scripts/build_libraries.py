"""A build command that also builds the shared libraries for native programs, under the names that they load.

setuptools builds modules for Python, which are called NAME.abi3.so. An extension in a package `libraries` is not a
module: its file has the name that its linker option ``-Wl,-soname,`` gives, in the folder of that package. It is
linked with the libraries of that folder that come before it in pyproject.toml.
"""

from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

SONAME = "-Wl,-soname,"


class BuildLibraries(build_ext):
    """Builds modules for Python, and shared libraries."""

    def build_extension(self, ext: Extension) -> None:
        """Build one; a library finds those that were built before it."""
        if _file_name(ext):
            folder = Path(self.get_ext_fullpath(ext.name)).parent
            folder.mkdir(parents=True, exist_ok=True)
            ext.library_dirs = [*ext.library_dirs, str(folder)]
        super().build_extension(ext)

    def copy_extensions_to_source(self) -> None:
        """Copy what was built into the checkout, for an editable install."""
        for extension in self.extensions:
            if _file_name(extension):
                Path(*extension.name.split(".")[:-1]).mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of an extension's file: ``fullname`` is its name with or without its package."""
        *package, last = fullname.split(".")
        name = next(
            (_file_name(extension) for extension in self.extensions if extension.name.split(".")[-1] == last), ""
        )
        return str(Path(*package, name)) if name else str(super().get_ext_filename(fullname))


def _file_name(extension: Extension) -> str:
    """Return the file's name of a shared library; nothing for a module."""
    is_library = ".libraries." in extension.name
    names = [option for option in extension.extra_link_args if is_library and option.startswith(SONAME)]
    return names[0].removeprefix(SONAME) if names else ""
