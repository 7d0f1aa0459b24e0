"""libnvrtc and libnvJitLink for native programs: the installed library, with `compilers` in front of it.

Theory of operation. A program that is started with pympsd's libraries in its path gets pympsd's libnvrtc.so.13, which
itself does not compile. Its C code attaches as libcuda's does (`libraries`), and `address` gives each of its
functions one of three addresses::

    nvrtcCompileProgram    a function of `compilers`, which calls the installed library's
    nvrtcCreateProgram     the installed library's own: later calls go there directly
    nvrtcGetTileIR         an entry point that refuses, if the installed library is too old to have it

The installed library is the one that the program would have loaded without pympsd, as far as `find` can determine. It
is loaded by its path, because for its name the dynamic loader returns pympsd's library.

nvJitLink's header makes a program call `__nvJitLinkCreate_13_5`, with the header's own version. An installed library
of another version may lack that name, but not nvJitLinkCreate.
"""

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from glob import escape, glob
from typing import Any, Final

from attrs import define

from pympsd.channel.own_libraries import is_own
from pympsd.errors import FileError
from pympsd_client._connect.driver_library import read_cached_paths
from pympsd_client.native import _entry_points
from pympsd_client.routing.compilers import FORMATS, Compilers, result_of_error
from pympsd_client.routing.explain import make_refusal

_VERSION: Final = re.compile(r"^__|_\d+_\d+$")
_FAILS: Final = 0
"""The code for entry points that fail at the end of the process if they have no original function."""


class NotInstalled(FileError):
    """A library that pympsd forwards to is not installed; the message explains where it may be."""


def find(library: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of an installed library, such as ``/opt/cuda/lib64/libnvrtc.so.13``.

    It is searched for in this order: LD_LIBRARY_PATH, the toolkit of CUDA_HOME or CUDA_PATH, the packages of this
    interpreter and of an active environment (nvidia/*/lib), /usr/local/cuda*, and the dynamic loader's cache.

    Args:
        library: The library's file name, such as ``libnvrtc.so.13``.
        environment: The environment variables that name folders.

    Raises:
        NotInstalled: None of these folders has the library.
    """
    for folder in _folders(environment):
        path = os.path.join(folder, library)
        if os.path.isfile(path) and not is_own(os.path.dirname(os.path.realpath(path))):
            return path
    for path in read_cached_paths(library):
        if not is_own(os.path.dirname(os.path.realpath(path))):
            return path
    raise NotInstalled(
        f"{library} is not installed: the program needs NVIDIA's, which is part of a CUDA toolkit and of the package "
        "nvidia-cuda-nvrtc or nvidia-nvjitlink; set CUDA_HOME to the toolkit, or LD_LIBRARY_PATH to its folder"
    )


def _folders(environment: Mapping[str, str]) -> Iterator[str]:
    yield from filter(None, environment.get("LD_LIBRARY_PATH", "").split(":"))
    for toolkit in filter(None, map(environment.get, ("CUDA_HOME", "CUDA_PATH"))):
        yield from (f"{toolkit}/lib64", f"{toolkit}/lib")
    packages = [escape(folder) for folder in sys.path if folder]
    if environment.get("VIRTUAL_ENV"):
        packages += [f"{escape(environment['VIRTUAL_ENV'])}/lib/python3*/site-packages"]
    for folder in packages:
        yield from sorted(glob(f"{folder}/nvidia/*/lib"))
    for toolkit in (environment.get("CONDA_PREFIX", ""), *sorted(glob("/usr/local/cuda*"), reverse=True)):
        yield from (f"{toolkit}/lib64", f"{toolkit}/lib") if toolkit else ()


@define
class _Installed:
    """An installed library, and the replacements for some of its functions."""

    library: Any
    compilers: Compilers

    def address_of(self, name: str) -> int:
        """Return the address of a function; 0 if the library does not have it."""
        for candidate in (name, _VERSION.sub("", name)):
            if (function := getattr(self.library, candidate, None)) is not None:
                return ctypes.cast(function, ctypes.c_void_p).value or 0
        return 0


@cache
def _load(library: str) -> _Installed:
    loaded = ctypes.CDLL(find(library))

    def original(name: str, *types: Any) -> Any:
        return ctypes.CFUNCTYPE(ctypes.c_int, *types)((name, loaded))

    return _Installed(loaded, Compilers(original))


def address(library: str, name: str) -> int:
    """Return the address of the C function that a function of pympsd's libnvrtc or libnvJitLink jumps to.

    Args:
        library: The file name of the installed library, such as ``libnvrtc.so.13``.
        name: The function, such as ``nvrtcVersion``.

    Raises:
        NotInstalled: The library is not installed.
    """
    installed, plain = _load(library), _VERSION.sub("", name)
    original = installed.address_of(name)

    def resolve(name: str, signature: str) -> tuple[Any, str]:
        return installed.compilers.resolve(plain) if original else (make_refusal(plain), "")

    def fail(name: str, error: BaseException) -> int:
        return result_of_error(plain, error)

    if original and plain not in FORMATS:
        return original
    return _entry_points.route(name, "", original, resolve, fail, True, _FAILS)
