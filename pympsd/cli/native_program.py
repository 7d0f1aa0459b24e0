"""Examine a native program before it runs: whether it uses CUDA, and whether it can be routed.

A program reaches pympsd if the dynamic loader finds pympsd's libraries when the program asks for libcuda, libcudart
and the others by name. The following cases prevent that; `examine` recognises them in the ELF file (`elf`):

- the program contains a CUDA runtime, which requests tables of undocumented functions from the driver that pympsd
  does not have (docs/native.md);
- the program is for another machine;
- the loader ignores LD_LIBRARY_PATH, because the program is static or its execution is privileged (ld.so(8),
  secure-execution mode);
- the loader searches elsewhere first: at a path in DT_NEEDED, or in DT_RPATH without DT_RUNPATH.

If a program opens one of these libraries by dlopen(3), it is unknown in advance whether it uses CUDA.
"""

import os
import stat

from pympsd.cli.elf import BadElf, ElfFile, is_elf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_CUDA = ("libcuda.so", "libcudart.so", "libnvidia-ml.so", "libnvrtc.so", "libnvJitLink.so")
"""The first characters of the names of pympsd's libraries for native programs."""


class Examined:
    """The result of examining a program.

    ``obstacle``: why the program cannot be routed, as the rest of a sentence after its name; empty if it can be
    routed, or is a script.
    """

    def __init__(self, obstacle: str = "", uses_cuda: bool = False, libraries: "Sequence[str]" = ()) -> None:
        self.obstacle = obstacle
        self.uses_cuda = uses_cuda
        """Whether the program is linked with a CUDA library, contains one, or contains device code."""
        self.libraries = libraries
        """The names of the CUDA libraries with which the program is linked."""


def examine(path: str, libraries: str) -> Examined:
    """Examine a program; ``libraries``: the folder of pympsd's libraries.

    >>> examine("/bin/sh", "/opt/libraries").uses_cuda
    False
    """
    if not path or not is_elf(path):
        return Examined()
    try:
        with ElfFile(path) as program:
            return _examine(program, path, libraries)
    except (OSError, BadElf) as error:
        return Examined(f"the program's ELF file cannot be read: {getattr(error, 'strerror', None) or error}")


def _examine(program: ElfFile, path: str, libraries: str) -> Examined:
    """Return whether a program uses CUDA and why it cannot be routed, from its open ELF file."""
    if program.is_foreign:
        reason = f"the program is for {program.machine}, but pympsd's libraries here are for {os.uname().machine}"
        return Examined(reason, uses_cuda=True)
    linked = [name for name in program.needed if os.path.basename(name).startswith(_CUDA)]
    if program.find_static_runtime():
        reason = (
            "the program has a static CUDA runtime, which needs undocumented functions of the driver; build it with "
            "nvcc -cudart shared (CMake: CMAKE_CUDA_RUNTIME_LIBRARY=Shared)"
        )
        return Examined(reason, uses_cuda=True, libraries=linked)
    uses_cuda = bool(linked) or program.has_device_code()
    if uses_cuda and not os.path.exists(f"{libraries}/libcuda.so.1"):
        reason = f"{libraries} has no libcuda.so.1: install a C compiler, then pympsd again"
    else:
        reason = (
            _loader_ignores_path(program, path)
            or _loader_has_name(linked)
            or _loader_has_rpath(program, path, libraries)
        )
    return Examined(reason, uses_cuda, linked)


def _loader_ignores_path(program: ElfFile, path: str) -> str:
    if program.is_static:
        return "the program is statically linked, so the dynamic loader loads no libraries; link it dynamically"
    if privilege := _privilege(path):
        return f"the program {privilege}, so the dynamic loader ignores LD_LIBRARY_PATH; run a copy without them"
    return ""


def _privilege(path: str) -> str:
    """Return why executing a program is privileged for this user; empty if it is not."""
    status = os.stat(path)
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        return "has its owner's rights (set-user-ID)"
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getegid():
        return "has its group's rights (set-group-ID)"
    try:
        has_capabilities = os.geteuid() != 0 and bool(os.getxattr(path, "security.capability"))
    except OSError:
        return ""
    return "has file capabilities" if has_capabilities else ""


def _loader_has_name(linked: "Sequence[str]") -> str:
    for name in linked:
        if "/" in name:
            return f"the program is linked with {name} by path; link it by name, with -L and -l"
    return ""


def _loader_has_rpath(program: ElfFile, path: str, libraries: str) -> str:
    origin = os.path.dirname(os.path.realpath(path))
    for entry in () if program.runpath else program.rpath:
        folder = entry.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
        if os.path.realpath(folder) == os.path.realpath(libraries):
            return ""
        for name in _list_libraries(libraries):
            if os.path.exists(os.path.join(folder, name)):
                return (
                    f"the program's DT_RPATH finds {folder}/{name} before LD_LIBRARY_PATH; link the program with "
                    "-Wl,--enable-new-dtags, or remove the entry with patchelf --remove-rpath"
                )
    return ""


def _list_libraries(folder: str) -> "list[str]":
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(_CUDA))
    except OSError:
        return []
