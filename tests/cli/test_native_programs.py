"""What pympsd-run recognises in a native program before it starts it; small programs in C, compiled here."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import BIN, SECONDS

import pympsd_client.native
from pympsd.channel.drivers_daemon import NOBODY, PYMPSD, find_listener
from pympsd.cli.elf import BadElf, ElfFile
from pympsd.cli.native_program import examine
from pympsd.cli.routed_run import find_program

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the programs take a C compiler")
LIBRARIES = Path(pympsd_client.native.__path__[0]) / "libraries"
PLAIN = "int main(void) { return 3; }"
USES_CUDA = "int cuInit(unsigned); int main(void) { return cuInit(0); }"
WITH_RUNTIME = """
const char *const texts[] = {"libcuda.so.1", "cudaErrorCudartUnloading"};
int main(int count, char **arguments) { return texts[count & 1] == arguments[0]; }
"""
MACHINE = 18
"""The offset of the machine in an ELF header."""
AARCH64 = 183


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libraries that have the names of pympsd's, in ``ours`` and in ``others``."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("ours", "others"):
        (folder / name).mkdir()
        source = "int cuInit(unsigned flags) { return flags; }"
        _compile(source, folder / name / "libcuda.so.1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    return folder


@pytest.fixture(scope="module")
def build(folder: Path) -> Callable[..., Path]:
    """Compile a program, once for each set of options."""

    def build(source: str, *options: str) -> Path:
        program = folder / f"program{abs(hash((source, options)))}"
        if not program.exists():
            _compile(source, program, *options)
        return program

    return build


def _compile(source: str, output: Path, *options: str) -> None:
    command = ["cc", "-O1", "-x", "c", "-", "-x", "none", *options, "-o", output]
    subprocess.run(command, input=source, text=True, check=True, timeout=SECONDS)


def link(folder: Path, *options: str) -> tuple[str, ...]:
    """Return the options that link a program with a library called libcuda.so.1."""
    return (*options, str(folder / "others" / "libcuda.so.1"))


def test_a_program_is_known_to_use_cuda_by_its_libraries(folder: Path, build: Callable[..., Path]) -> None:
    plain = examine(str(build(PLAIN)), str(folder / "ours"))
    assert (plain.obstacle, plain.uses_cuda) == ("", False)
    program = examine(str(build(USES_CUDA, *link(folder))), str(folder / "ours"))
    assert (program.obstacle, program.uses_cuda, program.libraries) == ("", True, ["libcuda.so.1"])
    script = folder / "script"
    script.write_text("#!/bin/sh\nexit 4\n")
    assert not examine(str(script), str(folder / "ours")).uses_cuda


def test_a_static_runtime_is_recognised_even_without_symbols(folder: Path, build: Callable[..., Path]) -> None:
    program = examine(str(build(WITH_RUNTIME, "-s")), str(folder / "ours"))
    assert program.uses_cuda
    assert "nvcc -cudart shared" in program.obstacle
    runtime = folder / "libcudart.so.13"
    _compile("int runtime;", runtime, "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13")
    shared = build(WITH_RUNTIME, "-Wl,--no-as-needed", str(runtime))
    assert examine(str(shared), str(folder / "ours")).obstacle == ""


def test_an_rpath_that_hides_the_libraries_is_an_obstacle_and_a_runpath_is_not(
    folder: Path, build: Callable[..., Path]
) -> None:
    ours, others = str(folder / "ours"), folder / "others"
    rpath, runpath = "-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"
    hidden = build(USES_CUDA, *link(folder, rpath, f"-Wl,-rpath,{others}"))
    assert f"the program's DT_RPATH finds {others}/libcuda.so.1" in examine(str(hidden), ours).obstacle
    relative = build(USES_CUDA, *link(folder, rpath, "-Wl,-rpath,/nonexistent:$ORIGIN/others"))
    assert f"{folder}/others/libcuda.so.1" in examine(str(relative), ours).obstacle
    for options in ((runpath, str(others)), (rpath, f"{ours}:{others}"), (rpath, "/")):
        program = build(USES_CUDA, *link(folder, options[0], f"-Wl,-rpath,{options[1]}"))
        assert examine(str(program), ours).obstacle == ""


def test_a_library_named_by_its_path_is_an_obstacle(folder: Path, build: Callable[..., Path]) -> None:
    nameless = folder / "libcuda.so"
    _compile("int cuInit(unsigned flags) { return flags; }", nameless, "-shared", "-fPIC")  # without a soname
    program = examine(str(build(USES_CUDA, str(nameless))), str(folder / "ours"))
    assert f"the program is linked with {nameless} by path" in program.obstacle


def test_privileged_programs_are_recognised(
    folder: Path, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = folder / "privileged"
    shutil.copy(build(USES_CUDA, *link(folder)), program)
    program.chmod(0o755 | stat.S_ISUID)
    assert examine(str(program), str(folder / "ours")).obstacle == ""  # of the user itself
    monkeypatch.setattr(os, "geteuid", lambda: program.stat().st_uid + 1)
    assert "set-user-ID" in examine(str(program), str(folder / "ours")).obstacle
    program.chmod(0o755)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"\1" * 20)
    assert "file capabilities" in examine(str(program), str(folder / "ours")).obstacle


def test_a_static_program_gets_no_library(folder: Path, build: Callable[..., Path]) -> None:
    program = examine(str(build(PLAIN, "-static")), str(folder / "ours"))
    assert (program.uses_cuda, "statically linked" in program.obstacle) == (False, True)


def test_a_program_of_another_machine_is_recognised(folder: Path, build: Callable[..., Path]) -> None:
    foreign = folder / "foreign"
    content = bytearray(build(PLAIN).read_bytes())
    content[MACHINE] = AARCH64 if content[MACHINE] != AARCH64 else 62
    foreign.write_bytes(content)
    foreign.chmod(0o755)
    assert f"but pympsd's libraries here are for {os.uname().machine}" in examine(str(foreign), "/").obstacle
    done = subprocess.run([BIN / "pympsd-run", foreign], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, "the program is for" in done.stderr) == (126, True)


def test_libraries_that_were_not_built_are_an_obstacle(folder: Path, build: Callable[..., Path]) -> None:
    program = examine(str(build(USES_CUDA, *link(folder))), "/nonexistent")
    assert "/nonexistent has no libcuda.so.1" in program.obstacle


@given(data=st.data())
def test_files_that_contradict_themselves_are_refused(
    data: st.DataObject, folder: Path, build: Callable[..., Path]
) -> None:
    content = bytearray(build(USES_CUDA, *link(folder, "-Wl,--disable-new-dtags,-rpath,/opt")).read_bytes())
    header = len(content) if data.draw(st.booleans()) else 0x400
    for offset in data.draw(st.lists(st.integers(4, header - 1), max_size=8)):
        content[offset] = data.draw(st.integers(0, 255))
    damaged = folder / "damaged"
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(BadElf), ElfFile(str(damaged)) as program:
        program.has_device_code()
        program.find_static_runtime()
    examine(str(damaged), str(folder / "ours"))


def test_programs_are_found_as_a_shell_finds_them(tmp_path: Path) -> None:
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").touch(mode)
        (tmp_path / name / "tool").chmod(mode)
    search_path = f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second"
    assert find_program("tool", search_path) == f"{tmp_path}/second/tool"
    assert find_program("tool", f"{tmp_path}/first") == f"{tmp_path}/first/tool"  # executing it reports why not
    assert find_program("absent", search_path) == ""
    assert find_program(f"{tmp_path}/second/tool", "") == f"{tmp_path}/second/tool"


@pytest.mark.parametrize(
    ("text", "status"),
    [("exit 5\n", 5), ("#!/bin/sh\nexit 6\n", 6), ("#!/nonexistent\n", 127)],
    ids=["plain", "sh", "bad"],
)
def test_scripts_run_with_their_arguments_and_status(tmp_path: Path, text: str, status: int) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    assert subprocess.run([BIN / "pympsd-run", script], check=False, timeout=SECONDS).returncode == status


def test_the_environment_is_otherwise_the_callers(tmp_path: Path) -> None:
    """The locale too, which Python would set (PEP 538)."""
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C", "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "ODD": "\udcff"}
    done = subprocess.run([BIN / "pympsd-run", "env"], env=environment, capture_output=True, timeout=SECONDS)
    variables = dict(line.split("=", 1) for line in os.fsdecode(done.stdout).splitlines())
    added = {"PYMPSD_ROUTING", "PYMPSD_PYTHON", "PYMPSD_LIBPYTHON", "LD_LIBRARY_PATH", "PWD", "_", "SHLVL"}
    assert {name: value for name, value in variables.items() if name not in added} == environment


def test_the_library_path_reaches_children_and_is_explained(
    folder: Path, build: Callable[..., Path], tmp_path: Path
) -> None:
    environment = {
        "PATH": "/usr/bin:/bin", "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "LD_LIBRARY_PATH": f"{folder}/others:/x",
        "PYMPSD_EXPLAIN": "1",
    }  # fmt: skip
    program = build(USES_CUDA.replace("cuInit(0);", "0;") + "int uses(void) { return cuInit(0); }", *link(folder))
    script = tmp_path / "script"
    script.write_text(f"echo $LD_LIBRARY_PATH\nexec {program}\n")

    def run() -> tuple[str, str]:
        """Return what pympsd-run explains of the program, and the library path in a script."""
        program_, script_ = (
            subprocess.run(
                [BIN / "pympsd-run", *command], env=environment, capture_output=True, text=True, check=True
            )
            for command in ([program], ["sh", script])
        )
        return program_.stderr, script_.stdout

    assert run() == (
        f"pympsd-run: {program}: CUDA is routed to pympsd: libcuda.so.1 from {LIBRARIES}\n",
        f"{LIBRARIES}:{folder}/others:/x\n",
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        explained, path = run()
    assert "its CUDA libraries are not replaced: the daemon manages the driver's own server" in explained
    assert path == f"{folder}/others:/x\n"


def test_the_kind_of_the_daemon_shows_in_its_socket(tmp_path: Path) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert find_listener(environment) == NOBODY
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        assert find_listener(environment) == PYMPSD
    assert find_listener(environment) == NOBODY
    (tmp_path / "control").unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        assert find_listener(environment) == "driver"
