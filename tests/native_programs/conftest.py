"""C programs that are linked with pympsd's libcuda.so.1, compiled once, run under a daemon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import SECONDS, DaemonProcess, daemon_of_session

import pympsd_client

SOURCES = Path(__file__).parent
NATIVE = SOURCES.parents[1] / "pympsd_client" / "native" / "src"
"""The sources of the libraries, which are not installed."""
LIBRARIES = Path(pympsd_client.__file__).parent / "native" / "libraries"
ROW = re.compile(
    r'^(?:OF_(\d+)\()?(FUNCTION|OWN|PER_THREAD|VERSION_2)\((\w+),(?: (_pt[sd][sz]|\d+),)? \d+, "(.*?)"\)',
    re.MULTILINE,
)
Compile = Callable[..., Path]
"""From the name of a source file here, and of libraries, to the program."""


def read_table(library: str, major: str = "", *, own: bool = True) -> dict[str, str]:
    """Return a library's functions in one version of CUDA, with the types of their parameters, from its table.

    ``own``: also those that are the library's own C code.
    """
    functions = {}
    for version, kind, name, suffix, parameters in ROW.findall((NATIVE / library / "functions.h").read_text()):
        if version in {"", major} and (own or kind != "OWN"):
            functions |= dict.fromkeys((name, name + ("_v2" if kind == "VERSION_2" else suffix)), parameters)
    return functions


@pytest.fixture(scope="session")
def compile_program(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """A function that compiles a program and links it with libraries of pympsd."""
    folder = tmp_path_factory.mktemp("programs")

    def compile_program(name: str, *libraries: str) -> Path:
        program = folder / "-".join((name, *libraries))
        if not program.exists():
            compiler = os.environ.get("CC", "cc")
            options = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-pthread", "-rdynamic", f"-L{LIBRARIES}"]
            source = SOURCES / f"{name}.c"
            command = [compiler, *options, "-o", str(program), str(source)]
            command += [f"-l:{library}" for library in libraries or ("libcuda.so.1",)]
            subprocess.run(command, check=True, timeout=SECONDS)
        return program

    return compile_program


@pytest.fixture(scope="session")
def daemon() -> Iterator[DaemonProcess]:
    """A daemon for the programs of all tests here."""
    with daemon_of_session() as running:
        yield running


@pytest.fixture(scope="session")
def environment(daemon: DaemonProcess) -> dict[str, str]:
    """What pympsd-run sets for a native program."""
    return {
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(LIBRARIES),
        "PYMPSD_PYTHON": sys.executable,
        **daemon.environment,
    }
