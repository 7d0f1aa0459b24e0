"""Compiled programs that compile: libnvrtc and libnvJitLink forward to installed ones, and answer with PTX."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from processes import SECONDS

from pympsd_client.routing.libraries import attach
from tests.native_programs.conftest import LIBRARIES, SOURCES, Compile

COMPILERS = ("libnvrtc.so.13", "libnvJitLink.so.13")


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A toolkit's folder with libraries in the place of NVIDIA's."""
    folder = tmp_path / "lib64"
    folder.mkdir()
    for name in COMPILERS:
        options = ["-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        command = ["cc", *options, str(SOURCES / "installed_compilers.c"), "-ldl"]
        subprocess.run(command, check=True, timeout=SECONDS)
    return tmp_path


def test_machine_code_is_ptx_in_a_native_program(
    compile_program: Compile, environment: dict[str, str], toolkit: Path
) -> None:
    program = compile_program("compiles", "libcuda.so.1", *COMPILERS)
    settings = environment | {"CUDA_HOME": str(toolkit)}
    done = subprocess.run([program], env=settings, capture_output=True, text=True, timeout=SECONDS, check=False)
    lacking = "pympsd: nvrtcGetTileIRSize: CUDA_ERROR_NOT_SUPPORTED: pympsd does not have nvrtcGetTileIRSize yet\n"
    assert (done.stdout, done.stderr) == ("13.5 FAILURE\n11\n42\n", lacking)
    assert done.returncode == 0


def test_programs_find_the_symbol_versions_that_they_ask_for() -> None:
    for name in ("libnvrtc.so.12", "libnvJitLink.so.12", *COMPILERS):
        library = ctypes.CDLL(str(LIBRARIES / name))
        find = ctypes.CDLL(None).dlvsym
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
        function = "nvrtcVersion" if "nvrtc" in name else f"__nvJitLinkCreate_{name[-2:]}_4"
        assert find(library._handle, function.encode(), name.encode()) is not None, name


def test_a_library_that_is_not_installed_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    names, table = (ctypes.c_char_p * 1)(b"nvrtcVersion()"), (ctypes.c_void_p * 1)()
    for _ in range(2):
        assert attach("libnvrtc.so.99", 1, ctypes.addressof(names), ctypes.addressof(table), 0) == 1
    assert table[0] is None
    assert capfd.readouterr().err.count("libnvrtc.so.99 is not installed: the program needs NVIDIA's") == 1
