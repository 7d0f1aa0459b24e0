"""The import hook, which replaces a module's function pointers as soon as the module has been executed.

Theory of operation. The hook is a finder at the head of ``sys.meta_path``. For the modules in `MODULES` it gets the
module's spec from the other finders, and wraps the spec's loader in its own::

    import cuda.bindings.cydriver
        Finder.find_spec        -> the spec that Python would have found, with a _Loader
        _Loader.create_module   -> the real loader creates the extension module
        _Loader.exec_module     -> the real loader executes it: the table of pointers is filled
                                -> pointers.replace(name, __pyx_capi__)

Other Cython modules copy the capsules in ``__pyx_capi__`` when they are imported themselves. So the hook has to be
installed before the first of them is imported. Otherwise `install` raises an error, because pointers that were copied
before would not be replaced, and a program that uses two drivers gets wrong results.

The invariants:

- A Python that never uses CUDA imports a few modules of the standard library, and none of the client.
- If the daemon manages the driver's own server, nothing is replaced, because the driver connects programs to it.
- After the import the module and its spec have their own loader again, so that the hook is invisible.
- At the end of the process the connection is closed after the program's own exit functions have run. Afterwards
  destructors of C++ objects may make calls, but no call enters the interpreter.
"""

import atexit
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast

MODULES: Final = tuple(
    f"cuda.bindings.{name}" for name in ("cydriver", "cyruntime", "cynvrtc", "cynvfatbin", "cynvjitlink", "cynvml")
)
"""The modules of function pointers."""
_USERS: Final = ("cuda.bindings.driver", "cuda.bindings.runtime", "cuda.core")


def install() -> None:
    """Install the import hook in this process; without effect if it is installed.

    Under pympsd-run every Python calls this function at its start. A program that cannot be started that way calls it
    itself, as its first statement::

        from pympsd_client.routing.hook import install
        install()
        import torch

    Raise RuntimeError if a module of cuda.bindings was imported before, because others may have copied its pointers.
    """
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    imported = [name for name in (*MODULES, *_USERS) if name in sys.modules]
    if imported:
        raise RuntimeError(
            f"{imported[0]} was imported before pympsd could replace its function pointers: start the program with "
            "pympsd-run, and let no .pth file or sitecustomize import it"
        )
    # Import pympsd now, from this installation: later the program's folder, perhaps a checkout, is searched first.
    import_module("pympsd")
    sys.meta_path.insert(0, Finder())
    register_end()


_registered: Final[list[Callable[[], None]]] = []


def register_end() -> None:
    """Register `_end` with `atexit`, so that it runs after all functions that the program registers later."""
    if not _registered:
        _registered.append(atexit.register(_end))


def _end() -> None:
    """Close the connection, then make the calls of destructors return without entering the interpreter."""
    client = sys.modules.get("pympsd_client._objects.process")
    entry_points = sys.modules.get("pympsd_client.native._entry_points")
    try:
        if client is not None:
            client.process.at_exit()
    finally:
        if entry_points is not None:
            entry_points.end()


class Finder:
    """A finder that finds the modules of function pointers as Python would, and wraps their loader in a `_Loader`.

    The classes here are not derived from those of `importlib.abc`, because its import takes 4 ms.
    """

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module of function pointers, or None for any other module."""
        if name not in MODULES:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = cast("Any", _Loader(spec.loader))
                return spec
        return None


class _Loader:
    """A loader that loads a module with the module's own loader, and then replaces its function pointers."""

    def __init__(self, loader: Any) -> None:
        self._loader: Final = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        spec.loader = self._loader
        try:
            module: ModuleType | None = self._loader.create_module(spec)
            return module
        finally:
            spec.loader = cast("Any", self)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, and replace its pointers unless the daemon manages the driver's own server."""
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        # Imported only here, because these imports take time.
        import os

        from pympsd.channel.drivers_daemon import DRIVER, find_listener

        if find_listener(os.environ) == DRIVER:
            from pympsd_client._arguments.explanations import report_settings

            report_settings(os.environ)
        else:
            from pympsd_client.routing.pointers import replace

            replace(module.__name__, module.__dict__["__pyx_capi__"])
